"""Functions that people check, each at about n inputs: what `sizes.py` measures.

Each maker returns the function and its inputs; the count of input elements is close to n, not equal where a shape
has to be square.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

Problem = tuple[Callable[..., Tensor], tuple[Tensor, ...]]


def point(*shape: int) -> Tensor:
    """Inputs away from zero, so that no kink lies within a step."""
    generator = torch.Generator().manual_seed(sum(shape))
    signs = torch.randint(0, 2, shape, generator=generator) * 2 - 1
    values = signs * (0.2 + torch.rand(shape, generator=generator, dtype=torch.float64))
    return values.requires_grad_()


def on_device(problem: Problem, device: str) -> Problem:
    """The same with its inputs elsewhere."""
    function, inputs = problem
    return function, tuple(tensor.detach().to(device).requires_grad_() for tensor in inputs)


class Stretched(torch.autograd.Function):
    """The identity, with one entry of its gradient half as large again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Tensor:
        gradient = cotangents[0].clone()
        gradient.view(-1)[gradient.numel() // 3] *= 1.5
        return gradient


def spoiled(problem: Problem) -> Problem:
    """The same function with a wrong gradient for one entry of its first input."""
    function, inputs = problem
    return lambda x, *rest: function(Stretched.apply(x), *rest), inputs  # type: ignore[no-untyped-call]


def side(n: int, parts: float = 1.0) -> int:
    """The side of a square with n / parts elements, at least 2."""
    return max(2, round(math.sqrt(n / parts)))


def elementwise_chain(n: int) -> Problem:
    def function(x: Tensor) -> Tensor:
        return torch.tanh(x * torch.exp(-x.square())) + torch.sin(x)

    return function, (point(n),)


def mlp(n: int) -> Problem:
    width = side(n, 2)
    inputs = point(3, width), point(width, width), point(width), point(width, 4)

    def function(x: Tensor, hidden: Tensor, bias: Tensor, last: Tensor) -> Tensor:
        return torch.tanh(x @ hidden + bias) @ last

    return function, inputs


def conv2d(n: int) -> Problem:
    length = side(n, 2)
    inputs = point(1, 2, length, length), point(2, 2, 2, 2)
    return lambda x, weight: F.conv2d(x, weight, padding=1), inputs


def layer_norm(n: int) -> Problem:
    width = min(n, 32)
    inputs = point(max(1, n // width), width), point(width), point(width)
    return lambda x, weight, bias: F.layer_norm(x, (x.shape[-1],), weight, bias), inputs


def attention(n: int) -> Problem:
    length = side(n, 3)
    inputs = tuple(point(1, length, max(1, n // (3 * length))) for _ in range(3))

    def function(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        return torch.softmax(scores, dim=-1) @ value

    return function, inputs


class Cube(torch.autograd.Function):
    """A user's own backward, in Python."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Tensor:
        x: Tensor = ctx.saved_tensors[0]
        return cotangents[0] * 3 * x * x


def custom_function(n: int) -> Problem:
    return lambda x: Cube.apply(x), (point(n),)  # type: ignore[no-untyped-call]


def control_flow(n: int) -> Problem:
    def function(x: Tensor) -> Tensor:
        for _ in range(5):
            x = torch.sin(x) if x.detach().norm() > 1 else torch.cos(x)
        return x

    return function, (point(n),)


def cholesky(n: int) -> Problem:
    length = side(n)

    def function(x: Tensor) -> Tensor:
        shift = length * torch.eye(length, dtype=x.dtype, device=x.device)
        factor: Tensor = torch.linalg.cholesky(x @ x.mT + shift)
        return factor

    return function, (point(length, length),)


def svdvals(n: int) -> Problem:
    rows = side(n)
    return lambda x: torch.linalg.svdvals(x), (point(rows, max(1, n // rows)),)


FUNCTIONS: dict[str, Callable[[int], Problem]] = {
    "elementwise chain": elementwise_chain,
    "MLP": mlp,
    "conv2d": conv2d,
    "layer norm": layer_norm,
    "attention": attention,
    "custom Function": custom_function,
    "control flow": control_flow,
    "cholesky": cholesky,
    "svdvals": svdvals,
}
