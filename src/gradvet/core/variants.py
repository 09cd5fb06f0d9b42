"""The same gradient under other conditions, for the exact checks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gradvet.core.spaces import Array


@dataclass(frozen=True, slots=True)
class FreshGradient:
    """A gradient through a fresh call, and the names of the inputs and cotangents that the passes changed."""

    gradient: Array
    changed: list[str]
    reads_arguments: bool = False
    """Whether a call with other arguments in between returned other values."""


class GradientVariants(Protocol):
    """The same gradient, obtained otherwise. Each gives Jᵀv as a vector, or None where there is nothing to arrange."""

    def cotangent_layouts(self, v: Array) -> Mapping[str, Array]:
        """The cotangents with the same values laid out in memory in other ways."""
        ...

    def expanded_cotangent(self, v: Array) -> Array | None:
        """The cotangents expanded from a single number each, for a v that is constant."""
        ...

    def fresh_gradient(self, v: Array) -> FreshGradient:
        """Through a graph of a call of its own."""
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

    def input_layouts(self, v: Array, known: Mapping[str, Array]) -> Mapping[str, Array]:
        """The inputs with the same values laid out in memory in other ways, of which some are known already."""
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
