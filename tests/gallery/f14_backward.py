"""F14: the backward spoils what it or its caller still needs, or does not find what the forward had."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.gallery import conditions
from tests.gallery.case import Case
from tests.gallery.inputs import at, normal
from tests.gallery.mutants import rule

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


class MutatesCotangent(torch.autograd.Function):
    """Multiplies in place; another branch of the graph may hold the same tensor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.sin(x)

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return v.mul_(torch.cos(x))


class KeepsItsOutput(torch.autograd.Function):
    """Holds its output outside autograd's book-keeping, so that nobody notices when it is changed in place."""

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


CASES = (
    Case(
        "sine_frees_its_buffer",
        "F14",
        at(FreesItsBuffer.apply, normal, (5,)),
        "A graph may be walked twice; the second time nothing is left.",
        twin=sine,
        findings=frozenset({"determinism", "interleaving", "reverse", "linearity"}),
        special="a second backward",
        witness=conditions.second_backward,
    ),
    Case(
        "sine_mutates_cotangent",
        "F14",
        at(MutatesCotangent.apply, normal, (5,)),
        "The cotangent belongs to the caller and may be in use elsewhere.",
        twin=sine,
        findings=frozenset({"mutation"}),
        drop_in=False,
        special="a cotangent that is used again",
        witness=conditions.mutated_cotangent,
    ),
    Case(
        "exponential_changed_in_place",
        "F14",
        at(exponential_changed_in_place, normal, (5,)),
        "A tensor kept outside save_for_backward is not protected by its version.",
        twin=shifted_exponential,
    ),
    Case(
        "exponential_mutates_saved_slope",
        "F14",
        at(MutatesSavedInput.apply, normal, (5,)),
        "The second backward multiplies by the first one's cotangent as well.",
        twin=exponential,
        findings=frozenset({"determinism", "interleaving", "reverse", "linearity"}),
        special="a second backward",
        witness=conditions.second_backward,
    ),
    Case(
        "dropout_drawn_anew_in_backward",
        "F14",
        at(rule(seeded_dropout, dropout_drawn_anew), normal, (40,)),
        "The mask of the backward must be that of the forward.",
        twin=seeded_dropout,
        findings=frozenset({"reverse", "determinism", "linearity"}),
    ),
)
