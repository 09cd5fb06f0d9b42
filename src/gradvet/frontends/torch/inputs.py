"""Random inputs of given shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gradvet.errors import InvalidProblemError


def random_inputs(shapes: Sequence[Sequence[int]], dtype: str = "float64") -> tuple[Tensor, ...]:
    """One random tensor per shape, of a dtype that has derivatives."""
    kind = differentiable_dtype(dtype)
    return tuple(torch.randn(tuple(shape), dtype=kind) for shape in shapes)


def converted(value: Any, dtype: str) -> Any:
    """A module with its parameters and buffers in a dtype; anything else as it is."""
    return value.to(differentiable_dtype(dtype)) if isinstance(value, nn.Module) else value


def differentiable_dtype(name: str) -> torch.dtype:
    """The dtype of that name, which must be one that has derivatives."""
    kind = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(kind, torch.dtype) or not (kind.is_floating_point or kind.is_complex):
        raise InvalidProblemError(
            f"a floating-point or complex dtype was expected, found {name!r}: use float64, float32, bfloat16, "
            "float16, complex128 or complex64"
        )
    return kind
