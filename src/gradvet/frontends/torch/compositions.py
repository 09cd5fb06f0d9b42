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
from gradvet.frontends.torch.derivatives import TorchForward
from gradvet.frontends.torch.passes import nodes_behind
from gradvet.frontends.torch.problem import tensors_in
from gradvet.frontends.torch.subject import TorchSubject


def second_order_subject(subject: TorchSubject, composition: str, seed: int) -> TorchSubject:
    """The subject whose derivative is the second derivative named `outer-over-inner`."""
    inner = composition.split("-over-")[1]
    nested = composition == "forward-over-forward"
    if nested and has_custom_function(subject.live):
        raise NotImplementedError("torch does not nest forward mode through an autograd.Function")
    binding = _gradient(subject) if inner == "reverse" else _pushforward(subject, nested=nested)
    derived = TorchSubject(binding, seed, subject.masked)
    if nested:
        derived.forward = NestedForward(derived)
    return derived


def has_custom_function(outputs: Sequence[Any]) -> bool:
    """Whether the graph behind the outputs holds a node of an `autograd.Function`."""
    return any(isinstance(node, torch.autograd.function.BackwardCFunction) for node in nodes_behind(outputs))


def _gradient(subject: TorchSubject) -> Binding:
    """(x, v) ↦ Jᵀv."""
    positions = [leaf.position for leaf in subject.domain.leaves]
    count = len(subject.arguments)

    def gradient(*values: Any) -> tuple[Tensor, ...]:
        values = tuple(
            value.requires_grad_() if i in positions and not value.requires_grad else value
            for i, value in enumerate(values)
        )
        sources = [values[i] for i in positions]
        outputs = _live(subject, subject.function(*values[:count]))
        found = torch.autograd.grad(outputs, sources, values[count:], create_graph=True, allow_unused=True)
        return tuple(torch.zeros_like(x) if g is None else g for g, x in zip(found, sources, strict=True))

    names = [f"the cotangent of {leaf.name}" for leaf in subject.codomain.leaves]
    return _derived(subject, gradient, _like(subject, subject.codomain, subject.live), names, "gradient")


def _pushforward(subject: TorchSubject, *, nested: bool) -> Binding:
    """(x, u) ↦ J u."""
    positions = [leaf.position for leaf in subject.domain.leaves]
    count = len(subject.arguments)

    def pushed(*values: Any) -> tuple[Tensor, ...]:
        with forward_ad.dual_level():
            arguments = list(values[:count])
            for i, tangent in zip(positions, values[count:], strict=True):
                arguments[i] = forward_ad.make_dual(arguments[i], tangent)
            outputs = _live(subject, subject.function(*arguments))
            duals = [forward_ad.unpack_dual(y) for y in outputs]
            return tuple(torch.zeros_like(value) if tangent is None else tangent.clone() for value, tangent in duals)

    def pushed_within(*values: Any) -> tuple[Tensor, ...]:
        def inner(*sources: Any) -> tuple[Tensor, ...]:
            arguments = list(values[:count])
            for i, source in zip(positions, sources, strict=True):
                arguments[i] = source
            return tuple(_live(subject, subject.function(*arguments)))

        points = tuple(values[i] for i in positions)
        return tuple(torch.func.jvp(inner, points, tuple(values[count:]))[1])

    names = [f"the tangent of {leaf.name}" for leaf in subject.domain.leaves]
    tangents = _like(subject, subject.domain, subject.inputs)
    return _derived(subject, pushed_within if nested else pushed, tangents, names, "tangent")


def _live(subject: TorchSubject, result: Any) -> list[Any]:
    """The differentiable results, by the places that they had at first."""
    outputs = tensors_in(result)
    return [outputs[leaf.position] for leaf in subject.codomain.leaves]


def _like(subject: TorchSubject, space: Space, tensors: Sequence[Any]) -> list[Tensor]:
    """Random tensors like those of a space, that require grad."""
    drawn = space.unflatten(subject.signed(space.size))
    return [one.to(other.dtype).requires_grad_() for one, other in zip(drawn, tensors, strict=True)]


def _derived(
    subject: TorchSubject, function: Callable[..., Any], extra: Sequence[Tensor], names: Sequence[str], title: str
) -> Binding:
    bound = subject.binding
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

    def _push(self, tangents: Sequence[Tensor | None]) -> list[Tensor | None]:
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
