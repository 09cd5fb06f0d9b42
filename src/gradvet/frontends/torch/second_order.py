"""First derivatives as functions, so that second derivatives are checked like first ones.

Reverse mode as a function is (x, v) ↦ Jᵀv, forward mode is (x, u) ↦ J u. Each is then differentiated in either mode.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor
from torch.overrides import is_tensor_like

from gradvet.core.problem import Distribution
from gradvet.core.provenance import title_of
from gradvet.core.vectors import Space
from gradvet.frontends.torch.arguments import tensors_in
from gradvet.frontends.torch.binding import Binding
from gradvet.frontends.torch.derivatives import prepare_forward_mode, run_backward
from gradvet.frontends.torch.layouts.dense import unflattened
from gradvet.frontends.torch.problem import TorchProblem

Select = Callable[[Any], Sequence[Any]]
"""Picks the outputs to differentiate from a function's result."""

ONCE_DIFFERENTIABLE = "torch::autograd::Error"
"""The node behind gradients of a backward pass that is marked as once differentiable. `backward()` through it raises,
`torch.autograd.grad` with `allow_unused` leaves it out."""


def second_order_problem(problem: TorchProblem, composition: str, seed: int) -> TorchProblem:
    """The problem whose derivative is the second derivative named `outer-over-inner`."""
    nested = composition == "forward-over-forward"
    if nested and problem.rules.custom():
        raise NotImplementedError("torch does not nest forward mode through an autograd.Function")
    if composition.endswith("-over-reverse"):
        derived = problem.rebound(_gradient_binding(problem), seed)
        if ONCE_DIFFERENTIABLE in derived.rules.node_names:
            raise NotImplementedError("the backward pass is marked as once_differentiable")
        return derived
    prepare_forward_mode()
    return problem.rebound(_tangent_binding(problem, nested=nested), seed)


def gradient_function(
    function: Callable[..., Any], active: Sequence[bool], count: int, select: Select, *, missing_as_zeros: bool
) -> Callable[..., tuple[Tensor, ...]]:
    """(arguments, cotangents) ↦ Jᵀ·cotangents for the active arguments, itself differentiable.

    The first `count` values are arguments. `active` says which of all values require grad: forward mode passes detached
    duals. A gradient that is missing is left out, or zeros.
    """

    def gradient(*values: Any) -> tuple[Tensor, ...]:
        restored = [
            value.requires_grad_() if on and not value.requires_grad else value
            for value, on in zip(values, active, strict=True)
        ]
        sources = [value for value, on in zip(restored[:count], active[:count], strict=True) if on]
        outputs = select(function(*restored[:count]))
        found = run_backward(outputs, sources, restored[count:], create_graph=True)
        if missing_as_zeros:
            return tuple(torch.zeros_like(x) if g is None else g for g, x in zip(found, sources, strict=True))
        return tuple(g for g in found if g is not None)

    return gradient


def drop_in_gradient(
    function: Callable[..., Any], arguments: Sequence[Any], cotangents: Sequence[Any]
) -> Callable[..., tuple[Tensor, ...]]:
    """The gradient function that `gradgradcheck` passes to `gradcheck`."""
    active = [is_tensor_like(value) and value.requires_grad for value in (*arguments, *cotangents)]
    gradient = gradient_function(function, active, len(arguments), _requiring_grad, missing_as_zeros=False)
    gradient.__name__ = f"gradient of {title_of(function)}"
    # A report shows the source code of the user's function.
    return functools.update_wrapper(gradient, function, assigned=(), updated=())


def random_cotangents(
    function: Callable[..., Any], arguments: Sequence[Any], *, noncontiguous: bool
) -> tuple[Tensor, ...]:
    """A random cotangent in [-1, 1) for each differentiable output, from the global generator. Calls the function."""
    return tuple(
        torch.testing.make_tensor(
            output.shape,
            dtype=output.dtype if output.is_floating_point() or output.is_complex() else torch.float64,
            device=output.device,
            low=-1,
            high=1,
            requires_grad=True,
            noncontiguous=noncontiguous,
        )
        for output in _requiring_grad(function(*arguments))
    )


def _requiring_grad(result: Any) -> list[Any]:
    return [output for output in tensors_in(result) if output.requires_grad]


def _gradient_binding(problem: TorchProblem) -> Binding:
    """(x, v) ↦ Jᵀv."""
    checked, count = problem.binding.checked, len(problem.arguments)
    cotangents = _random_like(problem, problem.codomain, problem.differentiable_outputs)
    active = [i in checked for i in range(count)] + [False] * len(cotangents)
    function = gradient_function(problem.function, active, count, problem.select_differentiable, missing_as_zeros=True)
    names = [f"the grad_output of {leaf.name}" for leaf in problem.codomain.leaves]
    return _derived(problem.binding, function, cotangents, names, "gradient")


def _tangent_binding(problem: TorchProblem, *, nested: bool) -> Binding:
    """(x, u) ↦ J u."""
    checked, count = problem.binding.checked, len(problem.arguments)

    def outputs(values: Sequence[Any], sources: Sequence[Any]) -> list[Any]:
        arguments = list(values[:count])
        for i, source in zip(checked, sources, strict=True):
            arguments[i] = source
        return problem.select_differentiable(problem.function(*arguments))

    def jvp(*values: Any) -> tuple[Tensor, ...]:
        with forward_ad.dual_level():
            points = [values[i] for i in checked]
            duals = [forward_ad.make_dual(x, u) for x, u in zip(points, values[count:], strict=True)]
            pairs = [forward_ad.unpack_dual(y) for y in outputs(values, duals)]
            return tuple(torch.zeros_like(value) if tangent is None else tangent.clone() for value, tangent in pairs)

    def nested_jvp(*values: Any) -> tuple[Tensor, ...]:
        points = tuple(values[i] for i in checked)
        found = torch.func.jvp(lambda *sources: tuple(outputs(values, sources)), points, tuple(values[count:]))
        return tuple(found[1])

    names = [f"the tangent of {leaf.name}" for leaf in problem.domain.leaves]
    tangents = _random_like(problem, problem.domain, problem.inputs)
    binding = _derived(problem.binding, nested_jvp if nested else jvp, tangents, names, "tangent")
    return replace(binding, nests_jvps=nested)


def _random_like(problem: TorchProblem, space: Space, tensors: Sequence[Any]) -> list[Tensor]:
    """Random tensors like those of a space, which require grad."""
    drawn = unflattened(space, problem.random(space.size, Distribution.NEAR_UNIT))
    return [one.to(other.dtype).requires_grad_() for one, other in zip(drawn, tensors, strict=True)]


def _derived(
    bound: Binding, function: Callable[..., Any], extra: Sequence[Tensor], names: Sequence[str], title: str
) -> Binding:
    return Binding(
        function,
        (*bound.arguments, *extra),
        (*bound.names, *names),
        f"{title} of {bound.title}",
        output=title,
        derived=True,
        safe_devices=bound.safe_devices,
    )
