"""Real coordinates for the inputs and outputs of a function, and names for each of them.

A `Space` is a list of named leaves; each leaf has `Coordinates`, an invertible linear map between a value (a tensor of
any layout, real or complex) and a vector of real numbers. All comparisons happen on those vectors, so nothing else in
gradvet needs to know what kind of value a leaf is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

Array = Any
"""An array of the Python array API standard; the standard has no static type of its own."""


class Coordinates(Protocol):
    """The real coordinates of one leaf. `parts` is how many of them make up one number: 1 if real, 2 if complex."""

    @property
    def size(self) -> int: ...
    @property
    def parts(self) -> int: ...
    def flatten(self, value: Any) -> Array: ...
    def unflatten(self, vector: Array) -> Any: ...
    def label(self, index: int) -> str: ...


@dataclass(frozen=True, slots=True)
class Location:
    """One coordinate of one leaf, in words: `input 0 [1, 2].imag`."""

    leaf: int
    name: str
    label: str
    part: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.label}".rstrip()


class Leaf(NamedTuple):
    """A named value with coordinates; `position` is where the user put it among the arguments or results."""

    name: str
    coordinates: Coordinates
    position: int


class Space:
    """Named leaves side by side; a vector of the space is the concatenation of the leaves' coordinates."""

    __slots__ = ("leaves", "offsets", "parts", "size")

    def __init__(self, leaves: Sequence[Leaf]) -> None:
        self.leaves = tuple(leaves)
        self.offsets, self.size = [0], 0
        self.parts = 1
        """The most coordinates that one number has anywhere."""
        for leaf in self.leaves:
            self.size += leaf.coordinates.size
            self.offsets.append(self.size)
            self.parts = max(self.parts, leaf.coordinates.parts)

    def slice(self, leaf: int) -> slice:
        """Where the coordinates of a leaf lie in a vector of the space."""
        return slice(self.offsets[leaf], self.offsets[leaf + 1])

    def unflatten(self, vector: Array) -> list[Any]:
        """One value per leaf, each in storage of its own."""
        if len(self.leaves) == 1:
            return [self.leaves[0].coordinates.unflatten(vector)]
        return [leaf.coordinates.unflatten(vector[self.slice(i)]) for i, leaf in enumerate(self.leaves)]

    def leaf_of(self, index: int) -> int:
        """The number of the leaf that a coordinate belongs to."""
        return bisect_right(self.offsets, index) - 1

    def locate(self, index: int) -> Location:
        """Which number of which leaf a coordinate is."""
        number = self.leaf_of(index)
        leaf = self.leaves[number]
        label = leaf.coordinates.label(index - self.offsets[number])
        part = ("real", "imag")[(index - self.offsets[number]) % 2] if leaf.coordinates.parts == 2 else ""
        return Location(number, leaf.name, label, part)
