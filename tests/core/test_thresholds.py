"""The table of thresholds: each is explained, calibrated, defined once and used."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

import gradvet
from gradvet.core import thresholds

SOURCE = Path(gradvet.__file__).parent
TREE = ast.parse(Path(thresholds.__file__).read_text(encoding="utf-8"))
CALIBRATED = re.compile(r"\[(gallery|operators|kernels|models|half|theory)\]$")


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


@pytest.mark.parametrize("name", EXPLANATIONS)
def test_constant_is_explained_and_says_where_it_was_calibrated(name: str) -> None:
    assert CALIBRATED.search(EXPLANATIONS[name])
    assert CALIBRATED.sub("", EXPLANATIONS[name]).strip()


def test_no_name_is_defined_twice() -> None:
    counts = Counter(name for node in TREE.body for name in assigned(node))
    assert [name for name, count in counts.items() if count > 1] == []


def used_names() -> set[str]:
    """Constants that a module reads, as `thresholds.NAME` or by an import of the name."""
    used: set[str] = set()
    for path in SOURCE.rglob("*.py"):
        if path == Path(thresholds.__file__):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "thresholds":
                used.add(node.attr)
            elif isinstance(node, ast.ImportFrom) and node.module == thresholds.__name__:
                used.update(alias.name for alias in node.names)
    return used


def test_every_constant_is_used() -> None:
    assert set(EXPLANATIONS) - used_names() == set()


def test_no_module_reads_a_constant_that_is_not_defined() -> None:
    assert used_names() <= set(EXPLANATIONS)


ELSEWHERE: dict[str, str] = {}
"""Names of constants with a number that two modules still define, and what they are. The list may only shrink."""


def is_number(node: ast.expr) -> bool:
    """Whether an expression is made of numbers alone."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int | float) and not isinstance(node.value, bool)
    if isinstance(node, ast.Tuple):
        return bool(node.elts) and all(map(is_number, node.elts))
    if isinstance(node, ast.BinOp):
        return is_number(node.left) and is_number(node.right)
    return isinstance(node, ast.UnaryOp) and is_number(node.operand)


def numeric_constants(path: Path) -> set[str]:
    """Names that a module binds to numbers at its top level."""
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        if value is not None and is_number(value):
            found.update(name for name in assigned(node) if name.isupper())
    return found


def test_no_constant_with_a_number_is_defined_in_two_modules() -> None:
    counts = Counter(name for path in SOURCE.rglob("*.py") for name in numeric_constants(path))
    assert {name for name, count in counts.items() if count > 1} == set(ELSEWHERE)


MOST_THRESHOLDS = 55
"""Names in the table. The number may only shrink; 55 is the aim."""


def test_table_does_not_grow() -> None:
    assert len(EXPLANATIONS) <= MOST_THRESHOLDS
