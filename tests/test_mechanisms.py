"""A mechanism says "Needed by" and names the gallery cases or tests whose verdict needs it: these exist."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator

import pytest

from tests.gallery import RIGHT, WRONG
from tests.sources import SOURCES, TESTS, nodes_of

CLAIM = re.compile(r"\bneeded (?:\w+ )?by\b(.*?)(?=[.:;] |[.:;]$|$)", re.IGNORECASE)
"""What follows "needed by" in its sentence."""


KNOWN = [
    # Seeds of a benchmark; nobody has made a case of the gallery of them.
    "checks/low_precision_entries.py: benchmarks.random_functions",
]
"""Claims that name something else. A claim that is mended leaves this list."""


def prose(source: str) -> Iterator[str]:
    """Docstrings and blocks of comments, each as one line."""
    for node in nodes_of(source):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield " ".join(node.value.value.split())
    block: list[str] = []
    last = -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if token.start[0] != last + 1:
                yield " ".join(block)
                block = []
            block.append(token.string.lstrip("# "))
            last = token.start[0]
    yield " ".join(block)


def claims(source: str) -> list[list[str]]:
    """The names in each sentence that says what a mechanism is needed by."""
    return [re.findall(r"`([\w./]+)`", found.group(1)) for text in prose(source) for found in CLAIM.finditer(text)]


def known_names() -> frozenset[str]:
    """Gallery cases, tests and files of tests."""
    tests = {name for text in TESTS.values() for name in re.findall(r"^ *def (test_\w+)\(", text, re.MULTILINE)}
    return frozenset({case.name for case in (*RIGHT, *WRONG)} | tests | {f"tests/{path}" for path in TESTS})


def test_every_mechanism_names_cases_that_exist() -> None:
    known = known_names()
    missing = [
        f"{path}: {', '.join(names)}"
        for path, text in SOURCES.items()
        for names in claims(text)
        if not names or not known.issuperset(names)
    ]
    assert missing == KNOWN


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ('def f():\n    """Text. Needed by `one` and\n    `two`. It has `other`."""', ["one", "two"]),
        ("x = 1\n# Why: needed by `one`: the `other`.\ny = 2", ["one"]),
        ("# The latter is needed by\n# `one`, and by `two`", ["one", "two"]),
        ('class C:\n    """Needed by models."""', []),
    ],
)
def test_names_of_a_claim_are_found(source: str, names: list[str]) -> None:
    assert claims(source) == [names]


def test_prose_without_a_claim_has_none() -> None:
    assert claims('"""What is needed for `x`."""\n# The name `y`.') == []
