"""A torch function at a point as the check with error bars sees it: named leaves, one random state, exact steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor

from gradvet.core.problem import Evaluation
from gradvet.core.spaces import Leaf, Space
from gradvet.errors import InvalidProblemError
from gradvet.frontends.torch.binding import Binding
from gradvet.frontends.torch.coordinates import is_plain
from gradvet.frontends.torch.derivatives import TorchForward, TorchReverse, load_forward_mode
from gradvet.frontends.torch.draws import SHARP
from gradvet.frontends.torch.formats import coarsest_within
from gradvet.frontends.torch.passes import classify_backward_error, gradients
from gradvet.frontends.torch.problem import TorchProblem, tensors_in
from gradvet.frontends.torch.randomness import TorchRandomState
from gradvet.frontends.torch.support import is_unsupported_error
from gradvet.frontends.torch.variants import TorchVariants


class SteadyReverse(TorchReverse):
    """Every backward pass starts from the random state that the forward pass left."""

    @property
    def problem(self) -> BoundProblem:
        problem = super().problem
        assert isinstance(problem, BoundProblem)
        return problem

    def __init__(self, problem: BoundProblem) -> None:
        super().__init__(problem)
        self._after_forward = TorchRandomState()

    def _gradients(self, problem: TorchProblem, live: Sequence[Any], cotangents: Sequence[Tensor]) -> Sequence[Any]:
        self._after_forward.restore_torch()
        try:
            return super()._gradients(problem, live, cotangents)
        except Exception as error:
            classify_backward_error(live, error, spoilable=not self.problem.binding.derived)
            raise


class RecordedForward(TorchForward):
    """Duals that require grad as the inputs do, for functions that take gradients inside."""

    def __init__(self, problem: BoundProblem) -> None:
        super().__init__(problem)
        self._refusal: Exception | None = None

    def _jvp(self, tangents: Sequence[Tensor | None]) -> list[Tensor | None]:
        # What torch does not offer it need not be asked for again: its refusals take long.
        if self._refusal is not None:
            raise self._refusal
        try:
            return self._pushed(tangents)
        except Exception as error:
            if is_unsupported_error(error):
                # A fresh one: what was raised holds on to everything that was going on.
                kind = NotImplementedError if isinstance(error, NotImplementedError) else RuntimeError
                self._refusal = kind(str(error))
            raise

    def _pushed(self, tangents: Sequence[Tensor | None]) -> list[Tensor | None]:
        problem = self.problem
        if any(tensor.layout is not torch.strided for tensor in problem.inputs):
            return super()._jvp(tangents)
        problem.cost.pushes += 1
        arguments = list(problem.arguments)
        with forward_ad.dual_level():
            for leaf, tangent in zip(problem.domain.leaves, tangents, strict=True):
                primal = arguments[leaf.position].detach().requires_grad_()
                arguments[leaf.position] = primal if tangent is None else forward_ad.make_dual(primal, tangent)
            self._last = [forward_ad.unpack_dual(y) for y in problem.live_at(arguments)]
            return [None if tangent is None else tangent.clone() for _, tangent in self._last]

    @property
    def problem(self) -> BoundProblem:
        problem = super().problem
        assert isinstance(problem, BoundProblem)
        return problem


class BoundProblem(TorchProblem):
    """A bound function. With a surrogate, the values are the surrogate's and the derivatives the function's own."""

    def __init__(self, binding: Binding, seed: int, masked: bool = False) -> None:
        load_forward_mode()
        super().__init__(binding.function, binding.arguments, seed, masked)
        self.reverse = SteadyReverse(self)
        self.forward = RecordedForward(self)
        self.binding = binding
        self.variants = TorchVariants(self)
        self.domain = Space(
            [Leaf(binding.names[leaf.position], leaf.coordinates, leaf.position) for leaf in self.domain.leaves]
        )
        self.codomain, self.nondifferentiable = (
            self._titled(space) for space in (self.codomain, self.nondifferentiable)
        )
        self._internal_eps: float | None = None
        self.refusals: list[str] = []
        """What the function raised next to the point."""
        self.point = self.vector(self.domain, self.inputs)
        self._holds_any = all(map(is_plain, self.live))
        """Whether the outputs can hold any number of the working precision."""
        self._exact = all(tensor.dtype in (torch.float64, torch.complex128) for tensor in self.inputs)
        self.value = self._values(self.arguments) if binding.surrogate else self._vector_of(self.outputs)
        self.eps = max((_eps_of(t.dtype) for t in (*self.inputs, *self.live)), default=2.0**-52)

    def live_at(self, arguments: Sequence[Any]) -> list[Any]:
        """The differentiable outputs of a fresh call."""
        outputs = self._call(arguments)
        self._verify(outputs)
        return [outputs[leaf.position] for leaf in self.codomain.leaves]

    def _titled(self, space: Space) -> Space:
        """Leaves called what the binding calls its results, with a number only where there are several."""
        title, several = self.binding.output, len(self.outputs) > 1
        return Space(
            [
                Leaf(f"{title} {leaf.position}" if several else title, leaf.coordinates, leaf.position)
                for leaf in space.leaves
            ]
        )

    def signed(self, size: int, scale: float = 1.0) -> Tensor:
        return self.draws.take(SHARP, size, scale)

    def evaluate_at(self, displacement: Tensor) -> Evaluation:
        move = self.move(displacement)
        try:
            arguments = self._placed(move, 1.0)
            real = move.vector if self._exact else self._position(arguments) - self.point
            return Evaluation(self._values(arguments), real)
        except InvalidProblemError:
            raise
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            # Next to the point the function may be undefined; that is for the ladder to see.
            self.refusals.append(f"{type(error).__name__}: {error}")
            return Evaluation(torch.full_like(self.value, torch.nan), self.point * 0.0)
        finally:
            self._moving.restore()

    def vjp_at(self, displacement: Tensor, v: Tensor) -> Tensor:
        move = self.move(displacement)
        try:
            arguments = self._placed(move, 1.0)
            live = self.live_at(arguments)
            sources = [arguments[leaf.position] for leaf in self.domain.leaves]
            self.cost.pulls += 1
            return self.vector(self.domain, gradients(live, sources, self.codomain.unflatten(v)))
        finally:
            self._moving.restore()

    def internal_eps(self) -> float:
        if self._internal_eps is None:
            self._internal_eps = max(self.eps, coarsest_within(self.binding.function, self.arguments))
        return self._internal_eps

    def settle_for(self, eps: float) -> None:
        self.eps = eps

    def representable(self, v: Tensor) -> Tensor:
        if self._holds_any:
            return v
        return self.vector(self.codomain, self.codomain.unflatten(v))

    def _position(self, arguments: Sequence[Any]) -> Tensor:
        return self.vector(self.domain, [arguments[leaf.position] for leaf in self.domain.leaves])

    def _values(self, arguments: Sequence[Any]) -> Tensor:
        if self.binding.surrogate is None:
            outputs = self._call(arguments)
        else:
            self.cost.forwards += 1
            outputs = tensors_in(self.binding.surrogate(*arguments))
        self._verify(outputs)
        return self._vector_of(outputs)

    def _vector_of(self, outputs: Sequence[Any]) -> Tensor:
        return self.vector(self._everything, [outputs[i] for i in self._numeric])


def _eps_of(dtype: torch.dtype) -> float:
    return float(torch.finfo(dtype).eps)


def require_output(problem: BoundProblem) -> None:
    """A function without any floating-point result cannot be checked at all."""
    if not problem.codomain.leaves and not problem.nondifferentiable.leaves:
        found = ", ".join(str(output.dtype) for output in problem.outputs) or "no tensor"
        raise InvalidProblemError(
            f"{problem.binding.title} returns nothing differentiable: a floating-point or complex tensor was expected, "
            f"found {found}. Return the values that depend on the inputs."
        )
