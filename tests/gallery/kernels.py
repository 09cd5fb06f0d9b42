"""Kernels in plain torch, as they are written for low precision: rows are loaded, widened, computed and rounded once.

Each formula has its derivative beside it. `kernel` makes a custom Function of the two, spoiled or not, that takes every
dtype or one alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.functions import Function, as_tuple, true_vjp, with_vjp

Spoil = Callable[[Tensor], Tensor]


def wide(x: Tensor) -> Tensor:
    """At least float32, in which half precision is accumulated."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def pendulum(angle: Tensor, speed: Tensor) -> Tensor:
    """Twelve steps in time, after each of which the numbers are rounded."""
    for _ in range(12):
        speed = speed - 0.1 * torch.sin(3 * angle)
        angle = angle + 0.1 * speed
    return angle * speed


def pendulum_vjp(v: Tensor, angle: Tensor, speed: Tensor) -> tuple[Tensor | None, ...]:
    """Torch's own."""
    return true_vjp(pendulum, (angle, speed), (v,))


def kernel(
    formula: Function,
    vjp: Function,
    spoil: Spoil | None = None,
    *,
    slot: int | None = None,
    only: torch.dtype | None = None,
) -> Function:
    """`formula` with the derivative `vjp`; below float64 its gradients, or that of one slot, go through `spoil`.

    A kernel of `only` one dtype refuses all others, float64 among them.
    """

    def forward(*inputs: Tensor) -> Any:
        _demand(inputs, only)
        return formula(*inputs)

    def backward(v: Tensor, *inputs: Tensor) -> Any:
        gradients = as_tuple(vjp(v, *inputs))
        if spoil is None or inputs[0].dtype == torch.float64:
            return gradients
        return tuple(spoil(g) if slot in (None, index) else g for index, g in enumerate(gradients))

    return with_vjp(forward, backward)


def _demand(inputs: tuple[Tensor, ...], only: torch.dtype | None) -> None:
    for x in inputs:
        if only is not None and x.dtype != only:
            raise TypeError(f"this kernel takes {only}, not {x.dtype}")


# Elementwise.


def swish(x: Tensor) -> Tensor:
    w = wide(x)
    return (w * torch.sigmoid(w)).to(x.dtype)


def swish_vjp(v: Tensor, x: Tensor) -> Tensor:
    w = wide(x)
    s = torch.sigmoid(w)
    return (wide(v) * s * (1 + w * (1 - s))).to(x.dtype)


def squash(x: Tensor) -> Tensor:
    return torch.tanh(x)


def squash_vjp(v: Tensor, x: Tensor) -> Tensor:
    """In the dtype of the data throughout."""
    y = torch.tanh(x)
    return v * (1 - y * y)


def growth(x: Tensor) -> Tensor:
    return torch.exp(0.5 * x)


def growth_vjp(v: Tensor, x: Tensor) -> Tensor:
    """In the dtype of the data throughout."""
    return 0.5 * v * torch.exp(0.5 * x)


# Rows.


def rms_norm(x: Tensor, gain: Tensor) -> Tensor:
    w = wide(x)
    return (w * torch.rsqrt((w * w).mean(-1, keepdim=True) + 1e-6) * wide(gain)).to(x.dtype)


def rms_norm_vjp(v: Tensor, x: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
    w, g = wide(x), wide(v) * wide(gain)
    r = torch.rsqrt((w * w).mean(-1, keepdim=True) + 1e-6)
    y = w * r
    dx = r * (g - y * (g * y).mean(-1, keepdim=True))
    return dx.to(x.dtype), (wide(v) * y).sum(0).to(gain.dtype)


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(wide(x), -1).to(x.dtype)


def softmax_vjp(v: Tensor, x: Tensor) -> Tensor:
    y = torch.softmax(wide(x), -1)
    g = wide(v) * y
    return (g - y * g.sum(-1, keepdim=True)).to(x.dtype)


def linear(x: Tensor, weight: Tensor) -> Tensor:
    return (wide(x) @ wide(weight)).to(x.dtype)


def linear_vjp(v: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    g = wide(v)
    return (g @ wide(weight).mT).to(x.dtype), (wide(x).mT @ g).to(weight.dtype)


def log_total(x: Tensor) -> Tensor:
    return torch.logsumexp(wide(x), -1).to(x.dtype)


def log_total_vjp(v: Tensor, x: Tensor) -> Tensor:
    return (wide(v)[..., None] * torch.softmax(wide(x), -1)).to(x.dtype)


# What is lost.


def nothing(gradient: Tensor) -> Tensor:
    return torch.zeros_like(gradient)


def times(factor: float) -> Spoil:
    return lambda gradient: factor * gradient


def without(entries: slice) -> Spoil:
    """Some of the flattened entries are zero: every second one, a tail block, all but the first."""

    def spoil(gradient: Tensor) -> Tensor:
        kept = gradient.flatten().clone()
        kept[entries] = 0.0
        return kept.view(gradient.shape)

    return spoil


def without_row(row: int) -> Spoil:
    def spoil(gradient: Tensor) -> Tensor:
        kept = gradient.clone()
        kept[row] = 0.0
        return kept

    return spoil
