"""F14: the backward overwrites data that it or its caller still needs, or does not see the state of the forward."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from tests.functions import with_vjp
from tests.gallery import conditions
from tests.gallery.case import Family
from tests.gallery.inputs import normal

SEED = 7


def sine(x: Tensor) -> Tensor:
    return torch.sin(x)


def exponential(x: Tensor) -> Tensor:
    return torch.exp(0.5 * x)


def shifted_exponential(x: Tensor) -> Tensor:
    return torch.exp(x) + 1


def keep_mask(x: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(SEED)
    return (torch.rand(x.shape, generator=generator) > 0.4).to(x)


def seeded_dropout(x: Tensor) -> Tensor:
    return keep_mask(x) * x**2


def dropout_drawn_anew(v: Tensor, x: Tensor) -> Tensor:
    """The mask of the backward comes from the global generator, one step further each time."""
    return 2 * v * x * (torch.rand(x.shape) > 0.4).to(x)


class FreesItsBuffer(torch.autograd.Function):
    """Zeroes what it saved after use, "to save memory"."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.slope = torch.cos(x)
        return torch.sin(x)

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> Tensor:
        gradient = v * ctx.slope
        ctx.slope.zero_()
        return gradient


def mutates_cotangent(v: Tensor, x: Tensor) -> Tensor:
    """Multiplies in place; another branch of the graph may hold the same tensor."""
    return v.mul_(torch.cos(x))


class FillsOneBuffer(torch.autograd.Function):
    """Returns its gradient in one buffer for all calls: where it is used twice in a graph, the last pass wins."""

    buffers: ClassVar[dict[Any, Tensor]] = {}

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.sin(x)

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        buffer = FillsOneBuffer.buffers.setdefault((x.shape, x.dtype), torch.empty_like(x))
        return torch.mul(v, torch.cos(x), out=buffer)


class KeepsItsOutput(torch.autograd.Function):
    """Keeps its output without `save_for_backward`, so that autograd does not notice a change in place."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.output = torch.exp(x)
        return ctx.output

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> Tensor:
        return v * ctx.output.detach()


def exponential_changed_in_place(x: Tensor) -> Tensor:
    return KeepsItsOutput.apply(x).add_(1)


class MutatesSavedInput(torch.autograd.Function):
    """Works in place on a saved intermediate: the second backward starts from its result."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.slope = 0.5 * torch.exp(0.5 * x)
        return torch.exp(0.5 * x)

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> Tensor:
        return ctx.slope.mul_(v).clone()


wrong = Family("F14")

CASES = (
    wrong(
        "sine_frees_its_buffer",
        "Two backward passes may use one graph; the second time nothing is left.",
        finds={"determinism", "reentrancy", "reverse", "linearity"},
        special="a second backward",
        proof=conditions.second_backward,
    ).at(FreesItsBuffer.apply, sine, normal, (5,)),
    wrong(
        "sine_mutates_cotangent",
        "The cotangent belongs to the caller and may be in use elsewhere.",
        finds={"mutation"},
        drop_in=False,
        special="a cotangent that is used again",
        proof=conditions.mutated_cotangent,
    ).at(with_vjp(torch.sin, mutates_cotangent), sine, normal, (5,)),
    wrong(
        "sine_with_one_gradient_buffer",
        "The gradient of an earlier pass is still in use when a later one overwrites it.",
        finds={"mutation"},
        drop_in=False,
        special="two passes",
        proof=conditions.later_pass,
    ).at(FillsOneBuffer.apply, sine, normal, (5,)),
    wrong(
        "sine_with_one_gradient_buffer_in_bfloat16",
        "The same in half precision.",
        finds={"mutation"},
        drop_in=False,
        special="two passes",
        proof=conditions.later_pass,
    ).at(FillsOneBuffer.apply, sine, normal, (30, 41), dtype=torch.bfloat16),
    wrong(
        "exponential_changed_in_place", "A tensor kept outside save_for_backward is not protected by its version."
    ).at(exponential_changed_in_place, shifted_exponential, normal, (5,)),
    wrong(
        "exponential_mutates_saved_slope",
        "The second backward multiplies by the first one's cotangent as well.",
        finds={"determinism", "reentrancy", "reverse", "linearity"},
        special="a second backward",
        proof=conditions.second_backward,
    ).at(MutatesSavedInput.apply, exponential, normal, (5,)),
    wrong(
        "dropout_drawn_anew_in_backward",
        "The mask of the backward must be that of the forward.",
        finds={"reverse", "determinism", "linearity"},
    ).at(with_vjp(seeded_dropout, dropout_drawn_anew), seeded_dropout, normal, (40,)),
)
