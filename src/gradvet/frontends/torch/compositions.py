"""First derivatives as functions of their own, so that second derivatives are checked like any others.

Reverse mode as a function is (x, v) ↦ Jᵀv, forward mode is (x, u) ↦ J u. Each is then differentiated in either mode.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor

from gradvet.core.spaces import Space
from gradvet.errors import InvalidProblemError
from gradvet.frontends.torch.binding import Binding
from gradvet.frontends.torch.bound_problem import BoundProblem
from gradvet.frontends.torch.derivatives import TorchForward
from gradvet.frontends.torch.passes import nodes_behind
from gradvet.frontends.torch.problem import tensors_in


def second_order_problem(problem: BoundProblem, composition: str, seed: int) -> BoundProblem:
    """The subject whose derivative is the second derivative named `outer-over-inner`."""
    inner = composition.split("-over-")[1]
    nested = composition == "forward-over-forward"
    if nested and has_custom_function(problem.live):
        raise NotImplementedError("torch does not nest forward mode through an autograd.Function")
    binding = _gradient(problem) if inner == "reverse" else _pushforward(problem, nested=nested)
    derived = BoundProblem(binding, seed, problem.masked)
    if nested:
        derived.forward = NestedForward(derived)
    return derived


def has_custom_function(outputs: Sequence[Any]) -> bool:
    """Whether the graph behind the outputs holds a node of an `autograd.Function`."""
    return any(isinstance(node, torch.autograd.function.BackwardCFunction) for node in nodes_behind(outputs))


def _gradient(problem: BoundProblem) -> Binding:
    """(x, v) ↦ Jᵀv."""
    positions = [leaf.position for leaf in problem.domain.leaves]
    count = len(problem.arguments)

    def gradient(*values: Any) -> tuple[Tensor, ...]:
        values = tuple(
            value.requires_grad_() if i in positions and not value.requires_grad else value
            for i, value in enumerate(values)
        )
        sources = [values[i] for i in positions]
        outputs = _live(problem, problem.function(*values[:count]))
        found = torch.autograd.grad(outputs, sources, values[count:], create_graph=True, allow_unused=True)
        return tuple(torch.zeros_like(x) if g is None else g for g, x in zip(found, sources, strict=True))

    names = [f"the cotangent of {leaf.name}" for leaf in problem.codomain.leaves]
    return _derived(problem, gradient, _like(problem, problem.codomain, problem.live), names, "gradient")


def _pushforward(problem: BoundProblem, *, nested: bool) -> Binding:
    """(x, u) ↦ J u."""
    positions = [leaf.position for leaf in problem.domain.leaves]
    count = len(problem.arguments)

    def jvp(*values: Any) -> tuple[Tensor, ...]:
        with forward_ad.dual_level():
            arguments = list(values[:count])
            for i, tangent in zip(positions, values[count:], strict=True):
                arguments[i] = forward_ad.make_dual(arguments[i], tangent)
            outputs = _live(problem, problem.function(*arguments))
            duals = [forward_ad.unpack_dual(y) for y in outputs]
            return tuple(torch.zeros_like(value) if tangent is None else tangent.clone() for value, tangent in duals)

    def pushed_within(*values: Any) -> tuple[Tensor, ...]:
        def inner(*sources: Any) -> tuple[Tensor, ...]:
            arguments = list(values[:count])
            for i, source in zip(positions, sources, strict=True):
                arguments[i] = source
            return tuple(_live(problem, problem.function(*arguments)))

        points = tuple(values[i] for i in positions)
        return tuple(torch.func.jvp(inner, points, tuple(values[count:]))[1])

    names = [f"the tangent of {leaf.name}" for leaf in problem.domain.leaves]
    tangents = _like(problem, problem.domain, problem.inputs)
    return _derived(problem, pushed_within if nested else jvp, tangents, names, "tangent")


def _live(problem: BoundProblem, result: Any) -> list[Any]:
    """The differentiable results, by the places that they had at first."""
    outputs = tensors_in(result)
    return [outputs[leaf.position] for leaf in problem.codomain.leaves]


def _like(problem: BoundProblem, space: Space, tensors: Sequence[Any]) -> list[Tensor]:
    """Random tensors like those of a space, that require grad."""
    drawn = space.unflatten(problem.signed(space.size))
    return [one.to(other.dtype).requires_grad_() for one, other in zip(drawn, tensors, strict=True)]


def _derived(
    problem: BoundProblem, function: Callable[..., Any], extra: Sequence[Tensor], names: Sequence[str], title: str
) -> Binding:
    bound = problem.binding
    return Binding(
        function,
        (*bound.arguments, *extra),
        (*bound.names, *names),
        f"{title} of {bound.title}",
        output=title,
        derived=True,
    )


class NestedForward(TorchForward):
    """Forward mode by `torch.func.jvp`, the only one that nests."""

    def _jvp(self, tangents: Sequence[Tensor | None]) -> list[Tensor | None]:
        problem = self.problem
        problem.cost.pushes += 1
        positions = [leaf.position for leaf in problem.domain.leaves]

        def live(*sources: Any) -> tuple[Tensor, ...]:
            arguments = list(problem.arguments)
            for i, source in zip(positions, sources, strict=True):
                arguments[i] = source
            outputs = tensors_in(problem.function(*arguments))
            return tuple(outputs[leaf.position] for leaf in problem.codomain.leaves)

        points = tuple(tensor.detach() for tensor in problem.inputs)
        if any(tangent is None for tangent in tangents):
            raise InvalidProblemError("nested forward mode needs a tangent for every input")
        return list(torch.func.jvp(live, points, tuple(t for t in tangents if t is not None))[1])
