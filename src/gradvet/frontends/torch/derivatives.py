"""Reverse and forward mode of a torch function, in real coordinates."""

from __future__ import annotations

import contextlib
import functools
import warnings
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor

from gradvet.core.problem import Misfit
from gradvet.frontends.torch.batching import vjp_rows
from gradvet.frontends.torch.layouts import can_be_cut
from gradvet.frontends.torch.passes import swift_gradients

if TYPE_CHECKING:
    from gradvet.frontends.torch.problem import TorchProblem


def _undefined(output: Any) -> Any:
    """The output through an identity that lets no cotangent back; what cannot be cut off so gets zeros."""
    return torch._C._functions.UndefinedGrad()(output) if can_be_cut(output) else output


@functools.cache
def load_forward_mode() -> None:
    """The first dual number makes torch load its formulas, which warns: nothing that a user can mend, or should see."""
    with warnings.catch_warnings(), contextlib.suppress(RuntimeError), forward_ad.dual_level():
        warnings.simplefilter("ignore")
        forward_ad.make_dual(torch.zeros(()), torch.zeros(()))


def _is_nothing(gradient: Any) -> bool:
    """Whether a gradient is missing, or an ordinary tensor of zeros."""
    return gradient is None or (
        type(gradient) is Tensor and gradient.layout is torch.strided and not torch.count_nonzero(gradient)
    )


class Derivative:
    """A derivative of a problem, which owns it: a strong reference back would keep the graph alive too long."""

    def __init__(self, problem: TorchProblem) -> None:
        self._problem = weakref.ref(problem)

    @property
    def problem(self) -> TorchProblem:
        problem = self._problem()
        assert problem is not None
        return problem


class TorchReverse(Derivative):
    """Backward passes through the one graph that was recorded at the point."""

    def __init__(self, problem: TorchProblem) -> None:
        super().__init__(problem)
        self._last: Sequence[Any] = ()

    def vjp(self, v: Tensor) -> Tensor:
        problem = self.problem
        return problem.gathered(self._gradients(problem, problem.live, problem.codomain.unflatten(v)))

    def vjp_of_output(self, output: int, v: Tensor) -> Tensor:
        problem = self.problem
        cotangent = problem.codomain.leaves[output].coordinates.unflatten(v)
        return problem.gathered(self._gradients(problem, (problem.live[output],), (cotangent,)))

    def vjp_by_output(self, v: Tensor) -> Tensor:
        codomain = self.problem.codomain
        if len(codomain.leaves) == 1:
            return self.vjp(v)
        return sum((self.vjp_of_output(i, v[codomain.slice(i)]) for i in range(len(codomain.leaves))), torch.zeros(()))

    def vjp_undefined(self, outputs: Sequence[int]) -> Tensor | None:
        problem = self.problem
        live = [_undefined(y) if i in outputs else y for i, y in enumerate(problem.live)]
        gradients = self._gradients(problem, live, [torch.zeros_like(y) for y in live])
        return None if all(map(_is_nothing, gradients)) else problem.gathered(gradients)

    def vjp_batched(self, V: Sequence[Tensor]) -> list[Tensor]:
        problem = self.problem
        each = [problem.codomain.unflatten(v) for v in V]
        cotangents = [torch.stack(column) for column in zip(*each, strict=True)]
        problem.cost.pulls += 1
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="There is a performance drop")
            gradients = torch.autograd.grad(
                problem.live, problem.inputs, cotangents, retain_graph=True, allow_unused=True, is_grads_batched=True
            )
        return [problem.gathered([g if g is None else g[k] for g in gradients]) for k in range(len(V))]

    def vjp_rows(self, output: int, start: int, stop: int) -> Tensor | None:
        return vjp_rows(self.problem, output, range(start, stop))

    def misfits(self) -> list[Misfit]:
        return [
            Misfit(leaf, *misfit, kind=str(gradient.layout).removeprefix("torch.").removesuffix("_coo"))
            for leaf, (layout, gradient) in enumerate(zip(self.problem.layouts, self._last, strict=True))
            if gradient is not None
            for misfit in layout.misfits(gradient)
        ]

    def _gradients(self, problem: TorchProblem, live: Sequence[Any], cotangents: Sequence[Tensor]) -> Sequence[Any]:
        problem.cost.pulls += 1
        self._last = swift_gradients(tuple(live), problem.inputs, tuple(cotangents), ordinary=problem.ordinary)
        return self._last


class TorchForward(Derivative):
    """Dual numbers through a fresh call of the function; the inputs are detached, so nothing requires grad."""

    def __init__(self, problem: TorchProblem) -> None:
        super().__init__(problem)
        self._last: list[tuple[Tensor, Tensor | None]] = []

    def jvp(self, u: Tensor) -> Tensor:
        return self._vector(self._jvp(self.problem.domain.unflatten(u)))

    def jvp_undefined(self, u: Tensor, leaf: int) -> Tensor:
        tangents: list[Tensor | None] = self.problem.domain.unflatten(u)
        tangents[leaf] = None
        return self._vector(self._jvp(tangents))

    def jvp_batched(self, U: Sequence[Tensor]) -> list[Tensor]:
        from torch._vmap_internals import _vmap  # what torch itself batches derivatives with

        def jvp(*tangents: Tensor) -> tuple[Tensor, ...]:
            found = self._jvp(tangents)
            return tuple(
                torch.zeros_like(y) if tangent is None else tangent
                for y, tangent in zip(self.problem.live, found, strict=True)
            )

        each = [self.problem.domain.unflatten(u) for u in U]
        found = _vmap(jvp)(*[torch.stack(column) for column in zip(*each, strict=True)])
        return [self._vector([tangent[k] for tangent in found]) for k in range(len(U))]

    def misfits(self) -> list[Misfit]:
        return [
            Misfit(leaf, "dtype", str(tangent.dtype), str(value.dtype))
            for leaf, (value, tangent) in enumerate(self._last)
            if tangent is not None and tangent.is_complex() != value.is_complex()
        ]

    def _jvp(self, tangents: Sequence[Tensor | None]) -> list[Tensor | None]:
        problem = self.problem
        problem.cost.pushes += 1
        load_forward_mode()
        arguments = list(problem.arguments)
        with forward_ad.dual_level():
            for leaf, layout, tangent in zip(problem.domain.leaves, problem.layouts, tangents, strict=True):
                arguments[leaf.position] = layout.dual(tangent)
            self._last = [forward_ad.unpack_dual(y) for y in problem.call(arguments)[: len(problem.live)]]
            # A tangent lives as long as its level; what leaves the level is a copy.
            return [None if tangent is None else tangent.clone() for _, tangent in self._last]

    def _vector(self, tangents: Sequence[Tensor | None]) -> Tensor:
        return self.problem.vector(self.problem.codomain, tangents)
