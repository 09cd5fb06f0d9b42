"""How the cost of a check grows with the number of inputs: `python -m benchmarks.sizes`.

Nine functions, gradvet and torch in turn: slow mode at 1 to about 10,000 inputs, fast mode up to 1,000,000, every
entry (`exhaustive=True`) and a wrong function at 1,000. Ratios above 1 mean that gradvet is faster; beside them stand
the calls of the function and the backward passes that each needed. At last, the memory that a whole check of 10,000
inputs and outputs takes above the function's own. A measurement is left out where torch would need more memory than
`--memory` for its Jacobians.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import partial

import torch
from rich.progress import Progress
from rich.table import Table

import gradvet
from benchmarks.counting import counted
from benchmarks.functions import FUNCTIONS, Problem, spoiled
from benchmarks.memory import peak_of_a_check
from benchmarks.report import Pair, duration, geometric_mean, numbers_table, save, wide_console
from benchmarks.timing import interleaved
from gradvet.frontends.torch.opdb import coordinates

# torch keeps the numerical Jacobian, the analytical one and its repeat, and compares them with as many temporaries.
JACOBIANS_IN_MEMORY = 6


@dataclass(frozen=True)
class Mode:
    """What both checkers are asked for, and at which sizes."""

    sizes: tuple[int, ...]
    torch: Mapping[str, bool] = field(default_factory=dict)
    gradvet: Mapping[str, bool] = field(default_factory=dict)
    problem: Callable[[Problem], Problem] = lambda problem: problem
    jacobians: bool = True
    """Whether torch holds whole Jacobians."""


FAST = {"fast_mode": True}
MODES = {
    "slow": Mode((1, 10, 100, 1_000, 10_000)),
    "fast": Mode((10, 100, 1_000, 10_000, 100_000, 1_000_000), FAST, FAST, jacobians=False),
    "exhaustive": Mode((1_000,), gradvet={"exhaustive": True}),
    "wrong": Mode((1_000,), problem=spoiled),
}


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
    named: str = ""
    """The entry that gradvet blames, if it refuses the function."""

    @property
    def pair(self) -> Pair:
        return Pair("torch", "gradvet")

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
            needed = jacobian_bytes(problem) * JACOBIANS_IN_MEMORY if MODES[mode].jacobians else 0
            if needed > wanted.memory * 2**30:
                progress.console.print(f"left out: {name}, n = {size}, {mode}: more than {wanted.memory} GiB")
                continue
            rows.append(row_of(name, size, mode, problem))
    for mode in wanted.modes:
        console.print(table_of([row for row in rows if row.mode == mode], mode))
    means = summarised(rows)
    console.print(table_of_means(means))
    memory = {kind: peak_of_a_check(kind) for kind in ("right", "wrong")} if "memory" in wanted.modes else {}
    for kind, taken in memory.items():
        console.print(f"peak memory of a whole check, 10,000 inputs and outputs, {kind} function: {taken / 1e6:.1f} MB")
    summary: dict[str, object] = {f"{mode} n={size}": figures for (mode, size), figures in means.items()}
    save("sizes", vars(wanted), [vars(row) for row in rows], summary | {"peak bytes": memory}, console)
    return 0


def plan(wanted: argparse.Namespace) -> Iterator[tuple[str, int, str]]:
    names = [name for name in FUNCTIONS if fnmatch(name, wanted.functions)]
    for mode in wanted.modes:
        for size in MODES[mode].sizes if mode in MODES else ():
            if size <= wanted.largest:
                yield from ((name, size, mode) for name in names)


def jacobian_bytes(problem: Problem) -> int:
    function, inputs = problem
    return 8 * coordinates(inputs) * function(*inputs).numel()


def row_of(name: str, size: int, mode: str, given: Problem) -> Row:
    asked = MODES[mode]
    function, inputs = problem = asked.problem(given)
    checkers = {
        "torch": partial(torch.autograd.gradcheck, raise_exception=False, **asked.torch),
        "gradvet": partial(gradvet.gradcheck, **asked.gradvet),
    }
    if mode == "wrong":
        checkers = {key: partial(refused, checker) for key, checker in checkers.items()}
    seconds = interleaved({key: partial(checker, function, inputs) for key, checker in checkers.items()})
    counts = {key: counted(checker, problem) for key, checker in checkers.items()}
    return Row(
        name,
        size,
        coordinates(inputs),
        function(*inputs).numel(),
        mode,
        seconds,
        {key: counter.calls for key, counter in counts.items()},
        {key: counter.backward_passes for key, counter in counts.items()},
        blamed(problem) if mode == "wrong" else "",
    )


def refused(
    checker: Callable[..., bool], function: Callable[..., torch.Tensor], inputs: Sequence[torch.Tensor]
) -> bool:
    """Run a checker to its message; a wrong function that it accepts ends the benchmark."""
    try:
        accepted = checker(function, inputs)
    except gradvet.GradcheckError as error:
        return bool(str(error))
    assert not accepted, "a wrong function was accepted"
    return True


def blamed(problem: Problem) -> str:
    try:
        gradvet.gradcheck(*problem)
    except gradvet.GradcheckError as error:
        if error.report is not None and (mismatches := error.report.failures[0].mismatches):
            return str(mismatches[0].input)
    return "nothing"


def table_of(rows: Sequence[Row], mode: str) -> Table:
    numbers = "inputs", "outputs", "torch", "gradvet", "ratio", "torch evals", "gradvet evals"
    table = numbers_table(f"{mode}, CPU time; calls + backward passes", ("function",), numbers)
    if mode == "wrong":
        table.add_column("blames")
    for row in rows:
        table.add_row(
            row.function,
            f"{row.inputs:,}",
            f"{row.outputs:,}",
            duration(row.seconds["torch"]),
            duration(row.seconds["gradvet"]),
            f"{row.ratio:.2f}",
            *(f"{row.calls[key]:,} + {row.backward_passes[key]:,}" for key in ("torch", "gradvet")),
            *([row.named] if row.named else []),
        )
    return table


def summarised(rows: Sequence[Row]) -> dict[tuple[str, int], dict[str, float]]:
    """Geometric mean and least of the ratios over the functions, and gradvet's evaluations, by mode and size."""
    found = {}
    for mode, size in dict.fromkeys((row.mode, row.size) for row in rows):
        some = [row for row in rows if (row.mode, row.size) == (mode, size)]
        found[mode, size] = {
            "ratio": geometric_mean(row.ratio for row in some),
            "least": min(row.ratio for row in some),
            "calls": geometric_mean(row.calls["gradvet"] for row in some),
            "backward passes": geometric_mean(row.backward_passes["gradvet"] for row in some),
        }
    return found


def table_of_means(means: dict[tuple[str, int], dict[str, float]]) -> Table:
    title = "over the functions: torch / gradvet, and what gradvet evaluates"
    table = numbers_table(title, ("mode", "n"), ("geometric mean", "least", "calls", "backward passes"))
    for (mode, size), figures in means.items():
        table.add_row(mode, f"{size:,}", *(f"{figure:.2f}" for figure in figures.values()))
    return table


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    every = [*MODES, "memory"]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sizes", description=__doc__)
    parser.add_argument("--functions", default="*", metavar="GLOB", help=", ".join(FUNCTIONS))
    parser.add_argument("--modes", nargs="+", default=every, choices=every, metavar="MODE", help=", ".join(every))
    parser.add_argument("--largest", default=1_000_000, type=int, metavar="N", help="leave out larger sizes")
    parser.add_argument("--memory", default=8.0, type=float, metavar="GIB", help="limit on torch's Jacobians")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
