"""F27: a wrong rule that autograd's own nodes hide.

A custom Function that works in place on a view appears in the graph as `CopySlices`. Hooks on saved tensors change what
builtin rules read, and every node in the graph is torch's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from tests.gallery.case import Family, Function
from tests.gallery.inputs import normal

View = Callable[[Tensor], Tensor]


def in_place(change: Callable[[Tensor], Tensor], vjp: Callable[[Tensor, Tensor], Tensor]) -> Function:
    """A custom Function that overwrites its argument by `change(argument)`; `vjp` gets the cotangent and the input."""

    class InPlace(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x.clone())
            ctx.mark_dirty(x)
            return x.copy_(change(x))

        @staticmethod
        def backward(ctx: Any, v: Tensor) -> Tensor:
            return vjp(v, *ctx.saved_tensors)

    return InPlace.apply


def on_view(rule: Function, view: View) -> Function:
    """Half the input, a part of which `rule` changes in place."""

    def function(x: Tensor) -> Tensor:
        y = 0.5 * x
        rule(view(y))
        return y

    return function


def by_masks(change: Callable[[Tensor], Tensor], view: View) -> Function:
    """The same without in-place operations: where the view looks, `change`, elsewhere the half."""

    def function(x: Tensor) -> Tensor:
        seen = torch.zeros(x.shape, dtype=torch.bool)
        view(seen).fill_(True)
        return torch.where(seen, change(0.5 * x), 0.5 * x)

    return function


def upper_rows(y: Tensor) -> Tensor:
    return y[:2]


def middle_of_transpose(y: Tensor) -> Tensor:
    return y.mT[1:3]


def diagonal(y: Tensor) -> Tensor:
    return y.diagonal()


def one_column(y: Tensor) -> Tensor:
    return y[:, 1]


def sine_without_slope(v: Tensor, x: Tensor) -> Tensor:
    return v


def square_halved(v: Tensor, x: Tensor) -> Tensor:
    return v * x


def exponential_negated(v: Tensor, x: Tensor) -> Tensor:
    return -v * torch.exp(x)


def double_lost(v: Tensor, x: Tensor) -> Tensor:
    return torch.zeros_like(v)


def product(x: Tensor) -> Tensor:
    return torch.sin(x) * torch.exp(0.5 * x)


def hooked(pack: Callable[[Tensor], Any], unpack: Callable[[Any], Tensor]) -> Function:
    def function(x: Tensor) -> Tensor:
        with saved_tensors_hooks(pack, unpack):
            return product(x)

    return function


def in_eight_bits() -> Function:
    """Saved with three bits of mantissa."""
    return hooked(lambda t: t.detach().to(torch.float8_e4m3fn), lambda t: t.to(torch.float64))


def in_four_bits() -> Function:
    """Saved as one of 15 levels."""

    def pack(t: Tensor) -> tuple[Tensor, Tensor]:
        unit = t.detach().abs().max() / 7
        return (t.detach() / unit).round().to(torch.int8), unit

    return hooked(pack, lambda packed: packed[0] * packed[1])


def in_one_buffer() -> Function:
    """Saved into one buffer for each shape: the last tensor stands for all."""
    buffers: dict[torch.Size, Tensor] = {}

    def pack(t: Tensor) -> Tensor:
        return buffers.setdefault(t.shape, torch.empty_like(t.detach())).copy_(t.detach())

    return hooked(pack, lambda buffer: buffer)


def clipped() -> Function:
    """Saved without what lies beyond a half."""
    return hooked(lambda t: t.detach().clamp(-0.5, 0.5), lambda t: t)


wrong = Family("F27")

CASES = (
    wrong(
        "in_place_sine_on_upper_rows", "The node of a custom Function on a view is CopySlices; its rule has no cosine."
    ).at(on_view(in_place(torch.sin, sine_without_slope), upper_rows), by_masks(torch.sin, upper_rows), normal, (4, 3)),
    wrong("in_place_square_on_transpose", "Half the slope, below a transpose and a slice.").at(
        on_view(in_place(torch.square, square_halved), middle_of_transpose),
        by_masks(torch.square, middle_of_transpose),
        normal,
        (2, 5),
    ),
    wrong("in_place_exponential_on_diagonal", "The wrong sign on the diagonal alone.").at(
        on_view(in_place(torch.exp, exponential_negated), diagonal), by_masks(torch.exp, diagonal), normal, (3, 4)
    ),
    wrong("in_place_double_on_one_column", "One column gets no gradient.").at(
        on_view(in_place(lambda x: 2 * x, double_lost), one_column),
        by_masks(lambda x: 2 * x, one_column),
        normal,
        (4, 3),
    ),
    wrong("saved_tensors_in_eight_bits", "Hooks that compress what is saved leave three bits of mantissa.").of(
        lambda: (in_eight_bits(), normal((6,))), product
    ),
    wrong("saved_tensors_in_four_bits", "Hooks that quantise what is saved leave fifteen levels.").of(
        lambda: (in_four_bits(), normal((6,))), product
    ),
    wrong("saved_tensors_in_one_buffer", "Hooks that reuse a buffer hand out the last tensor for every one.").of(
        lambda: (in_one_buffer(), normal((6,))), product
    ),
    wrong("saved_tensors_clipped", "Hooks that clip outliers change the slope at the outliers.").of(
        lambda: (clipped(), normal((6,))), product
    ),
)
