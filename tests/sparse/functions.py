"""Functions of a sparse tensor, right and wrong, and what a checker makes of them.

The gradient of a function has masked semantics if it has entries only where the argument is specified, and unmasked
semantics if it is the derivative with respect to every element. An argument with holes tells the two apart.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.sparse.tensors import SHAPE, mask, numbers, specified

Function = Callable[..., Tensor]

RIGHT_HAND = numbers(9, 2, seed=2)
WEIGHTS = numbers(*SHAPE, seed=3)
INSIDE, OUTSIDE = (1, 2), (1, 4)
"""An element that `holed` specifies, and one that it does not."""


class _Doubled(torch.autograd.Function):
    """The identity; its gradient is twice what it should be."""

    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        return y.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 2


def with_doubled_gradient(function: Function) -> Function:
    """The same function with a wrong gradient, wherever the right one is not zero."""
    return lambda *inputs: _Doubled.apply(function(*inputs))


class _WeightedSine(torch.autograd.Function):
    """W ∘ sin(x) of all elements as a dense tensor, with a gradient that `spoil` may change at single elements."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, masked: bool, spoil: Callable[[Tensor], None]) -> Tensor:
        ctx.save_for_backward(x)
        ctx.masked, ctx.spoil = masked, spoil
        return WEIGHTS * torch.sin(x.to_dense())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        full = gradient * WEIGHTS * torch.cos(x.to_dense())
        if ctx.masked:
            full = full * (mask() != 0)
        ctx.spoil(full)
        stays_inside = ctx.masked and not full[OUTSIDE]
        return full.sparse_mask(x) if stays_inside else full, None, None


def _nothing(gradient: Tensor) -> None: ...


def _one_inside(gradient: Tensor) -> None:
    gradient[INSIDE] *= 1.5


def _one_outside(gradient: Tensor) -> None:
    # What it should be there: zero under masked semantics, something else under unmasked.
    gradient[OUTSIDE] = 0.5 * gradient.sum() if not gradient[OUTSIDE] else 0.0


SPOILS = {"right": _nothing, "wrong-inside": _one_inside, "wrong-outside": _one_outside}


def weighted_sine(masked: bool, fault: str) -> Function:
    """A function whose gradient has the semantics and the fault that are named."""
    return lambda x: _WeightedSine.apply(x, masked, SPOILS[fault])


class _Sine(torch.autograd.Function):
    """sin(x) of all elements as a dense tensor, for every kind of sparse tensor; the gradient is dense and scaled."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, masked: bool, factor: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.masked, ctx.factor = masked, factor
        return torch.sin(x.to_dense())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        full = ctx.factor * gradient * torch.cos(x.to_dense()).conj()
        return full * specified(x) if ctx.masked else full, None, None


def sine(masked: bool, factor: float = 1.0) -> Function:
    """A sine with a gradient of these semantics, which is right if the factor is one."""
    return lambda x: _Sine.apply(x, masked, factor)


class _Twice(torch.autograd.Function):
    """2 x, as sparse as x; the gradient is multiplied by `factor` instead."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.factor, None


def twice(factor: float = 2.0) -> Function:
    """A sparse function of a sparse tensor, which is right if the factor is two."""
    return lambda x: _Twice.apply(x, factor)


def stored_numbers(x: Tensor) -> Tensor:
    """`values()`, for every layout."""
    return (x.coalesce() if x.layout is torch.sparse_coo else x).values()


def decision(check: Callable[..., bool], function: Function, *inputs: Tensor, **options: Any) -> str:
    """`pass`, `fail`, or the class of another exception."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return "pass" if check(function, inputs, raise_exception=False, **options) else "fail"
        except Exception as error:
            return type(error).__name__
