"""What the engine needs of a function at a point: values, VJPs, JVPs, their variants, and facts about derivative rules.

Everything is in real coordinates: `domain` for the inputs that are checked, `codomain` for the outputs that have a
derivative, `nondifferentiable` for floating-point outputs that have none. A displacement is a vector of the domain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, Protocol

from gradvet.core.spaces import Array, Space


@dataclass(frozen=True, slots=True)
class FreshGradient:
    """A gradient through a fresh call, and the names of the inputs and cotangents that the passes changed."""

    gradient: Array
    changed: list[str]
    reused: list[str]
    """The changed inputs in whose memory the backward pass returned their gradient."""
    reads_arguments: bool = False
    """Whether a call with other arguments in between returned other values."""


@dataclass(frozen=True, slots=True)
class FreshPass:
    """Values (codomain, then nondifferentiable outputs) and gradient of a forward and a backward pass of their own."""

    values: Array
    gradient: Array


class GradientVariants(Protocol):
    """The same gradient, obtained otherwise. Each gives Jᵀv as a vector, or None where there is nothing to arrange."""

    def cotangent_layouts(self, v: Array) -> Mapping[str, Callable[[], Array]]:
        """The cotangents with the same values laid out in memory in other ways; each is computed when called."""
        ...

    def expanded_cotangent(self, v: Array) -> Array | None:
        """The cotangents expanded from a single number each, for a v that is constant."""
        ...

    def fresh_gradient(self, v: Array, *, interleaved: bool = False, shifted: bool = False) -> FreshGradient:
        """Through a graph of a call of its own.

        With `interleaved`, there is a forward at other inputs of the same shapes between forward and backward. With
        `shifted`, the call gets copies of the inputs that begin elsewhere in memory; raises UnsupportedError where
        there is no such copy.
        """
        ...

    def fresh_pass(self, v: Array, displacement: Array | None = None) -> FreshPass:
        """Through a call on copies of all arguments and of v, displaced or not: the passes may overwrite them."""
        ...

    def again(self, v: Array) -> Array:
        """By another backward pass through the graph of the point, from another random state."""
        ...

    def alone(self, leaf: int, v: Array) -> Array | None:
        """Only one input requires grad; None where the outputs then have no derivative."""
        ...

    def draws_random_numbers(self) -> bool:
        """Whether a call draws from the framework's generators: the order of the draws is that of the memory."""
        ...

    def input_layouts(self, v: Array) -> Mapping[str, Callable[[], Array | None]]:
        """The inputs with the same values laid out in memory in other ways; each is computed when called.

        None where the function refuses the layout. Raises OtherValuesError where it returns other values.
        """
        ...

    def mapped(self, V: Sequence[Array]) -> list[Array]:
        """Jᵀv for several cotangents by one backward pass under the framework's public vmap."""
        ...

    def values_mapped(self) -> tuple[Array, Array]:
        """The values of two points by one call under vmap, and by two plain calls."""
        ...

    def reads_captured(self) -> bool:
        """Whether the function reads tensors that it captured instead of its arguments."""
        ...

    def without_grad_mode(self) -> Array:
        """The values of the codomain from a call without grad mode."""
        ...

    def accumulated(self, v: Array) -> Iterator[Array]:
        """What `.grad` gains when it held something before, through the graph of the point and through that of a fresh
        call; nothing where inputs cannot hold a gradient."""
        ...

    def checkpointed(self, v: Array) -> Array:
        """With a forward pass that saves no tensors and is run again by the backward pass."""
        ...


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


@dataclass(frozen=True, slots=True, eq=False)
class Gradient:
    """Jᵀv, and the attributes (layout, dtype, device, size) in which gradients differ from their inputs."""

    vector: Array | None
    """None if the gradient is zero, where a method says so."""
    misfits: list[Misfit]


class Distribution(Enum):
    """How the random numbers of a probe are distributed."""

    UNIFORM = "in [-1½, 1½): several directions of these add the least noise"
    OFF_ZERO = "of either sign, with magnitudes in [¼, 1¾): with one direction no single wrong entry is hidden"
    NEAR_UNIT = "of either sign, with magnitudes in [½, 1½): every entry counts about the same against error bars"


class Perturbation(NamedTuple):
    """A displacement prepared for several evaluations along it."""

    parts: Sequence[Any]
    """The displacement of each leaf, in the frontend's own terms."""
    vector: Array
    """The displacement as rounding to the inputs' precision left it."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The outputs (codomain, then nondifferentiable) next to the point, and the displacement that rounding left."""

    values: Array
    displacement: Array


