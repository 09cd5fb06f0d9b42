"""The source text of the package and of its tests, read and parsed once for all rules about it, and its imports."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
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


@dataclass(frozen=True, slots=True)
class Import:
    path: str
    line: int
    target: str  # the absolute name of a module
    for_types_only: bool

    def __str__(self) -> str:
        return f"{self.path}:{self.line} imports {self.target}"


def module_name(path: str) -> str:
    parts = ("gradvet", *PurePosixPath(path).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def part(module: str) -> str:
    """`core` for gradvet.core.probe_plans, `gradvet` for gradvet itself."""
    return module.split(".")[1] if "." in module else module


def is_own(module: str) -> bool:
    return module == "gradvet" or module.startswith("gradvet.")


def lies_in(module: str, places: Iterable[str]) -> bool:
    return any(f"{module}.".startswith(f"gradvet.{place}.") for place in places)


def absolute(name: str, level: int, path: str) -> str:
    """The module meant by `name` after `level` dots in the file at `path`."""
    if level == 0:
        return name
    package = ("gradvet", *PurePosixPath(path).parent.parts)
    return ".".join([*package[: len(package) - level + 1], *([name] if name else [])])


def named_in_call(call: ast.Call, path: str) -> Iterator[str]:
    """The module of `import_module("...")` and `__import__("...")`."""
    function = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", None)
    first = call.args[0] if call.args else None
    if function in {"import_module", "__import__"} and isinstance(first, ast.Constant) and isinstance(first.value, str):
        name = first.value.lstrip(".")
        yield absolute(name, len(first.value) - len(name), path)


def targets(node: ast.AST, path: str, modules: frozenset[str]) -> Iterator[str]:
    """What one node imports. `from a import b` is a.b where that is a module of ours, a otherwise."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = absolute(node.module or "", node.level, path)
        for alias in node.names:
            full = f"{base}.{alias.name}"
            yield full if full in modules or not is_own(base) else base
    elif isinstance(node, ast.Call):
        yield from named_in_call(node, path)


def nodes_for_types_only(nodes: Iterable[ast.AST]) -> set[ast.AST]:
    return {
        inner
        for node in nodes
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for statement in node.body
        for inner in ast.walk(statement)
    }


def imports(sources: Sources) -> list[Import]:
    modules = frozenset(map(module_name, sources))
    return [found for path, text in sources.items() for found in imports_of(path, text, modules)]


@functools.cache
def imports_of(path: str, text: str, modules: frozenset[str]) -> tuple[Import, ...]:
    """The imports of one source, found once for all rules."""
    for_types_only = nodes_for_types_only(nodes_of(text))
    return tuple(
        Import(path, getattr(node, "lineno", 0), target, node in for_types_only)
        for node in nodes_of(text)
        for target in targets(node, path, modules)
    )


def without_lines(breaches: Iterable[str]) -> list[str]:
    """Breaches without the numbers of their lines, each once."""
    return sorted({re.sub(r"^([^ :]+):\d+ ", r"\1 ", breach) for breach in breaches})
