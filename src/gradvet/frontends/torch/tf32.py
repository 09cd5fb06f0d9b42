"""Matrix products of float32 numbers in TF32, the format of ten bits in which tensor cores multiply them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from gradvet.frontends.torch import private

PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "convolution", "dot_product", "linear")
"""Ends of the names of operators that multiply matrices; those of their derivatives end in `_backward`."""

LOST_BITS = 0x1FFF
"""The last 13 bits of a float32 number, which tensor cores do not read."""


def tf32_products() -> AbstractContextManager[object] | None:
    """A context in which the factors of products are cut off to TF32; None if operators cannot be intercepted."""

    def run(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        name = (
            operator.name().partition("::")[2].partition(".")[0].removesuffix("_backward").removesuffix("_overrideable")
        )
        if name.endswith(PRODUCTS) or "dot_product" in name:
            # The first argument of addmm and its like is added.
            terms = 1 if name.startswith(("add", "badd")) else 0
            args = [*args[:terms], *map(cut_off, args[terms:])]
        return operator(*args, **kwargs)

    return private.operator_mode(run)


def cut_off(value: Any) -> Any:
    """A float32 tensor without the bits that TF32 does not have; anything else as it is."""
    if not isinstance(value, Tensor) or value.dtype is not torch.float32 or value.layout is not torch.strided:
        return value
    return (value.view(torch.int32) & ~LOST_BITS).view(torch.float32)
