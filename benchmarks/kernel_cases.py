"""Kernels with inputs and the same function in plain torch, planted faults, and the check of one of them."""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

import gradvet
from gradvet.core.results import Report

Inputs: TypeAlias = tuple[Any, ...]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

COMPARISONS = ("reverse", "precision", "reference", "points")
"""Checks that compare the derivative with something."""


class Draw:
    """Random tensors of one dtype on one device. It seeds torch's generator of the CPU."""

    def __init__(self, dtype: torch.dtype, device: str, seed: int) -> None:
        self._dtype, self._device = dtype, device
        torch.manual_seed(seed)

    def cast(self, inputs: Inputs) -> Inputs:
        """Inputs in float32, with their floating-point tensors as leaves of this dtype."""
        return tuple(
            self.placed(x.detach(), None if x.is_floating_point() else x.dtype).requires_grad_(x.requires_grad)
            if isinstance(x, Tensor)
            else x
            for x in inputs
        )

    def constant(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Normal numbers without a gradient."""
        return self.placed(torch.randn(shape), dtype)

    def placed(self, values: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        return values.to(self._device, dtype or self._dtype)

    def normal(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        return self.constant(*shape, dtype=dtype).requires_grad_()

    def weights(self, *shape: int) -> Tensor:
        """Numbers around 1."""
        return self.placed(1.0 + 0.2 * torch.randn(shape)).requires_grad_()

    def log_probabilities(self, *shape: int) -> Tensor:
        return self.placed(torch.log_softmax(torch.randn(shape), -1))

    def targets(self, number: int, classes: int) -> Tensor:
        return torch.randint(classes, (number,)).to(self._device)

    def angles(self, *shape: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines of angles that are equal in both halves of the last dimension."""
        half = torch.randn(*shape[:-1], shape[-1] // 2)
        both = torch.cat([half, half], -1)
        return self.placed(both.cos()), self.placed(both.sin())


@dataclass(frozen=True)
class Entry:
    """A kernel, the same function in plain torch, and how to make its inputs."""

    name: str
    kernel: Callable[..., Any]
    eager: Callable[..., Any]
    build: Callable[[Draw], Inputs]

    def inputs(self, dtype: torch.dtype, device: str, seed: int) -> Inputs:
        return self.build(Draw(dtype, device, seed))


Spoil = Callable[[Tensor, int], object]
"""Spoils a gradient in place; the number is an element whose gradient is not zero as a rule."""


def _row(gradient: Tensor, _: int) -> None:
    gradient[(-1,) * (gradient.dim() - 1)] = 0.0


def _tail(gradient: Tensor, _: int) -> None:
    gradient[..., -max(1, gradient.shape[-1] // 8) :] = 0.0


def _doubled(gradient: Tensor, element: int) -> None:
    place = torch.unravel_index(torch.tensor(element), gradient.shape)
    if not bool(gradient[place]):  # outside of a mask or of a support: another one
        place = torch.unravel_index((gradient != 0).flatten().to(torch.int8).argmax().cpu(), gradient.shape)
    gradient[place] *= 2.0


FAULTS: dict[str, Spoil] = {
    "factor 0.9": lambda gradient, _: gradient.mul_(0.9),
    "factor 1.03": lambda gradient, _: gradient.mul_(1.03),
    "sign": lambda gradient, _: gradient.neg_(),
    "lost row": _row,
    "lost tail": _tail,
    "doubled entry": _doubled,
}
"""What is done to the gradient of the first input, in place."""


def planted(kernel: Callable[..., Any], spoil: Spoil) -> Callable[..., Any]:
    """The kernel with a spoiled gradient of its first input."""

    class Spoiled(torch.autograd.Function):
        """The identity. The gradient stays in the memory of the input if the kernel returns it there."""

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.memory, ctx.element = x.untyped_storage().data_ptr(), int(x.argmax())
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, *cotangents: Tensor) -> Tensor:
            gradient = cotangents[0]
            if gradient.untyped_storage().data_ptr() != ctx.memory:
                gradient = gradient.clone()
            spoil(gradient, ctx.element)
            return gradient

    def spoiled(x: Tensor, *others: Any) -> Any:
        return kernel(Spoiled.apply(x), *others)  # type: ignore[no-untyped-call]

    return spoiled


@dataclass(frozen=True)
class Case:
    """One check: a kernel by name, a dtype, and a fault or none."""

    kernel: str
    dtype: str
    fault: str
    has_reference: bool
    device: str
    seed: int
    compares_only: bool = False
    """Whether the checks that need no comparison, such as `input_layout`, are left out."""


@dataclass(frozen=True)
class Row:
    """What became of a case."""

    case: Case
    verdict: str
    first: float = 0.0
    """Seconds of the first call and its backward pass."""
    seconds: float = 0.0
    findings: tuple[str, ...] = ()
    is_named: bool = False
    """Whether a comparison of the derivative failed, and not only another check."""
    calls: tuple[int, int] = (0, 0)
    """Forward and backward calls of the check."""

    def __str__(self) -> str:
        case, text = self.case, "; ".join(self.findings).replace("|", "\\|") or " "
        return (
            f"| {case.kernel} | {case.dtype} | {case.fault or ' '} | {self.verdict} | {self.first:.1f} | "
            f"{self.seconds:.1f} | {text} |"
        )


def entries_of(module: str) -> Mapping[str, Entry]:
    """The kernels of a module by name. Runs first in a worker process."""
    return {entry.name: entry for entry in importlib.import_module(module).ENTRIES}


def _first_call(kernel: Callable[..., Any], inputs: Inputs) -> float:
    """Seconds of one call and its backward pass, on copies."""
    copies = [x.detach().clone().requires_grad_(x.requires_grad) if isinstance(x, Tensor) else x for x in inputs]
    started = time.perf_counter()
    found = kernel(*copies)
    outputs = [
        y for y in (found if isinstance(found, tuple) else (found,)) if isinstance(y, Tensor) and y.requires_grad
    ]
    torch.autograd.backward(outputs, [torch.ones_like(y) for y in outputs])
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - started


def measured(entries: Mapping[str, Entry], case: Case) -> Row:
    """The check of one kernel in one dtype, right as shipped or with a fault.

    A kernel that faults on a GPU takes the device of its process with it: the process ends, as the case's result.
    """
    entry = entries[case.kernel]
    kernel = planted(entry.kernel, FAULTS[case.fault]) if case.fault else entry.kernel
    words: dict[str, Any] = {"reference": entry.eager} if case.has_reference else {}
    if case.compares_only:
        words["checks"] = ("reference", "reverse") if case.has_reference else ("reverse", "precision")
    try:
        inputs = entry.inputs(DTYPES[case.dtype], case.device, case.seed)
        first = _first_call(kernel, inputs)
    except Exception as error:
        _end_without_device(case.device, f"the first call: {one_line(error)}")
        return Row(case, "refused", findings=(one_line(error),))
    started = time.perf_counter()
    try:
        report = gradvet.check(kernel, inputs, seed=case.seed, **words)
    except Exception as error:
        _end_without_device(case.device, f"the check: {one_line(error)}")
        return Row(case, "ERROR", first, time.perf_counter() - started, (one_line(error),))
    seconds = time.perf_counter() - started
    is_named = any(finding.check in COMPARISONS for finding in report.failures)
    calls = report.cost.forwards, report.cost.vjps
    return Row(case, str(report.verdict), first, seconds, tuple(_headlines(report)), is_named, calls)


def _end_without_device(device: str, reason: str) -> None:
    """End the process if the device answers no more, with the reason as its last words."""
    if not device.startswith("cuda"):
        return
    try:
        torch.cuda.synchronize()
    except Exception:
        print(f"the device is lost in {reason}", file=sys.stderr, flush=True)
        os._exit(1)


def one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:160]}"


def _headlines(report: Report) -> Iterator[str]:
    """What failed or was undecided, in one line each; for an undecided ledger, which input."""
    for finding in report.findings:
        if str(finding.verdict) in ("FAIL", "INCONCLUSIVE"):
            place = (
                f" (d {finding.mismatches[0].output} / d {finding.mismatches[0].input})" if finding.mismatches else ""
            )
            yield f"{finding.check}: {finding.headline}{place}"
    for row in report.open_rows if not report.failures else ():
        yield f"ledger: {row.input}, {row.mode}, {row.precision}: {row.compared}/{row.elements}, {row.resolution}"
