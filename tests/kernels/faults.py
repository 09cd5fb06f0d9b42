"""Faults of a gradient, made in place."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor


def _nothing(gradient: Tensor) -> None:
    """The gradient stays right."""


def _row(gradient: Tensor) -> None:
    gradient[(-1,) * (gradient.dim() - 1)] = 0.0


def _tail(gradient: Tensor) -> None:
    gradient[..., -3:] = 0.0


def _entry(gradient: Tensor) -> None:
    gradient[tuple(length // 2 for length in gradient.shape)] *= 2.0


RIGHT = "right"

FAULTS: dict[str, Callable[[Tensor], object]] = {
    RIGHT: _nothing,
    "factor 0.9": lambda gradient: gradient.mul_(0.9),
    "factor 1.03": lambda gradient: gradient.mul_(1.03),
    "sign": lambda gradient: gradient.neg_(),
    "lost row": _row,
    "lost tail": _tail,
    "doubled entry": _entry,
}
"""What is done to a gradient, by name."""
