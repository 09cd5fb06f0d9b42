"""How the cost of a check grows with the number of inputs: `python -m benchmarks.sizes`.

Nine functions at about 10, 100 and 1,000 inputs (`--large`: also 10,000, and in fast mode up to 1,000,000), gradvet and
torch in turn. Ratios above 1 mean that gradvet is faster; beside them stand the calls of the function and the backward
passes that each needed. A mode is left out where torch would need more memory than `--memory` for its Jacobians.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial

import torch
from rich.progress import Progress
from rich.table import Table

from benchmarks.counting import counted
from benchmarks.functions import FUNCTIONS, Problem
from benchmarks.report import Pair, duration, geometric_mean, save, wide_console
from benchmarks.timing import interleaved
from gradvet.frontends.torch.opdb.samples import coordinates
from tests.differential.verdicts import gradvet_contestant, torch_contestant

SIZES = (10, 100, 1_000)
LARGE = (10_000,)
LARGE_FAST = (100_000, 1_000_000)
# torch keeps the numerical Jacobian, the analytical one and its repeat, and compares them with as many temporaries.
JACOBIANS_IN_MEMORY = 6


@dataclass(frozen=True)
class Row:
    """One function at one size in one mode: seconds, calls and backward passes of both checkers."""

    function: str
    size: int
    inputs: int
    outputs: int
    mode: str
    seconds: dict[str, float]
    calls: dict[str, int]
    backward_passes: dict[str, int]

    @property
    def pair(self) -> Pair:
        return Pair(f"torch {self.mode}", f"gradvet {self.mode}")

    @property
    def ratio(self) -> float:
        return self.pair.ratio(self.seconds)


def main(arguments: list[str] | None = None) -> int:
    wanted = parsed(arguments)
    torch.set_num_threads(1)
    console = wide_console()
    rows = []
    with Progress(console=console) as progress:
        for name, size, mode in progress.track(list(plan(wanted)), description="measurements"):
            problem = FUNCTIONS[name](size)
            if mode == "slow" and jacobian_bytes(problem) * JACOBIANS_IN_MEMORY > wanted.memory * 2**30:
                progress.console.print(f"left out: {name}, n = {size}, slow mode: more than {wanted.memory} GiB")
                continue
            rows.append(row_of(name, size, mode, problem))
    for mode in ("slow", "fast"):
        console.print(table_of([row for row in rows if row.mode == mode], mode))
    means = mean_ratios(rows)
    console.print(table_of_means(means))
    path = save("sizes", vars(wanted), [vars(row) for row in rows], {f"{m} n={n}": r for (m, n), r in means.items()})
    console.print(f"raw numbers: {path}", soft_wrap=True)
    return 0


def plan(wanted: argparse.Namespace) -> Iterator[tuple[str, int, str]]:
    names = [name for name in FUNCTIONS if fnmatch(name, wanted.functions)]
    for mode in ("slow", "fast"):
        sizes = SIZES + (LARGE if wanted.large else ()) + (LARGE_FAST if wanted.large and mode == "fast" else ())
        for size in sizes:
            yield from ((name, size, mode) for name in names)


def jacobian_bytes(problem: Problem) -> int:
    function, inputs = problem
    return 8 * coordinates(inputs) * function(*inputs).numel()


def row_of(name: str, size: int, mode: str, problem: Problem) -> Row:
    function, inputs = problem
    contestants = [make(fast_mode=mode == "fast") for make in (torch_contestant, gradvet_contestant)]
    checkers = {entrant.name: partial(entrant.gradcheck, fast_mode=entrant.fast_mode) for entrant in contestants}
    counts = {entrant: counted(checker, problem) for entrant, checker in checkers.items()}
    seconds = interleaved({entrant: partial(checker, function, inputs) for entrant, checker in checkers.items()})
    return Row(
        name,
        size,
        coordinates(inputs),
        function(*inputs).numel(),
        mode,
        seconds,
        {entrant: counter.calls for entrant, counter in counts.items()},
        {entrant: counter.backward_passes for entrant, counter in counts.items()},
    )


def table_of(rows: Sequence[Row], mode: str) -> Table:
    table = Table(title=f"{mode} mode, CPU time; calls + backward passes")
    for heading in ("function", "inputs", "outputs", "torch", "gradvet", "ratio", "torch evals", "gradvet evals"):
        table.add_column(heading, justify="left" if heading == "function" else "right")
    for row in rows:
        torch_name, gradvet_name = row.pair.baseline, row.pair.candidate
        table.add_row(
            row.function,
            f"{row.inputs:,}",
            f"{row.outputs:,}",
            duration(row.seconds[torch_name]),
            duration(row.seconds[gradvet_name]),
            f"{row.ratio:.2f}",
            f"{row.calls[torch_name]:,} + {row.backward_passes[torch_name]:,}",
            f"{row.calls[gradvet_name]:,} + {row.backward_passes[gradvet_name]:,}",
        )
    return table


def mean_ratios(rows: Sequence[Row]) -> dict[tuple[str, int], float]:
    """Geometric mean of the ratios over the functions, by mode and size."""
    kinds = dict.fromkeys((row.mode, row.size) for row in rows)
    return {kind: geometric_mean(row.ratio for row in rows if (row.mode, row.size) == kind) for kind in kinds}


def table_of_means(means: dict[tuple[str, int], float]) -> Table:
    table = Table("mode", "n", title="geometric mean over the functions, torch / gradvet")
    table.add_column("ratio", justify="right")
    for (mode, size), ratio in means.items():
        table.add_row(mode, f"{size:,}", f"{ratio:.2f}")
    return table


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sizes", description=__doc__)
    parser.add_argument("--functions", default="*", metavar="GLOB", help=", ".join(FUNCTIONS))
    parser.add_argument("--large", action="store_true", help="n = 10,000 too, and up to 1,000,000 in fast mode")
    parser.add_argument("--memory", default=4.0, type=float, metavar="GIB", help="limit on torch's slow mode")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
