"""How often a passing check changes from one module of gradvet to another: `python -m benchmarks.module_changes`.

A change is a call of a Python function of gradvet, or the resumption of a generator, whose nearest caller within
gradvet is in another module. Methods that Python generates (`__init__` of a data class) have no source and do not
count. The functions are right and small, in float64; each is checked once before it is counted, so that imports do not
count.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import torch

import gradvet
from gradvet.core.results import Verdict

SEED = 20


class Scaled(torch.autograd.Function):
    """x² y, with a derivative of its own."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, y)
        return x * x * y

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        x, y = ctx.saved_tensors
        return 2.0 * grad_output * x * y, grad_output * x * x


def cases() -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Right functions by name, with their inputs."""
    draw = torch.Generator().manual_seed(SEED)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=draw, dtype=torch.float64)

    torch.manual_seed(SEED)
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)).double()
    return {
        "sin": (torch.sin, (normal(5),)),
        "matmul": (torch.matmul, (normal(2, 3), normal(3, 4))),
        "custom Function": (Scaled.apply, (normal(3, 4), normal(3, 4))),
        "module": (module, (normal(5, 3),)),
    }


def own_module(frame: FrameType | None) -> str | None:
    """The module of gradvet whose source a frame executes; None if there is none."""
    if frame is None or frame.f_code.co_filename == "<string>":
        return None
    name = str(frame.f_globals.get("__name__", ""))
    return name if name.split(".")[0] == "gradvet" else None


def changes_of(call: Callable[[], object]) -> Counter[tuple[str, str]]:
    """How often each pair of a calling module and a called function of another module occurs during a call."""
    found: Counter[tuple[str, str]] = Counter()

    def observe(frame: FrameType, event: str, _: object) -> None:
        callee = own_module(frame) if event == "call" else None
        if callee is None:
            return
        back = frame.f_back
        while back is not None and own_module(back) is None:
            back = back.f_back
        caller = own_module(back)
        if caller not in (None, callee):
            found[str(caller), f"{callee}.{frame.f_code.co_qualname}"] += 1

    sys.setprofile(observe)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--show", type=int, default=0, help="most frequent pairs of caller and callee to print")
    wanted = parser.parse_args(arguments)
    for name, (function, inputs) in cases().items():
        check = partial(gradvet.check, function, inputs, seed=SEED)
        report = check()
        if report.verdict is not Verdict.PASS:
            raise SystemExit(f"{name}: {report}")
        found = changes_of(check)
        cost = f"{report.cost.forwards} calls, {report.cost.vjps} VJPs, {report.cost.jvps} JVPs"
        print(f"{name}: {found.total()} module changes; {cost}")
        for (caller, callee), times in found.most_common(wanted.show):
            print(f"  {times:5} {caller} -> {callee}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
