"""What the check with error bars needs beyond the classical problem: where it stands, and exact displacements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gradvet.core.circumstances import Circumstances
from gradvet.core.problem import Problem
from gradvet.core.spaces import Array


@dataclass(frozen=True, slots=True)
class Displaced:
    """The outputs (codomain, then silent) next to the point, and the displacement that rounding really left."""

    values: Array
    displacement: Array


class Subject(Problem, Protocol):
    """A function at a point whose derivatives are judged by error bars."""

    @property
    def point(self) -> Array:
        """The inputs as a vector of the domain."""
        ...

    @property
    def value(self) -> Array:
        """The outputs (codomain, then silent) at the point."""
        ...

    @property
    def epsilon(self) -> float:
        """The relative spacing of the coarsest floating-point format among inputs and outputs."""
        ...

    def roughness(self) -> float:
        """The relative spacing of the coarsest format that numbers pass inside the function, as far as can be seen."""
        ...

    def settle_for(self, epsilon: float) -> None:
        """From now on the format is as coarse as this."""
        ...

    @property
    def circumstances(self) -> Circumstances: ...
    def displaced(self, displacement: Array) -> Displaced: ...
    def pulled_at(self, displacement: Array, v: Array) -> Array:
        """Jᵀv next to the point, through a graph of its own."""
        ...

    def representable(self, v: Array) -> Array:
        """A codirection as the outputs' formats can hold it."""
        ...
