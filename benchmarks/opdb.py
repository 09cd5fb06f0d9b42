"""gradvet beside torch over the samples of PyTorch's operator database: `python -m benchmarks.opdb`.

Every sample is checked by torch and by gradvet, in slow and in fast mode, in turn. Ratios above 1 mean that gradvet is
faster. Only samples that all contestants accept count for the ratios: a refusal is another amount of work. The
operators come in a random order fixed by `--seed`, so that what `--limit` or `--time-budget` leaves stands for all.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.report import Pair, duration, geometric_mean, save, wide_console
from benchmarks.timing import interleaved
from gradvet.frontends.torch.opdb.operators import DTYPES, Check, dtype_name, operators
from gradvet.frontends.torch.opdb.samples import Sample, coordinates, draw, small
from tests.differential.verdicts import Contestant, Kind, Verdict, gradvet_contestant, torch_contestant, verdict_of

SLOW = Pair("torch slow", "gradvet slow")
FAST = Pair("torch fast", "gradvet fast")
ACCEPTED = str(Verdict(Kind.PASS))


@dataclass(frozen=True)
class Row:
    """One sample: its size, what each contestant said, and how long each took."""

    label: str
    operator: str
    dtype: str
    inputs: int
    entries: int
    verdicts: dict[str, str]
    seconds: dict[str, float]

    @property
    def is_accepted_by_all(self) -> bool:
        return set(self.verdicts.values()) == {ACCEPTED}


def main(arguments: list[str] | None = None) -> int:
    wanted = parsed(arguments)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    console = wide_console()
    check = Check.REVERSE_OVER_REVERSE if wanted.gradgrad else Check.REVERSE
    pairs = [FAST] if wanted.gradgrad else [SLOW, FAST]
    rows = list(measured(wanted, check, pairs, console))
    accepted = [row for row in rows if row.is_accepted_by_all]
    if not accepted:
        console.print("no sample was accepted by all contestants")
        return 1
    for pair in pairs:
        console.print(overview(accepted, pair), slowest(accepted, pair))
    report_refusals(rows, console)
    path = save("opdb", vars(wanted), [vars(row) for row in rows], summary(rows, accepted, pairs))
    console.print(f"raw numbers: {path}", soft_wrap=True)
    return 0


def entrants() -> dict[str, Contestant]:
    every = [make(fast_mode=mode) for mode in (False, True) for make in (torch_contestant, gradvet_contestant)]
    return {contestant.name: contestant for contestant in every}


def measured(wanted: argparse.Namespace, check: Check, pairs: Sequence[Pair], console: Console) -> Iterator[Row]:
    contestants = entrants()
    teams = [[contestants[pair.baseline], contestants[pair.candidate]] for pair in pairs]
    deadline = time.perf_counter() + wanted.time_budget
    chosen = operators(wanted.ops)
    random.Random(wanted.seed).shuffle(chosen)
    count = 0
    with Progress(console=console) as progress:
        for operator in progress.track(chosen, description="operators"):
            for dtype in DTYPES:
                for sample in small(draw(operator, dtype, check=check), wanted.samples, wanted.max_entries):
                    if count == wanted.limit or time.perf_counter() > deadline:
                        return
                    count += 1
                    yield row_of(sample, teams)


def row_of(sample: Sample, teams: Sequence[Sequence[Contestant]]) -> Row:
    verdicts = {contestant.name: str(verdict_of(contestant, sample)) for team in teams for contestant in team}
    seconds: dict[str, float] = {}
    if set(verdicts.values()) == {ACCEPTED}:
        for team in teams:
            seconds |= interleaved({contestant.name: partial(contestant.run, sample) for contestant in team})
    return Row(
        sample.label,
        sample.operator,
        dtype_name(sample.dtype),
        coordinates(sample.inputs),
        sample.entries(),
        verdicts,
        seconds,
    )


def overview(rows: Sequence[Row], pair: Pair) -> Table:
    table = Table(title=f"{pair}: CPU time, one thread")
    for heading in ("inputs", "samples", "torch", "gradvet", "total ratio", "geometric mean", "gradvet slower"):
        table.add_column(heading, justify="right")
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
    table = Table(title=f"least {pair}")
    for heading in ("sample", "inputs", "entries", "torch", "gradvet", "ratio"):
        table.add_column(heading, justify="left" if heading == "sample" else "right")
    for row in sorted(rows, key=lambda row: pair.ratio(row.seconds))[:count]:
        seconds = row.seconds
        table.add_row(
            row.label,
            str(row.inputs),
            str(row.entries),
            duration(seconds[pair.baseline]),
            duration(seconds[pair.candidate]),
            f"{pair.ratio(seconds):.2f}",
        )
    return table


def report_refusals(rows: Sequence[Row], console: Console) -> None:
    refused = [row for row in rows if not row.is_accepted_by_all]
    parted = [row for row in refused if len(set(row.verdicts.values())) > 1]
    console.print(f"{len(refused)} samples not accepted by all and not timed; the verdicts part on {len(parted)}")
    for row in parted:
        console.print(f"  {row.label}: {row.verdicts}", highlight=False)


def summary(rows: Sequence[Row], accepted: Sequence[Row], pairs: Sequence[Pair]) -> dict[str, object]:
    seconds = [row.seconds for row in accepted]
    return {
        "samples": len(rows),
        "accepted by all": len(accepted),
        **{
            str(pair): {
                "total ratio": pair.total_ratio(seconds),
                "geometric mean": geometric_mean(pair.ratio(row) for row in seconds),
            }
            for pair in pairs
        },
    }


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.opdb", description=__doc__)
    parser.add_argument("--ops", default="*", metavar="GLOB", help="operators by full name (default: all)")
    parser.add_argument("--samples", default=6, type=int, metavar="N", help="at most N per operator and dtype")
    parser.add_argument(
        "--max-entries", default=1_000_000, type=int, metavar="N", help="numbers in a sample's Jacobian"
    )
    parser.add_argument("--limit", default=-1, type=int, metavar="N", help="stop after N samples")
    parser.add_argument(
        "--time-budget", default=float("inf"), type=float, metavar="SECONDS", help="stop after that time"
    )
    parser.add_argument("--gradgrad", action="store_true", help="second order: gradgradcheck in fast mode")
    parser.add_argument("--seed", default=0, type=int, help="order of the operators")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