class DerivativeRules(Protocol):
    """The derivative rules behind the outputs: those of the framework (builtin) or of the user (custom)."""

    @property
    def are_builtin(self) -> bool:
        """Whether all rules are builtin and no hook changes a gradient."""
        ...

    @property
    def has_custom(self) -> bool:
        """Whether one of the rules is custom."""
        ...

    @property
    def may_crash(self) -> bool:
        """Whether custom kernels run on a device where a fault ends the process."""
        ...

    @property
    def is_smooth_branch(self) -> bool:
        """Whether the function chooses between smooth formulas: then no convention explains a wrong slope."""
        ...

    @property
    def decomposes(self) -> bool:
        """Whether matrices are decomposed, which the framework does not differentiate at equal eigenvalues."""
        ...

    def calls_one_operator(self) -> bool:
        """Whether the function is one call of a builtin operator. Calls the function."""
        ...

    def is_unsupported(self, error: BaseException) -> bool:
        """Whether an exception says that a rule or the framework does not offer what was asked for."""
        ...

    def meaning(self, error: BaseException) -> str:
        """What the framework's message about a custom rule means; empty if it is none that is known."""
        ...


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
    def is_plain(self) -> bool:
        """Whether inputs and outputs are of the framework's own types, so that derivatives are arithmetic alone."""
        ...

    @property
    def rules(self) -> DerivativeRules: ...

    @property
    def isolates_passes(self) -> bool:
        """Whether every backward pass gets a forward pass of its own, on copies of the inputs."""
        ...

    def overwritten_inputs(self) -> list[str]:
        """Names of the inputs to which calls or backward passes wrote; they are restored."""
        ...

    @property
    def independent(self) -> bool:
        """Whether each coordinate can be moved without moving another one."""
        ...

    @property
    def value(self) -> Array:
        """The outputs (codomain, then nondifferentiable) at the point, to be read while the inputs are in place."""
        ...

    def perturbation(self, displacement: Array) -> Perturbation: ...
    def evaluate(self, perturbation: Perturbation, scales: Sequence[float]) -> list[Array]:
        """All outputs, nondifferentiable ones last, at point + scale · perturbation; inputs are restored afterwards."""
        ...

    def weighted(self, perturbation: Perturbation, scales: Sequence[float], weights: Sequence[float]) -> Array:
        """Σ weight · outputs at point + scale · perturbation; where the scale is 0 the function is not called again."""
        ...

    def evaluate_together(self, displacements: Array) -> Array | None:
        """The outputs, a row for each row of displacements, in one vectorised call; None where that is impossible.

        What it gives is to be trusted only after a comparison with `evaluate`: a vectorised call runs other kernels,
        and a function that reads captured tensors does not see these points at all.
        """
        ...

    def coarseness(self, step: float) -> float:
        """The largest relative change, in any coordinate, of a step of this size by rounding."""
        ...

    def zeros(self, size: int | tuple[int, ...]) -> Array: ...
    def random(self, size: int, distribution: Distribution, scale: float = 1.0) -> Array:
        """Fresh random numbers times the scale, from the problem's own generator."""
        ...

    def vjp(self, v: Array) -> Array: ...
    def vjp_of_output(self, output: int, v: Array) -> Array:
        """Only one output has a cotangent, and the backward pass starts at that one alone."""
        ...

    def gradient(self, v: Array) -> Gradient:
        """Jᵀv with the attributes of the gradients."""
        ...

    def gradient_by_output(self, v: Array) -> Gradient:
        """The sum of the gradients of each output alone, without any cotangent for the others."""
        ...

    def vjp_batched(self, V: Sequence[Array]) -> list[Array]:
        """All rows in one vectorised pass (vmap)."""
        ...

    def vjp_rows(self, output: int, start: int, stop: int) -> Array | None:
        """Some rows of one output in one vectorised pass, to be verified; None where that is impossible."""
        ...

    def vjp_undefined(self, outputs: Sequence[int]) -> Gradient:
        """The gradient for undefined grad_output of the outputs named and zeros for the others."""
        ...

    def jvp(self, u: Array, missing: int | None = None) -> Array:
        """J u; the tangent of the leaf `missing` is None instead of a tensor."""
        ...

    def jvp_batched(self, U: Sequence[Array]) -> list[Array]:
        """All columns in one vectorised pass (vmap)."""
        ...

    def tangent_misfits(self, u: Array) -> list[Misfit]:
        """The attributes in which the tangents of a JVP differ from their outputs."""
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

    @property
    def variants(self) -> GradientVariants: ...
    def evaluate_at(self, displacement: Array) -> Evaluation: ...
    def release(self) -> None:
        """Forget vectors of the size of the inputs that can be computed again."""
        ...

    def release_graph(self) -> None:
        """Forget what a model saved for backward passes: the next one begins with a forward pass."""
        ...

    def rebound(self, binding: Any, seed: int) -> Problem:
        """The problem of another binding (`core.frontend`), such as another point; calls are counted together.

        Calls the function.
        """
        ...

    def vjp_at(self, displacement: Array, v: Array) -> Array:
        """Jᵀv next to the point, through a graph of its own."""
        ...

    def jvp_at(self, displacement: Array, u: Array) -> Array | None:
        """J u next to the point; None where the inputs cannot be perturbed in place."""
        ...

    def representable(self, vector: Array, space: Space | None = None) -> Array:
        """A vector of a space (the codomain if None), rounded to the formats of its values."""
        ...
