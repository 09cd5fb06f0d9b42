"""The same gradient under other conditions, for the exact checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gradvet.core.spaces import Array


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

    def fresh_gradient(self, v: Array) -> FreshGradient:
        """Through a graph of a call of its own."""
        ...

    def fresh_pass(self, v: Array, displacement: Array | None = None) -> FreshPass:
        """Through a call on copies of all arguments and of v, displaced or not: the passes may overwrite them."""
        ...

    def after_other_forward(self, v: Array) -> FreshGradient:
        """The same, with a forward at other inputs of the same shapes between forward and backward."""
        ...

    def shifted_after_other_forward(self, v: Array) -> FreshGradient | None:
        """The same, with copies of the inputs that begin elsewhere in memory."""
        ...

    def again(self, v: Array) -> Array:
        """Once more through the graph of the point, from another random state."""
        ...

    def alone(self, leaf: int, v: Array) -> Array | None:
        """Only one input requires grad; None where the outputs then have no derivative."""
        ...

    def input_layouts(self, v: Array) -> Mapping[str, Callable[[], Array | None]]:
        """The inputs with the same values laid out in memory in other ways; each is computed when called.

        None where the function refuses the layout. Raises OtherValuesError where it returns other values.
        """
        ...

    def mapped(self, V: Sequence[Array]) -> list[Array]:
        """Several cotangents through one backward pass under the framework's own map."""
        ...

    def values_mapped(self) -> tuple[Array, Array]:
        """The values of two points in one mapped call, and in two plain ones."""
        ...

    def reads_captured(self) -> bool:
        """Whether the function reads tensors that it captured instead of its arguments."""
        ...

    def without_grad_mode(self) -> Array:
        """The values of the codomain where nothing is recorded."""
        ...

    def accumulated(self, v: Array) -> Iterator[Array]:
        """What `.grad` gains when it held something before, through the graph of the point and through that of a fresh
        call; nothing where inputs cannot hold a gradient."""
        ...

    def checkpointed(self, v: Array) -> Array:
        """The forward pass is thrown away and run again for the backward pass."""
        ...
