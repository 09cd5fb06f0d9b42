"""gradvet beside torch on a CUDA device: `python -m benchmarks.gpu`.

The functions of `benchmarks.functions` at about 1,000 inputs and one opaque kernel, an `autograd.Function` that `vmap`
knows nothing of: slow and fast mode, and `exhaustive=True`, whose columns come from `vmap`, from a captured CUDA graph
or from plain calls. Wall time with the device waited for, since launches are what costs; the two take turns. Beside the
ratios stand the calls of the function and the backward passes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

import gradvet
from benchmarks.counting import counted
from benchmarks.functions import FUNCTIONS, Problem, on_device, point
from benchmarks.report import duration, geometric_mean, save, wide_console

REPEATS = 7
LONG = 0.2
"""Seconds above which one measurement is enough."""

NONDETERMINISM = 1e-9
"""Atomic additions on a GPU come in any order."""


class Opaque(torch.autograd.Function):
    """x sin x without a vmap rule, as a user's own kernel is."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin() * x

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        gradient: Tensor = cotangents[0] * (x.cos() * x + x.sin())
        return gradient


def opaque(n: int) -> Problem:
    return Opaque.apply, (point(n),)


MODES: dict[str, tuple[dict[str, bool], dict[str, bool]]] = {
    "slow": ({"fast_mode": False}, {"fast_mode": False}),
    "fast": ({"fast_mode": True}, {"fast_mode": True}),
    "exhaustive": ({"fast_mode": False}, {"exhaustive": True}),
}
"""What torch and gradvet are asked for."""


def main(arguments: list[str] | None = None) -> int:
    wanted = parsed(arguments)
    console = wide_console()
    if not torch.cuda.is_available():
        console.print("there is no CUDA device here")
        return 1
    rows: list[dict[str, object]] = []
    summary: dict[str, object] = {}
    makers = {**FUNCTIONS, "opaque Function": opaque}
    for mode, (theirs, ours) in MODES.items():
        table = Table(title=f"{mode}, n = {wanted.size}, {torch.cuda.get_device_name()}: wall time, calls + backward")
        for heading in ("function", "torch", "gradvet", "ratio", "torch evals", "gradvet evals"):
            table.add_column(heading, justify="left" if heading == "function" else "right")
        ratios = []
        for name, make in makers.items():
            function, inputs = problem = on_device(make(wanted.size), "cuda")
            torch_check = partial(torch.autograd.gradcheck, nondet_tol=NONDETERMINISM, **theirs)
            gradvet_check = partial(gradvet.gradcheck, nondet_tol=NONDETERMINISM, **ours)
            seconds = in_turn([partial(check, function, inputs) for check in (torch_check, gradvet_check)])
            counts = [counted(check, problem) for check in (torch_check, gradvet_check)]
            evaluations = [f"{count.calls:,} + {count.backward_passes:,}" for count in counts]
            ratios.append(seconds[0] / seconds[1])
            table.add_row(name, duration(seconds[0]), duration(seconds[1]), f"{ratios[-1]:.2f}", *evaluations)
            rows.append({"mode": mode, "function": name, "seconds": seconds, "evaluations": evaluations})
        summary[mode] = {"geometric mean": geometric_mean(ratios), "least": min(ratios)}
        console.print(table)
    console.print(summary)
    path = save("gpu", vars(wanted), rows, {"device": torch.cuda.get_device_name(), **summary})
    console.print(f"raw numbers: {path}", soft_wrap=True)
    return 0


def in_turn(checks: list[Callable[[], object]]) -> list[float]:
    """The median wall time of each; whoever takes long is measured once."""
    taken: list[list[float]] = [[] for _ in checks]
    for _ in range(REPEATS):
        for check, measured in zip(checks, taken, strict=True):
            if measured and measured[0] > LONG:
                continue
            torch.cuda.synchronize()
            started = time.perf_counter()
            check()
            torch.cuda.synchronize()
            measured.append(time.perf_counter() - started)
    return [statistics.median(measured) for measured in taken]


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--size", default=1_000, type=int, metavar="N", help="about so many inputs")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
