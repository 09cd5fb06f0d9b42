"""gradvet beside torch over the samples of PyTorch's operator database: `python -m benchmarks.opdb [FILE]`.

Every sample is checked by torch and by gradvet, in slow and in fast mode, in turn: once for the verdict and the number
of evaluations, once for the CPU time. All samples count, whatever the verdict; those on which verdicts differ are
listed. Ratios above 1 mean that gradvet is faster. The operators come in a random order fixed by `--seed`, so that what
`--time-budget` leaves stands for all. Rows are appended to FILE, operator by operator; operators that it has are not
measured again, so that the whole database can be measured in parts, and with `--share K/N` in N processes. The tables
are about all rows of FILE; operators without a sample and operators that are left are named.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.counting import counting
from benchmarks.report import Pair, duration, geometric_mean, numbers_table, wide_console
from benchmarks.timing import cpu_seconds, quiet_collector
from gradvet.frontends.torch.opdb import coordinates, operators
from tests.differential.samples import DTYPES, Derivative, Sample, draw, small
from tests.differential.verdicts import Checker, answer, gradvet_checker, torch_checker, verdict_of

SLOW = Pair("torch slow", "gradvet slow")
FAST = Pair("torch fast", "gradvet fast")

MOST_EVALUATIONS = 3.0
"""Fast mode may evaluate this many times as often as torch's before it accepts."""

MOST_ENTRIES = 1_000_000
"""Entries of a Jacobian above which slow mode is not measured, because torch holds several such matrices."""

MUCH_SLOWER = 3.0, 0.1
"""A call is listed if it takes this many times as long as torch's, and this many seconds longer."""


@dataclass(frozen=True)
class Row:
    """One sample: its size, and for each checker its verdict, evaluations and CPU seconds.

    An operator without a sample has one row without checkers, whose label says why.
    """

    label: str
    operator: str
    inputs: int
    entries: int
    verdicts: dict[str, str]
    evaluations: dict[str, int]
    seconds: dict[str, float]


def main(arguments: list[str] | None = None) -> int:
    wanted = parsed(arguments)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    console = wide_console()
    check = Derivative.REVERSE_OVER_REVERSE if wanted.gradgrad else Derivative.REVERSE
    wanted.file.parent.mkdir(parents=True, exist_ok=True)
    rows = [Row(**json.loads(line)) for line in wanted.file.read_text().splitlines()] if wanted.file.exists() else []
    known, deadline = {row.operator for row in rows}, time.perf_counter() + wanted.time_budget
    chosen = sorted(operators(wanted.ops), key=lambda operator: str(operator.full_name))
    random.Random(wanted.seed).shuffle(chosen)
    first, every = map(int, wanted.share.split("/"))
    chosen = chosen[first - 1 :: every]
    left = [operator for operator in chosen if operator.full_name not in known]
    while left and time.perf_counter() < deadline:
        found = measured(left.pop(0), wanted, check)
        with wanted.file.open("a") as file:
            file.writelines(json.dumps(vars(row)) + "\n" for row in found)
        rows += found
    report_extent(rows, left, console)
    for pair in (SLOW, FAST):
        some = [row for row in rows if pair.baseline in row.seconds and min(row.seconds.values()) > 0.0]
        if some:
            console.print(overview(some, pair), slowest(some, pair))
            report_losses(some, pair, console)
    report_differences(rows, console)
    return 0


def measured(operator: Any, wanted: argparse.Namespace, check: Derivative) -> list[Row]:
    """The rows of an operator, at least one."""
    name, reason = str(operator.full_name), "PyTorch declares no such derivative in these types"
    slow, fast = ([make(fast_mode=mode) for make in (torch_checker, gradvet_checker)] for mode in (False, True))
    rows = []
    for dtype in DTYPES:
        try:
            drawn = draw(operator, dtype, check=check)
        except Exception as error:
            drawn, reason = [], f"{type(error).__name__}: {error}"
        smallest = sorted(drawn, key=lambda sample: coordinates(sample.inputs))[:1]
        for sample in small(drawn, wanted.samples, wanted.max_entries) or smallest:
            inputs = coordinates(sample.inputs)
            entries = inputs**2 + sample.entries() if check.is_second_order else sample.entries()
            rows.append(row_of(sample, [*slow, *fast] if entries <= MOST_ENTRIES else fast))
    return rows or [Row(f"{name}: {reason}", name, 0, 0, {}, {}, {})]


def row_of(sample: Sample, checkers: Sequence[Checker]) -> Row:
    verdicts, evaluations, seconds = {}, {}, {}
    for checker in checkers:
        with counting() as count:
            verdict = verdict_of(checker, replace(sample, function=count.counted(sample.function)))
        verdicts[checker.name] = str(verdict)
        evaluations[checker.name] = count.calls + count.backward_passes
    with quiet_collector():
        for checker in checkers:
            seconds[checker.name] = cpu_seconds(partial(answer, partial(checker.run, sample)))
    return Row(
        sample.label, sample.operator, coordinates(sample.inputs), sample.entries(), verdicts, evaluations, seconds
    )


