"""torch's own tools around a function: `opcheck` for custom operators, and `torch.compile`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from gradvet.frontends.torch import private
from gradvet.frontends.torch.arguments import map_tensors
from gradvet.frontends.torch.binding import Request, bind, callable_of
from gradvet.frontends.torch.problem import TorchProblem

OWN_NAMESPACES = ("aten", "prims", "prim", "quantized", "inductor")
"""Namespaces of torch's own operators."""

OVERLOAD, OVERLOAD_PACKET = type(torch.ops.aten.add.Tensor), type(torch.ops.aten.add)


def opcheck_complaints(request: Request) -> Mapping[str, str] | None:
    """The complaint of each test of `opcheck`, empty if it passes; None if the function is no custom operator."""
    operator: Any = request.func
    if not _is_custom(operator):
        return None
    inputs = tuple(map_tensors(_copied, argument) for argument in request.positional)
    keywords = {name: map_tensors(_copied, value) for name, value in (request.kwargs or {}).items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = torch.library.opcheck(operator, inputs, keywords, raise_exception=False)
    return {name.removeprefix("test_"): _complaint(answer) for name, answer in found.items()}


def _is_custom(operator: Any) -> bool:
    if isinstance(operator, OVERLOAD):
        return operator.namespace not in OWN_NAMESPACES
    if isinstance(operator, OVERLOAD_PACKET):
        return _is_custom(getattr(operator, operator.overloads()[0]))
    return isinstance(operator, private.custom_operator_type())


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that requires grad wherever its dtype allows it, as `opcheck` expects."""
    floating = tensor.is_floating_point() or tensor.is_complex()
    return tensor.detach().clone().requires_grad_(floating)


def _complaint(answer: Any) -> str:
    return "" if answer == "SUCCESS" else " ".join(str(answer).split()) or type(answer).__name__


def compiled_problem(problem: TorchProblem, request: Request) -> TorchProblem:
    """The problem with the function compiled, at the same point."""
    # Compiled code of an earlier function with the same name must not be reused.
    torch.compiler.reset()
    function = request.func if isinstance(request.func, nn.Module) else _wrapped(callable_of(request.func))
    compiled = torch.compile(function, dynamic=False)
    binding = replace(bind(replace(request, func=compiled)), isolates_passes=problem.isolates_passes)
    return TorchProblem(binding, 0, problem.masked)


def _wrapped(function: Any) -> Any:
    """A plain function: `torch.compile` accepts neither classes nor operators."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call
