"""Random inputs of given shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gradvet.errors import InvalidProblemError


def random_inputs(
    shapes: Sequence[Sequence[int]],
    dtype: str = "float64",
    below: Sequence[int | None] = (),
    device: str = "cpu",
    domain: tuple[float, float] | None = None,
) -> tuple[Tensor, ...]:
    """One random tensor per shape, of a dtype that has derivatives, or of integers where `below` has a bound.

    With `domain`, all numbers that have derivatives are inside that interval.
    """
    kind = differentiable_dtype(dtype)
    bounds = below or [None] * len(shapes)
    return tuple(
        _numbers(tuple(shape), kind, domain).to(device)
        if bound is None
        else torch.randint(bound, tuple(shape), device="cpu").to(device)
        for shape, bound in zip(shapes, bounds, strict=True)
    )


def _numbers(shape: tuple[int, ...], kind: torch.dtype, domain: tuple[float, float] | None) -> Tensor:
    """Normal numbers; inside an interval, equally distributed ones, or the distances of normal ones from its end."""
    normal = torch.randn(shape, dtype=kind, device="cpu")
    if domain is None or kind.is_complex:
        return normal
    low, high = domain
    if math.isfinite(low) and math.isfinite(high):
        return low + (high - low) * torch.rand(shape, dtype=kind, device="cpu")
    return low + normal.abs() if math.isfinite(low) else high - normal.abs() if math.isfinite(high) else normal


def converted(value: Any, dtype: str, device: str = "cpu") -> Any:
    """A module with its parameters and buffers in a dtype and on a device; anything else as it is."""
    return value.to(device, differentiable_dtype(dtype)) if isinstance(value, nn.Module) else value


def require_known(dtype: str, device: str) -> None:
    """Raise `InvalidProblemError` unless both are names of what torch knows."""
    differentiable_dtype(dtype)
    try:
        torch.device(device)
    except RuntimeError:
        raise InvalidProblemError(f"torch knows no device {device!r}: use cpu, cuda, cuda:1 or mps") from None


def differentiable_dtype(name: str) -> torch.dtype:
    """The dtype of that name, which must be one that has derivatives."""
    kind = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(kind, torch.dtype) or not (kind.is_floating_point or kind.is_complex):
        raise InvalidProblemError(
            f"a floating-point or complex dtype was expected, found {name!r}: use float64, float32, bfloat16, "
            "float16, complex128 or complex64"
        )
    return kind
