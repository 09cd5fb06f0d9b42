"""A function at a point as the engine sees it: values, VJPs, JVPs, their variants, and facts about derivative rules.

Everything is in real coordinates: `domain` for the inputs that are checked, `codomain` for the outputs that have a
derivative, `nondifferentiable` for floating-point outputs that have none. A displacement is a vector of the domain.

A frontend subclasses `Problem`, whose docstring says what it must give; the rest has defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import array_api_compat

from gradvet.core.ledger import Cost
from gradvet.core.vectors import Array, Space, namespace, peak, unit_rows
from gradvet.errors import UnsupportedError


@dataclass(frozen=True, slots=True)
class FreshGradient:
    """A gradient through a fresh call, and the names of the inputs and cotangents that the passes changed."""

    gradient: Array
    changed: list[str]
    reused: list[str]
    """The changed inputs in whose memory the backward pass returned their gradient."""
    reads_arguments: bool = False
    """Whether a call with other arguments in between returned other values."""


@dataclass(eq=False)
class GradientVariants:
    """The same gradient, obtained otherwise. Each gives Jᵀv as a vector, or None where there is nothing to arrange.

    The defaults raise UnsupportedError, or say that there is nothing to arrange: the checks that need them are skipped.
    """

    problem: Problem

    def cotangent_layouts(self, v: Array) -> Mapping[str, Callable[[], Array]]:
        """The cotangents with the same values laid out in memory in other ways; each is computed when called."""
        return {}

    def expanded_cotangent(self, v: Array) -> Array | None:
        """The cotangents expanded from a single number each, for a v that is constant."""
        raise UnsupportedError("this frontend has no memory layouts")

    def fresh_gradient(self, v: Array, *, interleaved: bool = False, shifted: bool = False) -> FreshGradient:
        """Through a graph of a call of its own.

        With `interleaved`, there is a forward at other inputs of the same shapes between forward and backward. With
        `shifted`, the call gets copies of the inputs that begin elsewhere in memory; raises UnsupportedError where
        there is no such copy.
        """
        raise UnsupportedError("this frontend has no graphs")

    def fresh_pass(self, v: Array, displacement: Array | None = None) -> tuple[Array, Array]:
        """Values (codomain, then nondifferentiable outputs) and gradient of a forward and a backward pass of their own.

        They are given copies of all arguments, displaced or not, and of v, which they may overwrite.
        """
        raise UnsupportedError("this frontend compares no kernels")

    def repeated(self, v: Array) -> Array:
        """By another backward pass through the graph of the point, from another random state."""
        return self.problem.vjp(v)

    def of_one_input(self, leaf: int, v: Array) -> Array | None:
        """Only one input requires grad; None where the outputs then have no derivative."""
        raise UnsupportedError("this frontend differentiates by all inputs together")

    def draws_random_numbers(self) -> bool:
        """Whether a call draws from the framework's generators: the order of the draws is that of the memory."""
        return False

    def input_layouts(self, v: Array) -> Mapping[str, Callable[[], Array | None]]:
        """The inputs with the same values laid out in memory in other ways; each is computed when called.

        None where the function refuses the layout. Raises OtherValuesError where it returns other values.
        """
        return {}

    def mapped(self, V: Sequence[Array]) -> list[Array]:
        """Jᵀv for several cotangents by one backward pass under the framework's public vmap."""
        raise UnsupportedError("this frontend has no vmap")

    def values_mapped(self) -> tuple[Array, Array]:
        """The values of two points by one call under vmap, and by two plain calls."""
        raise UnsupportedError("this frontend has no vmap")

    def reads_captured(self) -> bool:
        """Whether the function reads tensors that it captured instead of its arguments."""
        return False

    def without_grad_mode(self) -> Array:
        """The values of the codomain from a call without grad mode."""
        raise UnsupportedError("this frontend has no grad mode")

    def accumulated(self, v: Array) -> Iterator[Array]:
        """The change of a `.grad` that was not None, through the graph of the point and through that of a fresh call;
        nothing where inputs cannot hold a gradient."""
        return iter(())

    def checkpointed(self, v: Array) -> Array:
        """With a forward pass that saves no tensors and is run again by the backward pass."""
        raise UnsupportedError("this frontend has no checkpoints")


@dataclass(frozen=True, slots=True)
class AttributeMismatch:
    """An attribute of a derivative that is not what its value's is."""

    leaf: int
    attribute: str
    found: str
    expected: str
    kind: str = ""
    """The kind of array that the derivative is, for attributes that only some kinds have."""


@dataclass(frozen=True, slots=True, eq=False)
class Gradient:
    """Jᵀv, and the attributes (layout, dtype, device, size) in which gradients differ from their inputs."""

    vector: Array | None
    """None if the gradient is zero, where a method says so."""
    mismatches: list[AttributeMismatch]


