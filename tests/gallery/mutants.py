"""Wrap a correct function so that its derivative is wrong in a named way.

`rule` puts a hand-written derivative on a function; everything else computes the true vector-Jacobian product from the
function itself and spoils what goes in (the cotangent) or what comes out (the gradients).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tests.gallery.case import Function

Gradients = tuple[Tensor | None, ...]
Change = Callable[[Gradients, tuple[Any, ...]], Sequence[Tensor | None]]


def many(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def rule(forward: Function, backward: Function, jvp: Function | None = None) -> Function:
    """`forward` with its derivative by hand: `backward(*cotangents, *inputs)`, `jvp(*tangents, *inputs)`."""

    class Rule(torch.autograd.Function):
        @staticmethod
        def forward(*inputs: Any) -> Any:
            return forward(*inputs)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            tensors = [value if isinstance(value, Tensor) else None for value in inputs]
            ctx.others = [None if isinstance(value, Tensor) else value for value in inputs]
            ctx.save_for_backward(*tensors)
            ctx.save_for_forward(*tensors)

        @staticmethod
        def backward(ctx: Any, *cotangents: Any) -> Any:
            gradients = many(backward(*cotangents, *_inputs(ctx)))
            return (*gradients, *[None] * (len(ctx.others) - len(gradients)))

    if jvp is None:
        return Rule.apply
    tangent = jvp

    class Dual(Rule):
        generate_vmap_rule = True

        @staticmethod
        def jvp(ctx: Any, *tangents: Any) -> Any:
            return tangent(*tangents, *_inputs(ctx))

    return Dual.apply


def _inputs(ctx: Any) -> tuple[Any, ...]:
    pairs = zip(ctx.saved_tensors, ctx.others, strict=True)
    return tuple(other if tensor is None else tensor for tensor, other in pairs)


def true_gradients(forward: Function, inputs: tuple[Any, ...], cotangents: tuple[Any, ...]) -> Gradients:
    """The vector-Jacobian product of `forward` in plain autograd; differentiable itself where grad mode is on."""
    again = torch.is_grad_enabled()
    live = [isinstance(value, Tensor) and value.requires_grad for value in inputs]
    with torch.enable_grad():
        held = [
            value if again or not on else value.detach().requires_grad_()
            for value, on in zip(inputs, live, strict=True)
        ]
        sources = [value for value, on in zip(held, live, strict=True) if on]
        outputs = many(forward(*held))
        pairs = [(y, v) for y, v in zip(outputs, cotangents, strict=True) if y.requires_grad and v is not None]
        outputs, weights = zip(*pairs, strict=True)
        found = iter(torch.autograd.grad(outputs, sources, weights, create_graph=again, materialize_grads=True))
    return tuple(next(found) if on else None for on in live)


def altered(forward: Function, change: Change) -> Function:
    """The true gradients, passed through `change(gradients, inputs)`."""

    class Altered(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            ctx.others = [None if isinstance(value, Tensor) else value for value in inputs]
            ctx.save_for_backward(*[value if isinstance(value, Tensor) else None for value in inputs])
            return forward(*inputs)

        @staticmethod
        def backward(ctx: Any, *cotangents: Any) -> Any:
            inputs = _inputs(ctx)
            gradients = true_gradients(forward, inputs, cotangents)
            return tuple(change(gradients, inputs))

    return Altered.apply


def fed(forward: Function, change: Callable[[Tensor], Tensor]) -> Function:
    """The true vector-Jacobian product, of `change(cotangent)` instead of the cotangent."""

    class Fed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            ctx.others = [None if isinstance(value, Tensor) else value for value in inputs]
            ctx.save_for_backward(*[value if isinstance(value, Tensor) else None for value in inputs])
            return forward(*inputs)

        @staticmethod
        def backward(ctx: Any, *cotangents: Any) -> Any:
            return true_gradients(forward, _inputs(ctx), tuple(map(change, cotangents)))

    return Fed.apply


# What comes out is spoiled.


def entrywise(change: Callable[[Tensor, Tensor], Tensor], slot: int | None = None) -> Change:
    """Apply `change(gradient, input)` to every gradient, or to that of one slot."""

    def changed(gradients: Gradients, inputs: tuple[Any, ...]) -> list[Tensor | None]:
        return [
            change(gradient, value) if gradient is not None and slot in (None, index) else gradient
            for index, (gradient, value) in enumerate(zip(gradients, inputs, strict=True))
        ]

    return changed


def scaled(forward: Function, factor: float, slot: int | None = None) -> Function:
    return altered(forward, entrywise(lambda gradient, _: factor * gradient, slot))


def negated(forward: Function, slot: int | None = None) -> Function:
    return scaled(forward, -1.0, slot)


def zeroed(forward: Function, slot: int | None = None) -> Function:
    return altered(forward, entrywise(lambda gradient, _: torch.zeros_like(gradient), slot))


def missing(forward: Function, slot: int) -> Function:
    """None for one input."""
    return altered(forward, lambda gradients, _: [*gradients[:slot], None, *gradients[slot + 1 :]])


def transposed(forward: Function, slot: int = 0) -> Function:
    return altered(forward, entrywise(lambda gradient, _: gradient.mT, slot))


def swapped(forward: Function, first: int = 0, second: int = 1) -> Function:
    """Two gradients in each other's slot."""

    def change(gradients: Gradients, _: tuple[Any, ...]) -> list[Tensor | None]:
        order = list(gradients)
        order[first], order[second] = order[second], order[first]
        return order

    return altered(forward, change)


def rolled(forward: Function, shift: int = 1, slot: int | None = None) -> Function:
    return altered(forward, entrywise(lambda gradient, _: gradient.roll(shift, -1), slot))


def wrong_where(forward: Function, place: Callable[[Tensor], Tensor], factor: float = 0.0, slot: int = 0) -> Function:
    """The gradient times `factor` where `place(input)` holds: at x == c, at |x| > c, in the last row, ..."""
    return altered(
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
    return altered(forward, entrywise(lambda gradient, _: gradient.to(dtype).to(gradient.dtype)))


# What goes in is spoiled.


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
    return fed(forward, memory)


def ignoring_cotangent(forward: Function) -> Function:
    return fed(forward, torch.ones_like)