def overview(rows: Sequence[Row], pair: Pair) -> Table:
    numbers = "inputs", "samples", "torch", "gradvet", "total ratio", "geometric mean", "gradvet slower"
    table = numbers_table(f"{pair}: CPU time, one thread", (), numbers)
    for name, some in groups(rows):
        seconds = [row.seconds for row in some]
        ratios = [pair.ratio(row) for row in seconds]
        table.add_row(
            name,
            str(len(some)),
            duration(sum(row[pair.baseline] for row in seconds)),
            duration(sum(row[pair.candidate] for row in seconds)),
            f"{pair.total_ratio(seconds):.2f}",
            f"{geometric_mean(ratios):.2f}",
            f"{sum(ratio < 1 for ratio in ratios)}",
        )
    return table


def groups(rows: Sequence[Row]) -> Iterator[tuple[str, list[Row]]]:
    """All rows, then those with few, some and many real inputs, where there are any."""
    yield "all", list(rows)
    for name, low, high in (("0", 0, 0), ("1-10", 1, 10), ("11-100", 11, 100), ("over 100", 101, sys.maxsize)):
        some = [row for row in rows if low <= row.inputs <= high]
        if some:
            yield name, some


def slowest(rows: Sequence[Row], pair: Pair, count: int = 12) -> Table:
    numbers = "inputs", "entries", "torch", "gradvet", "ratio", "torch evals", "gradvet evals"
    table = numbers_table(f"most time lost, {pair}", ("sample",), numbers)
    lost = sorted(rows, key=lambda row: row.seconds[pair.baseline] - row.seconds[pair.candidate])
    for row in lost[:count]:
        both = pair.baseline, pair.candidate
        table.add_row(
            row.label,
            str(row.inputs),
            str(row.entries),
            *(duration(row.seconds[name]) for name in both),
            f"{pair.ratio(row.seconds):.2f}",
            *(str(row.evaluations[name]) for name in both),
        )
    return table


def report_losses(rows: Sequence[Row], pair: Pair, console: Console) -> None:
    """Calls that are much slower than torch's, and calls of fast mode that evaluate more often than they may."""
    factor, more = MUCH_SLOWER
    for row in rows:
        ours, theirs = row.seconds[pair.candidate], row.seconds[pair.baseline]
        if ours > factor * theirs and ours > more + theirs:
            console.print(f"  much slower: {row.label}: {duration(theirs)}, {duration(ours)}", highlight=False)
        calls = row.evaluations[pair.baseline], row.evaluations[pair.candidate]
        is_accepted = row.verdicts[pair.candidate] == "pass"
        if pair is FAST and is_accepted and calls[1] > MOST_EVALUATIONS * calls[0]:
            console.print(f"  more evaluations: {row.label}: {calls[0]}, {calls[1]}", highlight=False)


def report_extent(rows: Sequence[Row], left: Sequence[Any], console: Console) -> None:
    """How much was measured, and every operator that was not."""
    samples = [row for row in rows if row.verdicts]
    only_fast = sum(SLOW.baseline not in row.verdicts for row in samples)
    console.print(f"{len(samples)} samples of {len({row.operator for row in samples})} operators")
    console.print(f"  {only_fast} of these samples in fast mode only: more than {MOST_ENTRIES:,} entries")
    without = [row.label for row in rows if not row.verdicts]
    for title, names in (
        (f"{len(without)} operators without a sample", without),
        (f"{len(left)} operators left", [str(operator.full_name) for operator in left]),
    ):
        console.print("\n  ".join([title, *names]), highlight=False, markup=False)


def report_differences(rows: Sequence[Row], console: Console) -> None:
    differing = [row for row in rows if len(set(row.verdicts.values())) > 1]
    console.print(f"the verdicts differ on {len(differing)} samples")
    for row in differing:
        console.print(f"  {row.label}: {row.verdicts}", highlight=False)


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.opdb", description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, default=Path("build/opdb.jsonl"), help="rows, one per line")
    parser.add_argument("--ops", default="*", metavar="GLOB", help="operators by full name (default: all)")
    parser.add_argument("--samples", default=6, type=int, metavar="N", help="at most N per operator and dtype")
    parser.add_argument(
        "--max-entries",
        default=1_000_000,
        type=int,
        metavar="N",
        help="numbers in a sample's Jacobian; the smallest sample counts in any case",
    )
    parser.add_argument(
        "--time-budget", default=float("inf"), type=float, metavar="SECONDS", help="begin no operator after that time"
    )
    parser.add_argument("--gradgrad", action="store_true", help="second order: gradgradcheck")
    parser.add_argument("--share", default="1/1", metavar="K/N", help="every N-th operator, from the K-th on")
    parser.add_argument("--seed", default=0, type=int, help="order of the operators")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
