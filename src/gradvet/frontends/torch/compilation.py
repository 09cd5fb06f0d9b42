"""The same function through torch.compile, as one more subject."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from gradvet.frontends.torch.binding import Request, bind, callable_of
from gradvet.frontends.torch.bound_problem import BoundProblem


def compiled_twin(problem: BoundProblem, request: Request) -> BoundProblem:
    """The function compiled, at the same point."""
    # What somebody compiled before, perhaps another function by the same name, is forgotten.
    torch.compiler.reset()
    function = request.func if isinstance(request.func, nn.Module) else _plain(callable_of(request.func))
    compiled = torch.compile(function, dynamic=False)
    return BoundProblem(bind(replace(request, func=compiled)), 0, problem.masked)


def draws_random_numbers(request: Request) -> bool:
    """Whether a call moves torch's generator on: compiled code draws other numbers."""
    before = torch.get_rng_state()
    arguments = request.inputs if type(request.inputs) is tuple else (request.inputs,)
    with torch.no_grad():
        callable_of(request.func)(*arguments, **(request.kwargs or {}))
    drawn = not torch.equal(torch.get_rng_state(), before)
    torch.set_rng_state(before)
    return drawn


def _plain(function: Any) -> Any:
    """A function of its own: torch.compile takes no classes and no operators."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call
