"""The table of thresholds: each is explained, calibrated, defined once and used."""

from __future__ import annotations

import ast
import re
from collections import Counter

from gradvet.core import thresholds
from tests.sources import SOURCES, nodes_of, parsed

TREE = parsed(SOURCES["core/thresholds.py"])
CALIBRATED = re.compile(r"\[(gallery|operators|models|half|theory)\]$")


def assigned(node: ast.stmt) -> list[str]:
    """Names that a statement of the module defines."""
    if isinstance(node, ast.AnnAssign):
        return [node.target.id] if isinstance(node.target, ast.Name) else []
    targets = node.targets if isinstance(node, ast.Assign) else []
    return [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]


def explanations() -> dict[str, str]:
    """The string after the definition of each constant; empty where there is none."""
    found = {}
    for node, after in zip(TREE.body, [*TREE.body[1:], None], strict=True):
        text = after.value if isinstance(after, ast.Expr) else None
        known = text.value.strip() if isinstance(text, ast.Constant) and isinstance(text.value, str) else ""
        found.update(dict.fromkeys(assigned(node), known))
    return found


EXPLANATIONS = explanations()


def test_all_constants_of_the_module_are_known_to_this_test() -> None:
    assert {name for name in vars(thresholds) if name.isupper()} == set(EXPLANATIONS)


def test_constants_are_explained_and_say_where_they_were_calibrated() -> None:
    bare = [name for name, text in EXPLANATIONS.items() if not re.search(r"\w", CALIBRATED.sub("", text))]
    assert bare == []
    assert [name for name, text in EXPLANATIONS.items() if not CALIBRATED.search(text)] == []


def test_no_name_is_defined_twice() -> None:
    counts = Counter(name for node in TREE.body for name in assigned(node))
    assert [name for name, count in counts.items() if count > 1] == []


def used_names() -> set[str]:
    """Constants that a module reads, as `thresholds.NAME` or by an import of the name."""
    used: set[str] = set()
    for text in (text for path, text in SOURCES.items() if path != "core/thresholds.py"):
        for node in nodes_of(text):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "thresholds":
                used.add(node.attr)
            elif isinstance(node, ast.ImportFrom) and node.module == thresholds.__name__:
                used.update(alias.name for alias in node.names)
    return used


def test_every_constant_is_used_and_every_used_one_is_defined() -> None:
    assert used_names() == set(EXPLANATIONS)


MOST_THRESHOLDS = 55
"""Names in the table. The number may only shrink; 55 is the aim."""


def test_table_does_not_grow() -> None:
    assert len(EXPLANATIONS) <= MOST_THRESHOLDS
