"""Functions that end the process, as a kernel on a GPU does, for inputs that a kernel may not expect."""

from __future__ import annotations

import os
import time
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class _Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, v: Tensor) -> Tensor:
        return 2.0 * v * ctx.saved_tensors[0]


def square(x: Tensor) -> Tensor:
    return _Square.apply(x)  # type: ignore[no-untyped-call,no-any-return]


def aligned(x: Tensor) -> Tensor:
    """Aborts if the input does not begin where its memory begins."""
    if x.storage_offset():
        os.abort()
    return square(x)


def with_six_rows(x: Tensor) -> Tensor:
    """Aborts for any other number of rows."""
    if len(x) != 6:
        os.abort()
    return square(x)


def not_empty(x: Tensor) -> Tensor:
    """Aborts for an input without elements."""
    if not x.numel():
        os.abort()
    return square(x)


def slow(x: Tensor) -> Tensor:
    """Takes for ever at another number of rows."""
    while len(x) != 6:
        time.sleep(0.1)
    return square(x)


def _refusing() -> Any:
    raise RuntimeError("this process cannot load it")


class Unloadable:
    """Can be pickled, but not unpickled."""

    def __reduce__(self) -> Any:
        return _refusing, ()

    def __call__(self, x: Tensor) -> Tensor:
        return square(x)
