"""Which changes of the code there are, and which of them are drawn.

cosmic-ray lists them. Left out is what says nothing about the tests: what cannot make a difference (annotations,
which are never evaluated; whether a dataclass is frozen), and changes that raise wherever they are executed (shifts of
floats, `None < x`), which any test at all would notice.
"""

from __future__ import annotations

import ast
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from cosmic_ray.commands import init
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator
from cosmic_ray.work_db import WorkDB
from cosmic_ray.work_item import MutationSpec, WorkItem

MUTATED = ("core", "checks")

PER_FILE = 130
"""Of so many changes that are wanted, every file has one tried, if it has any: of 400 each has three."""

APART = ({"RShift", "LShift", "BitOr", "BitAnd", "BitXor"}, {"Is", "IsNot"}, {"Invert"})
"""What works with an operator of such a group raises with one outside of it, or is the same."""

Place = tuple[int, int]


def list_changes(work: WorkDB, package: Path) -> None:
    """Write all changes that cosmic-ray knows into its store."""
    init([path for folder in MUTATED for path in sorted((package / folder).glob("*.py"))], work, {})


def telling(items: Iterable[WorkItem]) -> dict[Path, list[WorkItem]]:
    """By file, the changes that a test could notice and another test could miss."""
    found: dict[Path, list[WorkItem]] = defaultdict(list)
    for item in sorted(items, key=_place):
        found[item.mutations[0].module_path].append(item)
    return {
        path: [item for item in found[path] if _tells(item.mutations[0], regions)] for path, regions in _each(found)
    }


def sample(changes: dict[Path, list[WorkItem]], wanted: int, seed: int) -> list[WorkItem]:
    """Every file's share, drawn at random, in an order in which any beginning is spread over all files."""
    total = sum(map(len, changes.values()))
    drawn: list[tuple[float, str, WorkItem]] = []
    for path, items in changes.items():
        share = min(len(items), max(1, wanted // PER_FILE, round(wanted * len(items) / total)))
        name = f"{path.parent.name}/{path.name}"
        chosen = random.Random(f"{seed} {name}").sample(items, share)
        drawn += (((rank + 0.5) / share, name, item) for rank, item in enumerate(chosen))
    return [item for _, _, item in sorted(drawn, key=lambda entry: entry[:2])]


def mutated(source: str, change: MutationSpec) -> str:
    code = mutate_code(source, get_operator(change.operator_name)(**change.operator_args), change.occurrence)
    assert code is not None, f"{change} is not in this source"
    return str(code)


def _each(paths: Iterable[Path]) -> Iterator[tuple[Path, list[tuple[Place, Place]]]]:
    for path in paths:
        yield path, list(_without_effect(path.read_text(encoding="utf-8")))


def _place(item: WorkItem) -> tuple[str, str, int]:
    change = item.mutations[0]
    return str(change.module_path), change.operator_name, change.occurrence


def _tells(change: MutationSpec, regions: list[tuple[Place, Place]]) -> bool:
    if any(start <= change.start_pos < end for start, end in regions):
        return False
    kinds = change.operator_name.split("_")[1:]
    if len(kinds) != 2 or "Delete" in kinds:
        return True
    return all((kinds[0] in group) == (kinds[1] in group) for group in APART)


def _without_effect(source: str) -> Iterator[tuple[Place, Place]]:
    """Annotations, the signs in lists of parameters, and the arguments of decorators."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            yield from _between(lines, node, [*node.args.defaults, *filter(None, node.args.kw_defaults)])
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield from (_region(lines, decorator) for decorator in node.decorator_list)
        if isinstance(node, ast.AnnAssign):
            yield _region(lines, node.annotation)


def _between(lines: list[str], function: ast.FunctionDef, defaults: list[ast.expr]) -> Iterator[tuple[Place, Place]]:
    """The head of a function without its default values."""
    start = (function.lineno, function.col_offset)
    for region in sorted(_region(lines, default) for default in defaults):
        yield start, region[0]
        start = region[1]
    yield start, _region(lines, function.body[0])[0]


def _region(lines: list[str], node: ast.expr | ast.stmt) -> tuple[Place, Place]:
    """Where a node begins and ends, in characters: Python counts bytes."""
    ends = ((node.lineno, node.col_offset), (node.end_lineno or node.lineno, node.end_col_offset or 0))
    start, end = ((line, len(lines[line - 1].encode()[:column].decode())) for line, column in ends)
    return start, end
