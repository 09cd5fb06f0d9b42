"""F19: rules for vmap. Each function is right one call at a time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.functions import with_vjp
from tests.gallery import conditions
from tests.gallery.case import Family, Function
from tests.gallery.inputs import normal


def sine(x: Tensor) -> Tensor:
    return torch.sin(x)


def sine_backward(v: Tensor, x: Tensor) -> Tensor:
    return v * torch.cos(x)


def mapped_as(forward: Function, backward: Function, batched: Function) -> Function:
    """`with_vjp(forward, backward)` with a rule for vmap by hand: `batched(dims, *inputs)` gives the batch in front."""

    class Mapped(torch.autograd.Function):
        @staticmethod
        def forward(*inputs: Tensor) -> Tensor:
            return forward(*inputs)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx: Any, v: Tensor) -> Any:
            return backward(v, *ctx.saved_tensors)

        @staticmethod
        def vmap(info: Any, dims: tuple[int | None, ...], *inputs: Tensor) -> tuple[Tensor, int]:
            return batched(dims, *inputs), 0

    return Mapped.apply


def sine_curvature(w: Tensor, v: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    return w * torch.cos(x), -w * v * torch.sin(x)


def first_of_batch(dims: tuple[int | None, ...], v: Tensor, x: Tensor) -> Tensor:
    """Takes the first cotangent of the batch for all."""
    rows = v if dims[0] is None else v.movedim(dims[0], 0)
    return (rows[:1] * torch.cos(x)).expand_as(rows)


def scale_of_batch(dims: tuple[int | None, ...], v: Tensor, x: Tensor) -> Tensor:
    """Scales every cotangent to unit size and back, but back by the largest of the whole batch."""
    rows = v if dims[0] is None else v.movedim(dims[0], 0)
    return rows / rows.abs().amax(-1, keepdim=True) * rows.abs().max() * torch.cos(x)


def batch_in_reverse(dims: tuple[int | None, ...], x: Tensor) -> Tensor:
    return torch.sin(x).flip(0)


wrong = Family("F19", finds={"batched"}, drop_in=False, special="torch.func.vmap")

CASES = (
    wrong(
        "sine_backward_maps_first_of_batch", "A rule for vmap takes one cotangent for all.", proof=conditions.batched
    ).at(with_vjp(sine, mapped_as(sine_backward, sine_curvature, first_of_batch)), sine, normal, (4,)),
    wrong(
        "sine_backward_maps_with_shared_scale",
        "What is per cotangent in a loop becomes one number for the whole batch.",
        proof=conditions.batched,
    ).at(with_vjp(sine, mapped_as(sine_backward, sine_curvature, scale_of_batch)), sine, normal, (4,)),
    wrong(
        "sine_maps_batch_in_reverse",
        "The function itself is right alone and shuffled under vmap.",
        proof=conditions.mapped,
    ).at(mapped_as(sine, sine_backward, batch_in_reverse), sine, normal, (4,)),
)
