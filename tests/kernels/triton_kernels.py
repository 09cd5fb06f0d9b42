"""Triton kernels that run on the CPU in interpreter mode: `TRITON_INTERPRET=1 python -m tests.kernels.triton_kernels`.

Prints the verdict and the failed checks of each kernel, right and with each fault, as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

import gradvet
from tests.kernels.faults import FAULTS

BLOCK = 8


@triton.jit
def _tanh_forward(x_ptr, y_ptr, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + place, mask=place < n, other=0.0)
    e = tl.exp(-2.0 * x)
    tl.store(y_ptr + place, (1.0 - e) / (1.0 + e), mask=place < n)


@triton.jit
def _tanh_backward(y_ptr, v_ptr, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """The gradient replaces the saved output."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    y = tl.load(y_ptr + place, mask=place < n, other=0.0)
    v = tl.load(v_ptr + place, mask=place < n, other=0.0)
    tl.store(y_ptr + place, v * (1.0 - y * y), mask=place < n)


@triton.jit
def _softmax_forward(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    column = tl.arange(0, BLOCK)
    place = tl.program_id(0) * columns + column
    x = tl.load(x_ptr + place, mask=column < columns, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + place, e / tl.sum(e, axis=0), mask=column < columns)


@triton.jit
def _softmax_backward(y_ptr, v_ptr, g_ptr, columns, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    column = tl.arange(0, BLOCK)
    place = tl.program_id(0) * columns + column
    y = tl.load(y_ptr + place, mask=column < columns, other=0.0)
    v = tl.load(v_ptr + place, mask=column < columns, other=0.0)
    tl.store(g_ptr + place, y * (v - tl.sum(y * v, axis=0)), mask=column < columns)


class Tanh(torch.autograd.Function):
    """The hyperbolic tangent; its backward pass works once for each forward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, fault: str) -> Tensor:
        x = x.contiguous()
        y, ctx.fault = torch.empty_like(x), fault
        _tanh_forward[(triton.cdiv(x.numel(), BLOCK),)](x, y, x.numel(), BLOCK=BLOCK)
        ctx.saved = y.clone()
        return y

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        n = v.numel()
        _tanh_backward[(triton.cdiv(n, BLOCK),)](ctx.saved, v.contiguous(), n, BLOCK=BLOCK)
        FAULTS[ctx.fault](ctx.saved)
        return ctx.saved, None


class Softmax(torch.autograd.Function):
    """The softmax of each row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, fault: str) -> Tensor:
        x = x.contiguous()
        y, ctx.fault = torch.empty_like(x), fault
        _softmax_forward[(len(x),)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        (y,) = ctx.saved_tensors
        gradient = torch.empty_like(y)
        block = triton.next_power_of_2(y.shape[1])
        _softmax_backward[(len(y),)](y, v.contiguous(), gradient, y.shape[1], BLOCK=block)
        FAULTS[ctx.fault](gradient)
        return gradient, None


KERNELS: dict[str, Callable[..., Any]] = {"tanh": Tanh.apply, "softmax": Softmax.apply}


def main() -> None:
    found = {}
    for name, kernel in KERNELS.items():
        for fault in FAULTS:
            x = torch.randn(3, 5, generator=torch.Generator().manual_seed(1)).requires_grad_()
            report = gradvet.check(lambda x, kernel=kernel, fault=fault: kernel(x, fault), x, seed=0, points=None)
            failed = sorted({finding.check for finding in report.failures})
            found[f"{name}, {fault}"] = {"verdict": str(report.verdict), "failed": failed, "notes": list(report.notes)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
