"""How often `check` is right on functions it was never tuned on: `python -m benchmarks.held_out_detection`.

Every function of `benchmarks.held_out` is checked with several seeds. A wrong one should be named (FAIL), a right one
should pass; undecided is INCONCLUSIVE. Faults of class `below` are too small to be promised and are left out of the
totals. A function that is right at its inputs may fail at points and shapes that `check` tries beside them (a backward
that divides by zero, or raises for an odd length): that is counted apart, as `elsewhere`.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

import torch
from rich.console import Console
from rich.table import Table

import gradvet
from benchmarks.held_out import RECORDS, Record
from benchmarks.held_out.record import DTYPES
from benchmarks.report import numbers_table, save, wide_console

ELSEWHERE = "elsewhere"
WRONG_CELLS = {"fail": "named", "pass": "missed", "inconclusive": "undecided", "error": "errors"}
RIGHT_CELLS = {
    "pass": "passed",
    "fail": "false FAIL",
    ELSEWHERE: ELSEWHERE,
    "inconclusive": "undecided",
    "error": "errors",
}
NOT_PROMISED = "below"


@dataclass(frozen=True)
class Row:
    """One call of `check`."""

    name: str
    kind: str
    precision: str
    is_wrong: bool
    seed: int
    outcome: str
    """The verdict, or "error"."""
    failed: tuple[str, ...]
    """The checks that failed, or the exception."""
    cpu_seconds: float


def main(arguments: list[str] | None = None) -> int:
    wanted = parsed(arguments)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    console = wide_console()
    chosen = [
        record
        for record in RECORDS
        if (not wanted.precision or record.precision in wanted.precision)
        and (not wanted.kind or record.kind in wanted.kind)
    ]
    rows = [row_of(record, seed) for record in chosen for seed in range(wanted.seeds)]
    for is_wrong in (True, False):
        mine = [row for row in rows if row.is_wrong == is_wrong]
        if mine:
            console.print(table_of(mine, is_wrong))
            if wanted.list:
                print_names(mine, is_wrong, console)
    seconds = sum(row.cpu_seconds for row in rows)
    console.print(f"{len(chosen)} functions, {wanted.seeds} seeds, {seconds:.1f} CPU seconds")
    save("held-out-detection", vars(wanted), [asdict(row) for row in rows], summary_of(rows), console)
    return 0


def row_of(record: Record, seed: int) -> Row:
    """One check in a known random state, whatever ran before."""
    function, inputs = record.build()
    torch.manual_seed(seed)
    random.seed(seed)
    begin = time.process_time()
    try:
        report = gradvet.check(function, inputs, order=record.order, seed=seed)
        outcome, failed = report.verdict.value, tuple(finding.check for finding in report.failures)
        if failed and not record.is_wrong and {"points", "shapes"}.issuperset(failed):
            outcome = ELSEWHERE
    except Exception as error:
        outcome, failed = "error", (f"{type(error).__name__}: {error}"[:200],)
    spent = time.process_time() - begin
    return Row(record.name, record.kind, record.precision, record.is_wrong, seed, outcome, failed, spent)


def table_of(rows: Sequence[Row], is_wrong: bool) -> Table:
    cells = WRONG_CELLS if is_wrong else RIGHT_CELLS
    numbers = "functions", "calls", *cells.values(), "CPU s"
    table = numbers_table(f"{'wrong' if is_wrong else 'right'} functions", ("precision", "class"), numbers)
    by_cell: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        by_cell[row.precision, row.kind].append(row)
    for precision in DTYPES:
        kinds = sorted(kind for own, kind in by_cell if own == precision)
        for kind in kinds:
            add(table, precision, kind, by_cell[precision, kind], cells)
        if kinds:
            add(table, precision, "all", promised(row for row in rows if row.precision == precision), cells)
            table.add_section()
    for kind in sorted({row.kind for row in rows}):
        add(table, "all", kind, [row for row in rows if row.kind == kind], cells)
    add(table, "all", "all", promised(rows), cells)
    return table


def promised(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if row.kind != NOT_PROMISED]


def add(table: Table, precision: str, kind: str, rows: Sequence[Row], cells: dict[str, str]) -> None:
    count = Counter(row.outcome for row in rows)
    shown = [str(count[outcome]) if count[outcome] else "·" for outcome in cells]
    functions = len({row.name for row in rows})
    seconds = sum(row.cpu_seconds for row in rows)
    table.add_row(precision, kind, str(functions), str(len(rows)), *shown, f"{seconds:.1f}")


def print_names(rows: Sequence[Row], is_wrong: bool, console: Console) -> None:
    """The names in each cell, with the number of calls where it is not all of them."""
    cells = WRONG_CELLS if is_wrong else RIGHT_CELLS
    calls = Counter(row.name for row in rows)
    names: dict[tuple[str, str, str], Counter[str]] = defaultdict(Counter)
    for row in rows:
        names[row.precision, row.kind, row.outcome][row.name] += 1
    for (precision, kind, outcome), found in sorted(names.items()):
        listed = [name if n == calls[name] else f"{name} ({n} of {calls[name]})" for name, n in found.items()]
        text = f"{precision}, {kind}, {cells.get(outcome, outcome)}: {'; '.join(listed)}"
        console.print(text, soft_wrap=True, highlight=False, markup=False)


def summary_of(rows: Sequence[Row]) -> dict[str, object]:
    """Calls by outcome, for wrong and right functions of each precision; without what is not promised."""
    found: dict[str, object] = {}
    for is_wrong in (True, False):
        for precision in DTYPES:
            mine = promised(row for row in rows if row.is_wrong == is_wrong and row.precision == precision)
            found[f"{'wrong' if is_wrong else 'right'} {precision}"] = dict(Counter(row.outcome for row in mine))
    return found


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.held_out_detection", description=__doc__)
    kinds = sorted({record.kind for record in RECORDS})
    parser.add_argument("--seeds", default=3, type=int, metavar="N", help="seeds 0 to N − 1 (default: 3)")
    parser.add_argument("--precision", nargs="+", choices=tuple(DTYPES), help="only these (default: all)")
    parser.add_argument("--class", dest="kind", nargs="+", choices=kinds, metavar="CLASS", help=", ".join(kinds))
    parser.add_argument("--list", action="store_true", help="the names in each cell")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
