"""Trials of functions of single numbers whose derivative somebody wrote by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gradvet.core.context import Context
from gradvet.frontends.torch.binding import Request, bind
from gradvet.frontends.torch.bound_problem import BoundProblem
from gradvet.options import Options

Elementwise = Callable[[Tensor], Tensor]


def written(function: Elementwise, derivative: Elementwise) -> Elementwise:
    """An elementwise function with this derivative in both modes."""

    class Written(torch.autograd.Function):
        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return function(x)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
            ctx.save_for_backward(inputs[0])
            ctx.save_for_forward(inputs[0])

        @staticmethod
        def backward(ctx: Any, cotangent: Tensor) -> Tensor:
            return cotangent * derivative(ctx.saved_tensors[0])

        @staticmethod
        def jvp(ctx: Any, tangent: Tensor) -> Tensor:
            return tangent * derivative(ctx.saved_tensors[0])

    return Written.apply


def trial_of(function: Callable[..., Any], *inputs: Tensor, seed: int = 0, **settings: Any) -> Context:
    """The function at these inputs."""
    problem = BoundProblem(bind(Request(function, inputs)), seed)
    return Context(problem, Options(seed=seed, **settings))


def point(*numbers: float, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor(numbers, dtype=dtype, requires_grad=True)
