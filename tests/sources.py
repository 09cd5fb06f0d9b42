"""The source text of the package and of its tests, read and parsed once for all rules about it."""

from __future__ import annotations

import ast
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

Sources: TypeAlias = Mapping[str, str]  # path below a folder -> text

TESTS_ROOT = Path(__file__).parent
ROOT = TESTS_ROOT.parent / "src" / "gradvet"


def texts_below(root: Path, pattern: str) -> Sources:
    return {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in sorted(root.rglob(pattern))}


SOURCES = texts_below(ROOT, "*.py")
TESTS = texts_below(TESTS_ROOT, "test_*.py")


@functools.cache
def parsed(text: str) -> ast.Module:
    return ast.parse(text)


@functools.cache
def nodes_of(text: str) -> tuple[ast.AST, ...]:
    """All nodes of a source, in the order of `ast.walk`."""
    return tuple(ast.walk(parsed(text)))
