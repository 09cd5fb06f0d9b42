"""Functions of a sparse tensor, right and wrong, and the outcome of a check of them.

The gradient of a function has masked semantics if it has entries only where the argument is specified, and unmasked
semantics if it is the derivative with respect to every element. An argument with holes tells the two apart.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.functions import with_vjp
from tests.sparse.tensors import SHAPE, mask, numbers, specified

Function = Callable[..., Tensor]

RIGHT_HAND = numbers(9, 2, seed=2)
WEIGHTS = numbers(*SHAPE, seed=3)
INSIDE, OUTSIDE = (1, 2), (1, 4)
"""An element that `holed` specifies, and one that it does not."""


doubled = with_vjp(torch.clone, lambda gradient, y: gradient * 2)
"""The identity; its gradient is twice what it should be."""


def with_doubled_gradient(function: Function) -> Function:
    """The same function with a wrong gradient, wherever the right one is not zero."""
    return lambda *inputs: doubled(function(*inputs))


def _nothing(gradient: Tensor) -> None: ...


def _one_inside(gradient: Tensor) -> None:
    gradient[INSIDE] *= 1.5


def _one_outside(gradient: Tensor) -> None:
    # What it should be there: zero under masked semantics, something else under unmasked.
    gradient[OUTSIDE] = 0.5 * gradient.sum() if not gradient[OUTSIDE] else 0.0


SPOILS = {"right": _nothing, "wrong-inside": _one_inside, "wrong-outside": _one_outside}


def weighted_sine(masked: bool, fault: str) -> Function:
    """W ∘ sin(x) as a dense tensor, whose gradient has the semantics and the fault that are named."""

    def vjp(v: Tensor, x: Tensor) -> Tensor:
        full = v * WEIGHTS * torch.cos(x.to_dense())
        if masked:
            full = full * (mask() != 0)
        SPOILS[fault](full)
        stays_inside = masked and not full[OUTSIDE]
        return full.sparse_mask(x) if stays_inside else full

    return with_vjp(lambda x: WEIGHTS * torch.sin(x.to_dense()), vjp)


def sine(masked: bool, factor: float = 1.0) -> Function:
    """sin(x) as a dense tensor, whose dense gradient has these semantics and is right if the factor is one."""

    def vjp(v: Tensor, x: Tensor) -> Tensor:
        full = factor * v * torch.cos(x.to_dense()).conj()
        return full * specified(x) if masked else full

    return with_vjp(lambda x: torch.sin(x.to_dense()), vjp)


def twice(factor: float = 2.0) -> Function:
    """2 x, as sparse as x, whose gradient is right if the factor is two."""
    return with_vjp(lambda x: x * 2, lambda v, x: v * factor)


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
