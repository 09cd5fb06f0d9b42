"""Contexts of functions at points, as `gradvet.check` makes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gradvet.core.context import Context
from gradvet.core.frontend import Request
from gradvet.frontends.torch.binding import bind
from gradvet.frontends.torch.problem import TorchProblem
from gradvet.options import Options

Elementwise = Callable[[Tensor], Tensor]


def context_of(function: Callable[..., Any], *inputs: Tensor, seed: int = 0, **settings: Any) -> Context:
    """The function at these inputs."""
    problem = TorchProblem(bind(Request(function, inputs)), seed)
    return Context.of(problem, Options(seed=seed, **settings))


def point(*numbers: float, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor(numbers, dtype=dtype, requires_grad=True)
