"""The same gradient under other circumstances: other layouts, other order of events, other surroundings."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint as decorated_checkpoint

from gradvet.core.variants import FreshGradient
from gradvet.errors import DerivativeError
from gradvet.frontends.torch.makeup import Calls, branches_smoothly, has_decomposition
from gradvet.frontends.torch.passes import accumulate, gradients, is_builtin, nodes_behind
from gradvet.frontends.torch.problem import tensors_in
from gradvet.frontends.torch.rearrangements import LAYOUTS, OFFSET, differ

if TYPE_CHECKING:
    from gradvet.frontends.torch.bound_problem import BoundProblem

checkpoint = getattr(decorated_checkpoint, "__wrapped__", decorated_checkpoint)
"""Without its decorator, which loads the compiler: seconds, for nothing."""


class TorchVariants:
    """Arranges circumstances for a subject, which owns it."""

    def __init__(self, problem: BoundProblem) -> None:
        self._subject = weakref.ref(problem)
        self._names: frozenset[str] | None = None
        self._reads_arguments = False
        """Whether other arguments were seen to give other values."""

    @property
    def problem(self) -> BoundProblem:
        problem = self._subject()
        assert problem is not None
        return problem

    @property
    def _nodes(self) -> frozenset[str]:
        """The names of all nodes in the graph of the point."""
        if self._names is None:
            self._names = frozenset([node.name() for node in nodes_behind(self.problem.live)])
        return self._names

    def cotangent_layouts(self, v: Tensor) -> Mapping[str, Tensor]:
        plain = self.problem.codomain.unflatten(v)
        found = {}
        for name, change in LAYOUTS.items():
            laid_out = [change(t) if t.layout is torch.strided else t for t in plain]
            if any(differ(one, other) for one, other in zip(laid_out, plain, strict=True)):
                with _named(f"for a cotangent that is {name} in memory"):
                    found[name] = self._vjp(laid_out)
        return found

    def expanded_cotangent(self, v: Tensor) -> Tensor | None:
        plain = self.problem.codomain.unflatten(v)
        if any(t.layout is not torch.strided for t in plain):
            return None
        with _named("for a cotangent that is expanded in memory"):
            return self._vjp([t.reshape(-1)[0].expand(t.shape) if t.numel() else t for t in plain])

    def fresh_gradient(self, v: Tensor) -> FreshGradient:
        return self._watched(v, lambda: None)

    def after_other_forward(self, v: Tensor) -> FreshGradient:
        with _named("after a forward pass at other inputs"):
            return self._watched(v, self._call_elsewhere)

    def shifted_after_other_forward(self, v: Tensor) -> FreshGradient | None:
        arguments = self._laid_out(LAYOUTS[OFFSET])
        return None if arguments is None else self._watched(v, self._call_elsewhere, arguments)

    def _watched(self, v: Tensor, between: Callable[[], None], given: Sequence[Any] = ()) -> FreshGradient:
        """A forward and a backward pass, with an eye on arguments and cotangents."""
        problem = self.problem
        given = given or problem.arguments
        cotangents = problem.codomain.unflatten(v)
        names = [f"the cotangent of {leaf.name}" for leaf in problem.codomain.leaves]
        arguments = [(n, a) for n, a in zip(problem.binding.names, given, strict=True) if _plain(a)]
        watched = [*zip(names, cotangents, strict=True), *arguments]
        before = [(name, tensor, tensor.detach().clone()) for name, tensor in watched]
        outputs = problem.live_at(given)
        between()
        gradient = self._gradient(outputs, cotangents, [given[leaf.position] for leaf in problem.domain.leaves])
        changed = [(name, tensor, copy) for name, tensor, copy in before if not _same(tensor.detach(), copy)]
        for _, tensor, copy in changed:
            # Whoever asks next is to find it as it was.
            tensor.data.copy_(copy)
        return FreshGradient(gradient, [name for name, _, _ in changed])

    def _call_elsewhere(self) -> None:
        """The function at other inputs of the same shapes."""
        problem = self.problem
        with torch.no_grad():
            others = [
                (0.5 * a.detach() + 0.25).to(a.dtype).requires_grad_() if _floating(a) and a.requires_grad else a
                for a in problem.arguments
            ]
        try:
            found = tensors_in(problem.function(*others))
            if len(found) == len(problem.outputs):
                there = [found[leaf.position] for leaf in problem.codomain.leaves]
                self._reads_arguments = any(map(_differ, there, problem.live))
        except (ArithmeticError, RuntimeError, ValueError, IndexError):
            problem.function(*[a.detach().clone().requires_grad_() if _floating(a) else a for a in problem.arguments])
        problem.cost.forwards += 1

    def again(self, v: Tensor) -> Tensor:
        torch.rand((), device=self.problem.home)
        return self._vjp(self.problem.codomain.unflatten(v))

    def alone(self, leaf: int, v: Tensor) -> Tensor | None:
        problem = self.problem
        arguments = list(problem.arguments)
        for number, other in enumerate(problem.domain.leaves):
            if number != leaf:
                arguments[other.position] = arguments[other.position].detach()
        source = arguments[problem.domain.leaves[leaf].position]
        outputs = problem.live_at(arguments)
        pairs = [(y, t) for y, t in zip(outputs, problem.codomain.unflatten(v), strict=True) if y.requires_grad]
        if not pairs:
            return None
        problem.cost.pulls += 1
        live, cotangents = zip(*pairs, strict=True)
        gradient = gradients(live, [source], cotangents)[0]
        coordinates = problem.domain.leaves[leaf].coordinates
        found: Tensor = problem.zeros(coordinates.size) if gradient is None else coordinates.flatten(gradient)
        return found

    def input_layouts(self, v: Tensor, known: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        problem, found = self.problem, {}
        for name, change in LAYOUTS.items():
            if name in known:
                found[name] = known[name]
            elif (arguments := self._laid_out(change)) is not None:
                live = None
                with suppress(ArithmeticError, RuntimeError, ValueError, IndexError):
                    live = problem.live_at(arguments)
                if live is None or not self._same_values(live):
                    continue  # the function itself depends on the layout, as where random numbers are dealt out
                sources = [arguments[leaf.position] for leaf in problem.domain.leaves]
                with _named(f"for inputs that are {name} in memory"):
                    found[name] = self._gradient(live, problem.codomain.unflatten(v), sources)
        return found

    def _laid_out(self, change: Callable[[Tensor], Tensor]) -> list[Any] | None:
        """Copies of the arguments that lie otherwise in memory; None where they would not."""
        problem = self.problem
        if not all(map(_plain, problem.inputs)):
            return None
        arguments, differs = list(problem.arguments), False
        for leaf in problem.domain.leaves:
            own = arguments[leaf.position]
            # Parameters belong to their module, which keeps them contiguous.
            if not isinstance(own, torch.nn.Parameter):
                arguments[leaf.position] = copy = change(own.detach()).requires_grad_()
                differs = differs or differ(copy, own)
        return arguments if differs else None

    def mapped(self, V: Sequence[Tensor]) -> list[Tensor]:
        problem = self.problem
        each = [problem.codomain.unflatten(v) for v in V]

        def vjp(*cotangents: Tensor) -> tuple[Tensor, ...]:
            found = torch.autograd.grad(problem.live, problem.inputs, cotangents, retain_graph=True, allow_unused=True)
            return tuple(torch.zeros_like(x) if g is None else g for g, x in zip(found, problem.inputs, strict=True))

        problem.cost.pulls += 1
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="There is a performance drop")
            together = torch.func.vmap(vjp)(*[torch.stack(column) for column in zip(*each, strict=True)])
        return [problem.vector(problem.domain, [g[k] for g in together]) for k in range(len(V))]

    def values_mapped(self) -> tuple[Tensor, Tensor]:
        problem = self.problem
        places = [leaf.position for leaf in problem.domain.leaves]
        points = [[x.detach(), (1.0 - 2.0**-6) * x.detach()] for x in problem.inputs]

        def values(*sources: Tensor) -> tuple[Tensor, ...]:
            arguments = list(problem.arguments)
            for place, source in zip(places, sources, strict=True):
                arguments[place] = source
            return tuple(problem.live_at(arguments))

        together = torch.func.vmap(values)(*[torch.stack(pair) for pair in points])
        apart = [values(*row) for row in zip(*points, strict=True)]
        return (
            torch.cat([problem.vector(problem.codomain, [y[k] for y in together]) for k in range(2)]),
            torch.cat([problem.vector(problem.codomain, row) for row in apart]),
        )

    def has_custom_rules(self) -> bool:
        return not all(map(is_builtin, self._nodes))

    def is_builtin(self) -> bool:
        return not self.has_custom_rules() and not self.problem.is_hooked

    def branches_smoothly(self) -> bool:
        return branches_smoothly(self._nodes)

    def reads_captured(self) -> bool:
        if self._reads_arguments:
            return False
        problem = self.problem
        step = 1e-2 * problem.point + 1e-3
        arguments = list(problem.arguments)
        for leaf, value in zip(problem.domain.leaves, problem.domain.unflatten(problem.point + step), strict=True):
            arguments[leaf.position] = value.requires_grad_()
        copied = problem.vector(problem.codomain, problem.live_at(arguments))
        if not torch.equal(copied, here := problem.value[: copied.shape[0]]):
            return False  # it sees what it is given
        moved = problem.evaluate_at(step)
        return bool(moved.displacement.any()) and not torch.equal(moved.values[: copied.shape[0]], here)

    def decomposes(self) -> bool:
        return has_decomposition(self._nodes)

    def calls_one_operator(self) -> bool:
        with Calls() as calls:
            self.problem.live_at(self.problem.arguments)
        return calls.count <= 1 and self.is_builtin()

    def without_grad_mode(self) -> Tensor:
        problem = self.problem
        with torch.no_grad():
            outputs = problem.live_at(problem.arguments)
        return problem.vector(problem.codomain, outputs)

    def accumulated(self, v: Tensor) -> Iterator[Tensor]:
        problem = self.problem
        if all(_plain(t) and t.is_leaf for t in problem.inputs):
            yield self._accumulated(problem.live, v)
            yield self._accumulated(problem.live_at(problem.arguments), v)

    def _accumulated(self, live: Sequence[Any], v: Tensor) -> Tensor:
        problem = self.problem
        held = [tensor.grad for tensor in problem.inputs]
        try:
            for tensor in problem.inputs:
                tensor.grad = torch.full_like(tensor, 2.0)
            problem.cost.pulls += 1
            accumulate(live, problem.codomain.unflatten(v))
            return problem.vector(problem.domain, [tensor.grad - 2.0 for tensor in problem.inputs])
        finally:
            for tensor, gradient in zip(problem.inputs, held, strict=True):
                tensor.grad = gradient

    def checkpointed(self, v: Tensor) -> Tensor:
        problem = self.problem
        problem.cost.forwards += 2
        outputs = tensors_in(checkpoint(problem.function, *problem.arguments, use_reentrant=False))
        live = [output for output in outputs if output.requires_grad]
        return self._gradient(live, problem.codomain.unflatten(v))

    def _same_values(self, live: Sequence[Any]) -> bool:
        problem = self.problem
        if all(_plain(one) and torch.equal(one, other) for one, other in zip(live, problem.live, strict=True)):
            return True
        values, expected = (problem.vector(problem.codomain, outputs) for outputs in (live, problem.live))
        return torch.allclose(values, expected, rtol=problem.eps**0.5, equal_nan=True)

    def _vjp(self, cotangents: Sequence[Tensor]) -> Tensor:
        """Through the graph that was recorded at the point."""
        return self._gradient(self.problem.live, cotangents)

    def _gradient(self, live: Sequence[Any], cotangents: Sequence[Tensor], sources: Sequence[Any] = ()) -> Tensor:
        problem = self.problem
        problem.cost.pulls += 1
        return problem.gathered(gradients(live, sources or problem.inputs, cotangents))


@contextmanager
def _named(circumstance: str) -> Iterator[None]:
    """A pass that fails inside says in which circumstance."""
    try:
        yield
    except DerivativeError as error:
        raise DerivativeError(f"{error} ({circumstance})") from error.__cause__


def _plain(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout is torch.strided


def _floating(value: Any) -> bool:
    return _plain(value) and bool(value.is_floating_point() or value.is_complex())


def _differ(one: Any, other: Any) -> bool:
    return _plain(one) and _plain(other) and not torch.equal(one, other)


def _same(one: Tensor, other: Tensor) -> bool:
    if not one.numel() or torch.equal(one, other):
        return True
    return bool(torch.equal(one.nan_to_num(), other.nan_to_num()))
