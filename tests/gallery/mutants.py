"""Functions whose true gradient or whose cotangent is changed in a named way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.functions import Change, Function, Gradients, with_cotangents_changed, with_gradients_changed

# The gradient is changed.


def entrywise(change: Callable[[Tensor, Tensor], Tensor], slot: int | None = None) -> Change:
    """Apply `change(gradient, input)` to every gradient, or to that of one slot."""

    def changed(gradients: Gradients, inputs: tuple[Any, ...]) -> Gradients:
        return [
            change(gradient, value) if gradient is not None and slot in (None, index) else gradient
            for index, (gradient, value) in enumerate(zip(gradients, inputs, strict=True))
        ]

    return changed


def scaled(forward: Function, factor: float, slot: int | None = None) -> Function:
    return with_gradients_changed(forward, entrywise(lambda gradient, _: factor * gradient, slot))


def negated(forward: Function, slot: int | None = None) -> Function:
    return scaled(forward, -1.0, slot)


def zeroed(forward: Function, slot: int | None = None) -> Function:
    return with_gradients_changed(forward, entrywise(lambda gradient, _: torch.zeros_like(gradient), slot))


def missing(forward: Function, slot: int) -> Function:
    """None for one input."""
    return with_gradients_changed(forward, lambda gradients, _: [*gradients[:slot], None, *gradients[slot + 1 :]])


def transposed(forward: Function, slot: int = 0) -> Function:
    return with_gradients_changed(forward, entrywise(lambda gradient, _: gradient.mT, slot))


def swapped(forward: Function, first: int = 0, second: int = 1) -> Function:
    """Two gradients in each other's slot."""

    def change(gradients: Gradients, _: tuple[Any, ...]) -> Gradients:
        order = list(gradients)
        order[first], order[second] = order[second], order[first]
        return order

    return with_gradients_changed(forward, change)


def rolled(forward: Function, shift: int = 1, slot: int | None = None) -> Function:
    return with_gradients_changed(forward, entrywise(lambda gradient, _: gradient.roll(shift, -1), slot))


def wrong_where(forward: Function, place: Callable[[Tensor], Tensor], factor: float = 0.0, slot: int = 0) -> Function:
    """The gradient times `factor` where `place(input)` holds: at x == c, at |x| > c, in the last row, ..."""
    return with_gradients_changed(
        forward, entrywise(lambda gradient, x: torch.where(place(x), factor * gradient, gradient), slot=slot)
    )


def wrong_entries(forward: Function, entries: slice, factor: float = 0.0, slot: int = 0) -> Function:
    """The gradient times `factor` at some of its flattened entries: the first, the last, a tail block."""

    def place(x: Tensor) -> Tensor:
        mask = torch.zeros(x.numel(), dtype=torch.bool)
        mask[entries] = True
        return mask.view(x.shape)

    return wrong_where(forward, place, factor, slot)


def rounded(forward: Function, dtype: torch.dtype) -> Function:
    """The gradients rounded to a lower precision on their way."""
    return with_gradients_changed(forward, entrywise(lambda gradient, _: gradient.to(dtype).to(gradient.dtype)))


# The cotangent is changed.


def memory(value: Tensor) -> Tensor:
    """The value as a kernel reads it that assumes a contiguous tensor: memory order, from where its data begin.

    A short memory (an expanded tensor) is read round and round, where a kernel would read out of bounds.
    """
    entries = torch.as_strided(value.detach(), (_extent(value),), (1,))
    return entries[torch.arange(value.numel()) % len(entries)].view(value.shape)


def _extent(value: Tensor) -> int:
    """Numbers from the first to the last of its memory."""
    return (
        1 + sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))
        if value.numel()
        else 0
    )


def reading_cotangent_as_contiguous(forward: Function) -> Function:
    return with_cotangents_changed(forward, memory)


def ignoring_cotangent(forward: Function) -> Function:
    return with_cotangents_changed(forward, torch.ones_like)
