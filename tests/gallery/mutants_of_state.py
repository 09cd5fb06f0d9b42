"""Functions whose derivative is right alone and at first order, and wrong beside other calls or at second order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.functions import true_jvp, true_vjp, with_gradients_changed, with_rules, with_vjp
from tests.gallery.case import Function
from tests.gallery.mutants import entrywise

Keep = Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]]


def kept(forward: Function, keep: Keep) -> Function:
    """The derivative at `keep(inputs)`, which is asked in the forward pass and holds a state of its own."""

    class Kept(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Tensor) -> Any:
            ctx.kept = keep(tuple(x.detach() for x in inputs))
            return forward(*inputs)

        @staticmethod
        def backward(ctx: Any, *cotangents: Tensor) -> Any:
            held = tuple(x.clone().requires_grad_() for x in ctx.kept)
            return true_vjp(forward, held, cotangents)

    return Kept.apply


def with_workspace(forward: Function) -> Function:
    """One buffer for all calls with the same shapes: the last forward wins."""
    buffers: dict[Any, tuple[Tensor, ...]] = {}

    def keep(inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        held = buffers.setdefault(_shapes(inputs), tuple(map(torch.empty_like, inputs)))
        return tuple(buffer.copy_(x) for buffer, x in zip(held, inputs, strict=True))

    return kept(forward, keep)


def with_stale_inputs(forward: Function) -> Function:
    """A cache by shape: the first call wins."""
    cache: dict[Any, tuple[Tensor, ...]] = {}
    return kept(forward, lambda inputs: cache.setdefault(_shapes(inputs), tuple(x.clone() for x in inputs)))


def _shapes(inputs: tuple[Tensor, ...]) -> tuple[torch.Size, ...]:
    return tuple(x.shape for x in inputs)


def mutating_cotangent(forward: Function, factor: float = 2.0) -> Function:
    """Right, and the caller's cotangent is scaled in passing."""

    def backward(v: Tensor, *inputs: Tensor) -> Any:
        gradients = true_vjp(forward, inputs, (v.clone(),))
        v.mul_(factor)
        return gradients

    return with_vjp(forward, backward)


def redrawn(forward: Function) -> Function:
    """The gradient behind a dropout mask that is drawn in the backward pass."""
    return with_gradients_changed(
        forward, entrywise(lambda gradient, _: gradient * (torch.rand(gradient.shape) > 0.5).to(gradient))
    )


def unless_frozen(forward: Function, slot: int, frozen: int) -> Function:
    """None for `slot` where the input `frozen` does not require grad."""

    class Partial(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Tensor) -> Any:
            ctx.save_for_backward(*inputs)
            return forward(*inputs)

        @staticmethod
        def backward(ctx: Any, *cotangents: Tensor) -> Any:
            gradients = list(true_vjp(forward, ctx.saved_tensors, cotangents))
            if not ctx.needs_input_grad[frozen]:
                gradients[slot] = None
            return tuple(gradients)

    return Partial.apply


def detached(forward: Function) -> Function:
    """Right at first order, constant at second."""
    return with_gradients_changed(forward, entrywise(lambda gradient, _: gradient.detach()))


def conjugated(forward: Function) -> Function:
    """A conjugate too many or too few."""
    return with_gradients_changed(forward, entrywise(lambda gradient, _: gradient.conj()))


def with_tangent(forward: Function, change: Callable[[Tensor], Tensor]) -> Function:
    """Right in reverse mode; in forward mode the true tangent goes through `change`."""

    def backward(v: Tensor, *inputs: Tensor) -> Any:
        return true_vjp(forward, inputs, (v,))

    def jvp(*tangents_and_inputs: Tensor) -> Tensor:
        half = len(tangents_and_inputs) // 2
        return change(true_jvp(forward, tangents_and_inputs[half:], tangents_and_inputs[:half]))

    return with_rules(forward, backward, jvp, vmap=True)
