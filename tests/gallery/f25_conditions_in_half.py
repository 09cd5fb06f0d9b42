"""F25: right in a plain call and wrong by much under a condition, in half precision.

Strides that are ignored, a workspace that two calls share, a gradient that is dropped beside a frozen input: two runs
of the same arithmetic are compared, so that the roundoff of half precision is no excuse.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.functions import with_cotangents_changed, with_vjp
from tests.gallery import conditions, kernels
from tests.gallery.case import Family
from tests.gallery.inputs import normal
from tests.gallery.mutants import memory, reading_cotangent_as_contiguous
from tests.gallery.mutants_of_state import unless_frozen, with_workspace

BF16, F16 = torch.bfloat16, torch.float16


def linear_reading_input_by_memory(v: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """A library call that is handed a pointer to x and no strides."""
    return kernels.linear_vjp(v, memory(x), weight)


def swish_reading_input_by_memory(v: Tensor, x: Tensor) -> Tensor:
    return kernels.swish_vjp(v, memory(x))


def scaled(x: Tensor, gain: Tensor) -> Tensor:
    return torch.tanh(x) * gain


class AllOrNothing(torch.autograd.Function):
    """Gives up if one of the inputs needs no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return kernels.linear(x, weight)

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor | None, Tensor | None]:
        if not all(ctx.needs_input_grad):
            return None, None
        return kernels.linear_vjp(v, *ctx.saved_tensors)


class SharedRows(torch.autograd.Function):
    """The inverse norms of the rows go to one workspace for all calls."""

    workspace = torch.zeros(512)

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        w = kernels.wide(x)
        inverse = SharedRows.workspace[: len(x)]
        inverse.copy_(torch.rsqrt((w * w).mean(-1) + 1e-6))
        ctx.save_for_backward(x)
        return (w * inverse[:, None].to(w.dtype)).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        w, g = kernels.wide(x), kernels.wide(v)
        r = SharedRows.workspace[: len(x), None].to(w.dtype)
        return (r * (g - w * r * (g * w * r).mean(-1, keepdim=True))).to(x.dtype)


def unit_rows(x: Tensor) -> Tensor:
    w = kernels.wide(x)
    return (w * torch.rsqrt((w * w).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


by_cotangent = Family("F25", finds={"grad_output_layout"}, drop_in=False, special="a transposed cotangent")
by_input = Family("F25", finds={"input_layout"}, drop_in=False, special="transposed inputs")
by_call = Family(
    "F25",
    finds={"reentrancy"},
    drop_in=False,
    special="another forward before the backward",
    proof=conditions.interleaved,
)
by_frozen = Family("F25", finds={"partial_requires_grad"}, drop_in=False)

CASES = (
    by_cotangent(
        "squash_reads_transposed_cotangent_in_bfloat16",
        "Below a transpose every number of the cotangent is taken for another.",
        proof=conditions.transposed_cotangent,
    ).at(reading_cotangent_as_contiguous(kernels.squash), kernels.squash, normal, (100, 128), dtype=BF16),
    by_cotangent(
        "linear_reads_transposed_cotangent_in_float16",
        "Both gradients of a product come from the memory of the cotangent.",
        proof=conditions.transposed_cotangent,
    ).at(with_cotangents_changed(kernels.linear, memory), kernels.linear, normal, (6, 40), (40, 9), dtype=F16),
    by_cotangent(
        "swish_reads_cotangent_with_gaps_in_bfloat16",
        "Below a slice of pairs every second number is a neighbour's.",
        special="a cotangent with gaps in memory",
        proof=conditions.strided_cotangent,
    ).at(reading_cotangent_as_contiguous(kernels.swish), kernels.swish, normal, (30, 41), dtype=BF16),
    by_input(
        "linear_reads_transposed_input_in_bfloat16",
        "The forward honours the strides of its input, the backward does not.",
        proof=conditions.transposed_inputs,
    ).at(
        with_vjp(kernels.linear, linear_reading_input_by_memory), kernels.linear, normal, (30, 41), (41, 7), dtype=BF16
    ),
    by_input(
        "swish_reads_transposed_input_in_float16",
        "The slope is that of another entry.",
        proof=conditions.transposed_inputs,
    ).at(with_vjp(kernels.swish, swish_reading_input_by_memory), kernels.swish, normal, (100, 128), dtype=F16),
    by_call(
        "squash_with_workspace_in_bfloat16",
        "The next forward overwrites the buffer that this backward reads.",
        dtype=BF16,
    ).of(lambda: (with_workspace(kernels.squash), normal((100, 128), dtype=BF16)), kernels.squash),
    by_call("linear_with_workspace_in_float16", "Both operands are kept in a shared buffer.", dtype=F16).of(
        lambda: (with_workspace(kernels.linear), normal((6, 40), (40, 9), dtype=F16)), kernels.linear
    ),
    by_call("unit_rows_with_shared_norms_in_bfloat16", "Calls share the norms of their rows.", dtype=BF16).of(
        lambda: (SharedRows.apply, normal((50, 33), dtype=BF16)), unit_rows
    ),
    by_frozen(
        "linear_all_or_nothing_in_bfloat16",
        "A frozen input stops the gradient of the weight.",
        special="the input is frozen",
        proof=conditions.frozen(0),
    ).at(AllOrNothing.apply, kernels.linear, normal, (6, 40), (40, 9), dtype=BF16),
    by_frozen(
        "scaled_gain_needs_input_in_float16",
        "The gain loses its gradient when the input is frozen.",
        special="the input is frozen",
        proof=conditions.frozen(0),
    ).at(unless_frozen(scaled, 1, 0), scaled, normal, (20, 30), (30,), dtype=F16),
    by_frozen(
        "rms_norm_needs_gain_in_bfloat16",
        "The input loses its gradient when the gain is frozen.",
        special="the gain is frozen",
        proof=conditions.frozen(1),
    ).at(unless_frozen(kernels.rms_norm, 0, 1), kernels.rms_norm, normal, (100, 128), (128,), dtype=BF16),
)
