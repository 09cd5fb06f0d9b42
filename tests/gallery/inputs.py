"""Seeded inputs that require grad, and the factories that pair them with a function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tests.gallery.case import Build, Function, Inputs

Shape = tuple[int, ...]


def normal(*shapes: Shape, dtype: torch.dtype = torch.float64, seed: int = 0) -> tuple[Tensor, ...]:
    """Standard normal leaves."""
    generator = torch.Generator().manual_seed(seed)
    drawn = dtype if dtype.is_complex else torch.float64
    return tuple(leaf(torch.randn(shape, generator=generator, dtype=drawn), dtype) for shape in shapes)


def uniform(
    low: float, high: float, *shapes: Shape, dtype: torch.dtype = torch.float64, seed: int = 0
) -> tuple[Tensor, ...]:
    """Leaves with entries uniform in [low, high)."""
    generator = torch.Generator().manual_seed(seed)
    draws = (torch.rand(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return tuple(leaf(low + (high - low) * draw, dtype) for draw in draws)


def spread(low: float, high: float, count: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor]:
    """One leaf with evenly spaced entries from low to high."""
    return (leaf(torch.linspace(low, high, count, dtype=torch.float64), dtype),)


def point(*values: Any, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    """Leaves with exactly these entries."""
    widest = torch.complex128 if dtype.is_complex else torch.float64
    return tuple(leaf(torch.tensor(value, dtype=widest), dtype) for value in values)


def leaf(values: Tensor, dtype: torch.dtype) -> Tensor:
    return values.detach().to(dtype, copy=True).requires_grad_()


def indices(values: Sequence[Any]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def at(function: Function, inputs: Callable[..., Inputs], *arguments: Any, **options: Any) -> Build:
    """A case's `build` for a function without state: `at(f, normal, (3, 4), (4,))`."""
    return lambda: (function, inputs(*arguments, **options))
