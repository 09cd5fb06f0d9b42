"""What a frontend offers the engine: a function at a point, and the derivatives that the framework computes for it.

Everything is in real coordinates: `domain` for the inputs that are checked, `codomain` for the outputs that have a
derivative, `silent` for floating-point outputs that have none. A displacement is a vector of the domain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from gradvet.core.spaces import Array, Space
from gradvet.core.variants import GradientVariants


@dataclass(slots=True)
class Cost:
    """How often the function and its derivatives were called."""

    forwards: int = 0
    pulls: int = 0
    pushes: int = 0


@dataclass(frozen=True, slots=True)
class Misfit:
    """An attribute of a derivative that is not what its value's is."""

    leaf: int
    attribute: str
    found: str
    expected: str
    kind: str = ""
    """What kind of array the derivative is, for attributes that only some kinds have."""


class Move(NamedTuple):
    """A displacement that was made ready, to be walked back and forth."""

    parts: Sequence[Any]
    """The displacement of each leaf, in the frontend's own terms."""
    vector: Array
    """The displacement as rounding to the inputs' precision left it."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The outputs (codomain, then silent) next to the point, and the displacement that rounding really left."""

    values: Array
    displacement: Array


class Problem(Protocol):
    """A function at a point, in real coordinates."""

    @property
    def domain(self) -> Space: ...
    @property
    def codomain(self) -> Space: ...
    @property
    def nondifferentiable(self) -> Space: ...
    @property
    def cost(self) -> Cost: ...
    @property
    def ordinary(self) -> bool:
        """Whether all values are of the framework's own kind, so that its derivatives do nothing but arithmetic."""
        ...

    @property
    def is_known_builtin(self) -> bool:
        """Whether nothing in the derivative of the only output is the function's own."""
        ...

    @property
    def independent(self) -> bool:
        """Whether each coordinate can be moved without moving another one."""
        ...

    @property
    def value(self) -> Array:
        """The outputs (codomain, then silent) at the point, to be read while the inputs are in place."""
        ...

    def move(self, displacement: Array) -> Move: ...
    def evaluate(self, move: Move, scales: Sequence[float]) -> list[Array]:
        """The outputs (codomain, then silent) at point + scale · move; the inputs are back in place afterwards."""
        ...

    def weighted(self, move: Move, scales: Sequence[float], weights: Sequence[float]) -> Array:
        """Σ weight · outputs at point + scale · move; where the scale is 0 the function is not called again."""
        ...

    def evaluate_together(self, displacements: Array) -> Array | None:
        """The outputs, a row for each row of displacements, in one vectorised call; None where that is impossible.

        What it gives is to be trusted only after a comparison with `evaluate`: a vectorised call runs other kernels,
        and a function that reads captured tensors does not see these points at all.
        """
        ...

    def evaluate_replayed(self, displacements: Array) -> Array | None:
        """The same by replaying what was recorded of plain calls, where the device can do that."""
        ...

    def coarseness(self, step: float) -> float:
        """By how much of itself rounding may change a step of this size in any coordinate."""
        ...

    def keeps(self, step: float, within: float) -> bool:
        """Whether rounding changes a step of this size by no more than such a part of it, in any coordinate."""
        ...

    def equal(self, one: Array, other: Array) -> bool:
        """Whether two vectors hold the same numbers; what is not a number equals nothing."""
        ...

    def vanishes(self, vector: Array) -> bool:
        """Whether every number is zero."""
        ...

    def zeros(self, size: int | tuple[int, ...]) -> Array: ...
    def signed(self, size: int, scale: float = 1.0) -> Array:
        """Fresh random numbers of either sign with magnitudes in [¼, 1¾) · scale, from the check's own generator."""
        ...

    def uniform(self, size: int, scale: float = 1.0) -> Array:
        """Fresh random numbers in [-1½, 1½) · scale."""
        ...

    def vjp(self, v: Array) -> Array: ...
    def vjp_of_output(self, output: int, v: Array) -> Array:
        """Only one output has a cotangent, and the backward pass starts at that one alone."""
        ...

    def vjp_by_output(self, v: Array) -> Array:
        """The sum over the outputs of what each gives alone, the others having no cotangent at all."""
        ...

    def vjp_batched(self, V: Sequence[Array]) -> list[Array]:
        """All rows in one vectorised pass (vmap)."""
        ...

    def vjp_rows(self, output: int, start: int, stop: int) -> Array | None:
        """Some rows of one output in one vectorised pass, to be verified; None where that is impossible."""
        ...

    def vjp_undefined(self, outputs: Sequence[int]) -> Array | None:
        """No cotangent at all for the outputs named, zeros for the others; None if the gradient is zero then."""
        ...

    def gradient_misfits(self) -> list[Misfit]:
        """Attributes (layout, dtype, device, size) in which the last pull's gradients differ from their inputs."""
        ...

    def jvp(self, u: Array) -> Array: ...
    def jvp_batched(self, U: Sequence[Array]) -> list[Array]:
        """All columns in one vectorised pass (vmap)."""
        ...

    def jvp_undefined(self, u: Array, leaf: int) -> Array:
        """The tangent of one leaf is missing instead of zero."""
        ...

    def tangent_misfits(self) -> list[Misfit]:
        """Tangents of the last push that are complex where their values are real, or the reverse."""
        ...

    @property
    def point(self) -> Array:
        """The inputs as a vector of the domain."""
        ...

    @property
    def eps(self) -> float:
        """The relative spacing of the coarsest floating-point format among inputs and outputs."""
        ...

    def internal_eps(self) -> float:
        """The relative spacing of the coarsest format that numbers pass inside the function, as far as can be seen."""
        ...

    def settle_for(self, eps: float) -> None:
        """From now on the format is as coarse as this."""
        ...

    @property
    def variants(self) -> GradientVariants: ...
    def evaluate_at(self, displacement: Array) -> Evaluation: ...
    def vjp_at(self, displacement: Array, v: Array) -> Array:
        """Jᵀv next to the point, through a graph of its own."""
        ...

    def representable(self, v: Array) -> Array:
        """A codirection as the outputs' formats can hold it."""
        ...