class Distribution(Enum):
    """How the random numbers of a probe are distributed."""

    UNIFORM = "in [-1½, 1½): several directions of these add the least noise"
    OFF_ZERO = "of either sign, with magnitudes in [¼, 1¾): with one direction no single wrong entry is hidden"
    NEAR_UNIT = "of either sign, with magnitudes in [½, 1½): every entry counts about the same against error bars"


class Perturbation(NamedTuple):
    """A displacement prepared for several evaluations along it."""

    parts: Sequence[Any]
    """The displacement of each leaf, in the frontend's own terms; None for one that stays."""
    vector: Array
    """The displacement as rounding to the inputs' precision left it; None for a unit step."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The outputs (codomain, then nondifferentiable) next to the point, and the displacement that rounding left."""

    values: Array
    displacement: Array


class DerivativeRules:
    """The derivative rules behind the outputs: those of the framework (builtin) or of the user (custom).

    By default every rule is taken to be the user's own.
    """

    @property
    def are_builtin(self) -> bool:
        """Whether all rules are builtin and no hook changes a gradient."""
        return False

    @property
    def has_custom(self) -> bool:
        """Whether one of the rules is custom."""
        return True

    @property
    def may_crash(self) -> bool:
        """Whether custom kernels run on a device where a fault ends the process."""
        return False

    @property
    def is_smooth_branch(self) -> bool:
        """Whether the function chooses between smooth formulas: then no convention explains a wrong slope."""
        return False

    @property
    def decomposes(self) -> bool:
        """Whether matrices are decomposed, which the framework does not differentiate at equal eigenvalues."""
        return False

    @property
    def draws_by_rejection(self) -> bool:
        """Whether numbers are drawn by rejection: their derivative is right on average, not for the draws of a seed."""
        return False

    @property
    def keeps_tensors(self) -> bool:
        """Whether a call of the function leaves tensors behind, for the next one. Calls the function."""
        return False

    def custom(self) -> list[Any]:
        """The classes or functions that hold the custom rules, as far as they are known."""
        return []

    def calls_one_operator(self) -> bool:
        """Whether the function is one call of a builtin operator. Calls the function."""
        return False

    def largest_inside(self) -> float:
        """The largest finite number inside the function, as far as can be seen. Calls the function."""
        return 0.0

    def is_unsupported(self, error: BaseException) -> bool:
        """Whether an exception says that a rule or the framework does not offer what was asked for."""
        return isinstance(error, UnsupportedError)

    def meaning(self, error: BaseException) -> str:
        """The meaning of the framework's message about a custom rule; empty if the message is not known."""
        return ""


