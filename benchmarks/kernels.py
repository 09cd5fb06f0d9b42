"""gradvet on the kernels of Liger as they ship, and with planted faults: `python -m benchmarks.kernels`.

Needs Liger and Triton, and a GPU: without one, `TRITON_INTERPRET=1` runs most of them on the CPU in float32. Prints a
markdown table with a row for each kernel, dtype and fault, and totals. `--reference` passes the same function in plain
torch as `reference=`. The first call, which compiles, is timed apart from the check.
"""

from __future__ import annotations

import argparse
import statistics
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import gradvet
from benchmarks.liger import ENTRIES, Entry, Inputs
from gradvet.core.results import Report

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

COMPARISONS = ("reverse", "precision", "reference", "points")
"""Checks that compare the derivative with something."""

Spoil = Callable[[Tensor, int], object]
"""Spoils a gradient in place; the number is an element whose gradient is not zero as a rule."""


def _row(gradient: Tensor, _: int) -> None:
    gradient[(-1,) * (gradient.dim() - 1)] = 0.0


def _tail(gradient: Tensor, _: int) -> None:
    gradient[..., -max(1, gradient.shape[-1] // 8) :] = 0.0


def _doubled(gradient: Tensor, element: int) -> None:
    gradient[torch.unravel_index(torch.tensor(element), gradient.shape)] *= 2.0


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
class Row:
    """One check."""

    kernel: str
    dtype: str
    fault: str
    verdict: str
    first: float
    """Seconds of the first call and its backward pass."""
    seconds: float
    findings: tuple[str, ...] = ()
    is_named: bool = False
    """Whether a comparison of the derivative failed, and not only another check."""

    def __str__(self) -> str:
        text = "; ".join(self.findings).replace("|", "\\|") or " "
        return (
            f"| {self.kernel} | {self.dtype} | {self.fault or ' '} | {self.verdict} | {self.first:.1f} | "
            f"{self.seconds:.1f} | {text} |"
        )


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


def measured(entry: Entry, dtype: str, fault: str, settings: argparse.Namespace) -> Row:
    """The check of one kernel in one dtype, right as shipped or with a fault."""
    kernel = planted(entry.kernel, FAULTS[fault]) if fault else entry.kernel
    words: dict[str, Any] = {"reference": entry.eager} if settings.reference else {}
    try:
        inputs = entry.inputs(DTYPES[dtype], settings.device, settings.seed)
        first = _first_call(kernel, inputs)
    except Exception as error:
        return Row(entry.name, dtype, fault, "refused", 0.0, 0.0, (_headline(error),))
    started = time.perf_counter()
    try:
        report = gradvet.check(kernel, inputs, seed=settings.seed, **words)
    except Exception as error:
        if settings.verbose:
            traceback.print_exc()
        return Row(entry.name, dtype, fault, "ERROR", first, time.perf_counter() - started, (_headline(error),))
    seconds = time.perf_counter() - started
    if settings.verbose:
        print(report)
    is_named = any(finding.check in COMPARISONS for finding in report.failures)
    return Row(entry.name, dtype, fault, str(report.verdict), first, seconds, tuple(_headlines(report)), is_named)


def _headline(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:160]}"


def _headlines(report: Report) -> Iterator[str]:
    """What failed or was undecided, in one line each."""
    for finding in report.findings:
        if str(finding.verdict) in ("FAIL", "INCONCLUSIVE"):
            place = (
                f" (d {finding.mismatches[0].output} / d {finding.mismatches[0].input})" if finding.mismatches else ""
            )
            yield f"{finding.check}: {finding.headline}{place}"


def totals(rows: Sequence[Row]) -> Iterator[str]:
    """Verdicts by dtype, as shipped and with faults, and the median time of a check."""
    for dtype in dict.fromkeys(row.dtype for row in rows):
        for title, kind in (("as shipped", False), ("planted", True)):
            chosen = [
                row for row in rows if row.dtype == dtype and bool(row.fault) is kind and row.verdict != "refused"
            ]
            if chosen:
                counts = Counter(row.verdict for row in chosen)
                text = ", ".join(f"{number} {verdict}" for verdict, number in sorted(counts.items()))
                text += f"; {sum(row.is_named for row in chosen)} with a wrong derivative" if kind else ""
                median = statistics.median(row.seconds for row in chosen)
                yield f"{dtype}, {title}: {len(chosen)} checks, {text}; median {median:.1f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dtypes", nargs="+", choices=list(DTYPES), default=list(DTYPES))
    parser.add_argument("--only", nargs="+", metavar="KERNEL", help="names of kernels; the default is all")
    parser.add_argument("--planted", action="store_true", help="also with each planted fault")
    parser.add_argument("--reference", action="store_true", help="pass the function in plain torch as reference=")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--verbose", action="store_true", help="print each report")
    settings = parser.parse_args()
    unknown = set(settings.only or ()) - {entry.name for entry in ENTRIES}
    if unknown:
        parser.error(f"unknown kernels: {', '.join(sorted(unknown))}; known: {', '.join(e.name for e in ENTRIES)}")
    print("| kernel | dtype | fault | verdict | first call (s) | check (s) | findings |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    rows: list[Row] = []
    for dtype in settings.dtypes:
        for entry in ENTRIES:
            if settings.only is None or entry.name in settings.only:
                for fault in ("", *(FAULTS if settings.planted else ())):
                    rows.append(measured(entry, dtype, fault, settings))
                    print(rows[-1], flush=True)
    print()
    print("\n".join(totals(rows)))


if __name__ == "__main__":
    main()
