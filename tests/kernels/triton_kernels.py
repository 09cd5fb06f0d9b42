"""Triton kernels that run on the CPU in interpreter mode: `TRITON_INTERPRET=1 python -m tests.kernels.triton_kernels`.

Prints the verdict and the failed checks of each kernel, right and with each fault, as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

import gradvet
from gradvet.core.results import Report
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


@triton.jit
def _dropout(x_ptr, y_ptr, n, p, seed, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + place, mask=place < n, other=0.0)
    tl.store(y_ptr + place, tl.where(tl.rand(seed, place) > p, x / (1.0 - p), 0.0), mask=place < n)


def _dropped(x: Tensor, seed: int) -> Tensor:
    x = x.contiguous()
    y = torch.empty_like(x)
    _dropout[(triton.cdiv(x.numel(), BLOCK),)](x, y, x.numel(), 0.4, seed, BLOCK=BLOCK)
    return y


class Dropout(torch.autograd.Function):
    """Dropout whose mask is drawn again from its seed in the backward pass; wrong from another seed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, is_wrong: bool) -> Tensor:
        ctx.seed = 8 if is_wrong else 7
        return _dropped(x, 7)

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return _dropped(v, ctx.seed), None


@triton.jit
def _rows(index_ptr, w_ptr, y_ptr, columns, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    w = tl.load(w_ptr + tl.load(index_ptr + row) * columns + column, mask=column < columns, other=0.0)
    tl.store(y_ptr + row * columns + column, w, mask=column < columns)


@triton.jit
def _scattered(index_ptr, v_ptr, g_ptr, columns, ADDS: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    v = tl.load(v_ptr + row * columns + column, mask=column < columns, other=0.0).to(tl.float32)
    place = tl.load(index_ptr + row) * columns + column
    if ADDS:
        tl.atomic_add(g_ptr + place, v, mask=column < columns)
    else:
        tl.store(g_ptr + place, v, mask=column < columns)


class Embedding(torch.autograd.Function):
    """Rows of a table, with a sum by atomics in float32; wrong where the last of several equal rows wins."""

    @staticmethod
    def forward(ctx: Any, w: Tensor, index: Tensor, is_wrong: bool) -> Tensor:
        w = w.contiguous()
        ctx.index, ctx.w, ctx.is_wrong = index, w, is_wrong
        y = w.new_empty(len(index), w.shape[1])
        _rows[(len(index),)](index, w, y, w.shape[1], BLOCK=triton.next_power_of_2(w.shape[1]))
        return y

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        gradient = torch.zeros(ctx.w.shape, dtype=torch.float32)
        block = triton.next_power_of_2(v.shape[1])
        _scattered[(len(v),)](ctx.index, v.contiguous(), gradient, v.shape[1], ADDS=not ctx.is_wrong, BLOCK=block)
        return gradient.to(ctx.w.dtype), None, None


@triton.jit
def _swiglu_forward(a_ptr, b_ptr, y_ptr, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """One of the factors in float32 whatever its dtype."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(a_ptr + place, mask=place < n, other=0.0).to(tl.float32)
    b = tl.load(b_ptr + place, mask=place < n, other=0.0)
    tl.store(y_ptr + place, (a * tl.sigmoid(a)).to(b.dtype) * b, mask=place < n)


@triton.jit
def _swiglu_backward(v_ptr, a_ptr, b_ptr, n, FORGETS: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """The gradients replace the saved inputs."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(v_ptr + place, mask=place < n, other=0.0)
    a = tl.load(a_ptr + place, mask=place < n, other=0.0).to(tl.float32)
    b = tl.load(b_ptr + place, mask=place < n, other=0.0)
    s = tl.sigmoid(a)
    slope = s * (1.0 + a * (1.0 - s))
    if FORGETS:
        slope = s
    tl.store(a_ptr + place, v * b * slope, mask=place < n)
    tl.store(b_ptr + place, v * (a * s), mask=place < n)


class Swiglu(torch.autograd.Function):
    """silu(a) · b, whose gradients replace what was saved; wrong without the slope of the sigmoid."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, is_wrong: bool) -> Tensor:
        ctx.saved, ctx.is_wrong = (a.contiguous(), b.contiguous()), is_wrong
        y = torch.empty_like(ctx.saved[1])
        _swiglu_forward[(triton.cdiv(y.numel(), BLOCK),)](*ctx.saved, y, y.numel(), BLOCK=BLOCK)
        return y

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        n = v.numel()
        _swiglu_backward[(triton.cdiv(n, BLOCK),)](v.contiguous(), *ctx.saved, n, FORGETS=ctx.is_wrong, BLOCK=BLOCK)
        return *ctx.saved, None


INDEX = torch.tensor([1, 3, 3, 0, 1])

PAIRS: dict[str, tuple[Callable[..., Any], Callable[..., Any], Sequence[tuple[int, ...]]]] = {
    "dropout": (Dropout.apply, lambda x: x * (_dropped(torch.ones(x.shape), 7) > 0) / 0.6, [(3, 5)]),
    "embedding": (
        lambda w, is_wrong: Embedding.apply(w, INDEX, is_wrong),
        lambda w: torch.nn.functional.embedding(INDEX, w),
        [(4, 3)],
    ),
    "swiglu": (Swiglu.apply, lambda a, b: torch.nn.functional.silu(a) * b, [(3, 5), (3, 5)]),
}
"""Kernels with a fault of their own, beside the same in plain torch, and the shapes of their inputs."""


def main() -> None:
    found = {}
    for name, kernel in KERNELS.items():
        for fault in FAULTS:
            x = torch.randn(3, 5, generator=torch.Generator().manual_seed(1)).requires_grad_()
            report = gradvet.check(lambda x, kernel=kernel, fault=fault: kernel(x, fault), x, seed=0, points=None)
            found[f"{name}, {fault}"] = summary(report)
    for name, (function, eager, shapes) in PAIRS.items():
        for is_wrong in (False, True):
            generator = torch.Generator().manual_seed(1)
            inputs = tuple(torch.randn(shape, generator=generator).requires_grad_() for shape in shapes)
            for reference in (None, eager):
                title = f"{name}, {'wrong' if is_wrong else 'right'}, {'with' if reference else 'without'} reference"
                checked = partial(_with_flag, function, is_wrong)
                checks = ("reference", "reverse") if reference else ("reverse", "precision")
                report = gradvet.check(checked, inputs, seed=0, points=None, reference=reference, checks=checks)
                found[title] = summary(report)
    print(json.dumps(found))


def _with_flag(function: Callable[..., Any], is_wrong: bool, *inputs: Tensor) -> Any:
    return function(*inputs, is_wrong)


def summary(report: Report) -> dict[str, Any]:
    failed = sorted({finding.check for finding in report.failures})
    return {"verdict": str(report.verdict), "failed": failed, "notes": list(report.notes)}


if __name__ == "__main__":
    main()