class Problem:
    """A function at a point, in real coordinates.

    A subclass gives ten names: the attributes `domain`, `codomain`, `point`, `value`, `eps`, `cost` and `random`, and
    the methods `evaluate_at` and `vjp_at`, `jvp_at` or both. `rebound` is needed for generated points. The tolerance
    policy uses the methods of the last section; its defaults are right, and slow.
    """

    domain: Space
    codomain: Space
    nondifferentiable: Space = Space(())
    value: Array
    """The outputs (codomain, then nondifferentiable) at the point, to be read while the inputs are in place."""
    cost: Cost
    random: Callable[..., Array]
    """Called with a size, a `Distribution` and perhaps a scale: fresh random numbers times the scale, from the
    problem's own generator."""
    is_plain: bool = True
    """Whether inputs and outputs are of the framework's own types, so that derivatives are arithmetic alone."""
    independent: bool = True
    """Whether each coordinate can be moved without moving another one."""
    has_undefined_cotangents: bool = False
    """Whether the framework calls rules without a grad_output for some outputs."""
    has_parameters: bool = False
    """Whether some inputs are parameters of a model."""
    isolates_passes: bool = False
    """Whether every backward pass gets a forward pass of its own, on copies of the inputs."""

    @property
    def point(self) -> Array:
        """The inputs as a vector of the domain."""
        raise NotImplementedError

    @property
    def eps(self) -> float:
        """The relative spacing of the coarsest floating-point format among inputs and outputs."""
        raise NotImplementedError

    @property
    def rules(self) -> DerivativeRules:
        return DerivativeRules()

    @property
    def variants(self) -> GradientVariants:
        return GradientVariants(self)

    # Next to the point.

    def evaluate_at(self, displacement: Array) -> Evaluation:
        """All outputs next to the point; not a number where the function is undefined there. Inputs are restored."""
        raise NotImplementedError

    def vjp_at(self, displacement: Array, v: Array) -> Array:
        """Jᵀv next to the point, through a graph of its own."""
        raise UnsupportedError("this function has no reverse mode")

    def jvp_at(self, displacement: Array, u: Array) -> Array | None:
        """J u next to the point; None where the inputs cannot be perturbed in place."""
        raise UnsupportedError("this function has no forward mode")

    def rebound(self, binding: Any, seed: int) -> Problem:
        """The problem of another binding (`core.frontend`), such as another point; calls are counted together.

        Calls the function.
        """
        raise UnsupportedError("this frontend binds functions at one point")

    # At the point.

    def vjp(self, v: Array) -> Array:
        """Jᵀv."""
        return self.vjp_at(self.zeros(self.domain.size), v)

    def gradient(self, v: Array) -> Gradient:
        """Jᵀv with the attributes of the gradients."""
        return Gradient(self.vjp(v), [])

    def vjp_of_output(self, output: int, v: Array) -> Array:
        """Only one output has a cotangent, and the backward pass starts at that one alone."""
        part = self.codomain.slices[output]
        ahead, behind = self.zeros(part.start), self.zeros(self.codomain.size - part.stop)
        return self.vjp(namespace(v).concat([ahead, v, behind]))

    def gradient_by_output(self, v: Array) -> Gradient:
        """The sum of the gradients of each output alone, without any cotangent for the others."""
        return self.gradient(v)

    def vjp_undefined(self, outputs: Sequence[int], v: Array | None = None) -> Gradient:
        """The gradient for undefined grad_output of the outputs named and zeros, or those of v, for the others."""
        return self.gradient(self.zeros(self.codomain.size) if v is None else v)

    def vjp_batched(self, V: Sequence[Array]) -> list[Array]:
        """All rows in one vectorised pass (vmap)."""
        raise UnsupportedError("this frontend has no vmap")

    def jvp(self, u: Array, missing: int | None = None) -> Array:
        """J u; the tangent of the leaf `missing` is None instead of a tensor."""
        found = self.jvp_at(self.zeros(self.domain.size), u)
        if found is None or missing is not None:
            raise UnsupportedError("this frontend has no tangents that are None")
        return found

    def jvp_batched(self, U: Sequence[Array]) -> list[Array]:
        """All columns in one vectorised pass (vmap)."""
        raise UnsupportedError("this frontend has no vmap")

    def tangent_mismatches(self, u: Array) -> list[AttributeMismatch]:
        """The attributes in which the tangents of a JVP differ from their outputs."""
        return []

    # Formats and memory.

    def internal_eps(self) -> float:
        """The relative spacing of the coarsest format that numbers pass inside the function, as far as can be seen."""
        return self.eps

    def representable(self, vector: Array, space: Space | None = None) -> Array:
        """A vector of a space (the codomain if None), rounded to the formats of its values."""
        return vector

    def zeros(self, size: int | tuple[int, ...]) -> Array:
        """Zeros like the numbers of `value`."""
        return namespace(self.value).zeros(size, dtype=self.value.dtype, device=array_api_compat.device(self.value))

    def overwritten_inputs(self) -> list[str]:
        """Names of the inputs to which calls or backward passes wrote; they are restored."""
        return []

    def release(self) -> None:
        """Forget vectors of the size of the inputs that can be computed again."""

    def release_graph(self) -> None:
        """Forget what a model saved for backward passes: the next one begins with a forward pass."""

    # Evaluations of the tolerance policy.

    def perturbation(self, displacement: Array) -> Perturbation:
        """A displacement prepared for several evaluations along it."""
        return Perturbation([displacement], (self.point + displacement) - self.point)

    def unit_steps(self, start: int, stop: int) -> list[Perturbation]:
        """Displacements of one coordinate alone by one, for evaluations at small multiples, which alone are rounded."""
        units = unit_rows(self.zeros((stop - start, self.domain.size)), start)
        return [Perturbation([units[row, :]], units[row, :]) for row in range(stop - start)]

    def evaluate(self, perturbation: Perturbation, scales: Sequence[float]) -> list[Array]:
        """All outputs, nondifferentiable ones last, at point + scale · perturbation; inputs are restored afterwards."""
        return [self.evaluate_at(scale * perturbation.vector).values for scale in scales]

    def weighted(self, perturbation: Perturbation, scales: Sequence[float], weights: Sequence[float]) -> Array:
        """Σ weight · outputs at point + scale · perturbation; where the scale is 0 the function is not called again."""
        terms = (
            weight * (self.evaluate(perturbation, (scale,))[0] if scale else self.value)
            for scale, weight in zip(scales, weights, strict=True)
        )
        return sum(terms, start=0.0 * self.value)

    def evaluate_together(self, displacements: Array) -> Array | None:
        """The outputs, a row for each row of displacements, in one vectorised call; None where that is impossible.

        Its values hold only after a comparison with `evaluate`: a vectorised call runs other kernels, and a function
        that reads captured tensors does not see these points at all.
        """
        return None

    def vjp_rows(self, output: int, start: int, stop: int) -> Array | None:
        """Some rows of one output in one vectorised pass, to be verified; None where that is impossible."""
        return None

    def step_rounding(self, step: float) -> float:
        """The largest relative change, in any coordinate, of a step of this size by rounding."""
        return self.eps * peak(self.point) / step
