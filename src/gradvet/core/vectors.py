"""Vectors of real coordinates: the spaces of inputs and outputs to which they belong, and sums and maxima of them.

A `Space` is a list of named leaves; each leaf has `Coordinates`, an invertible linear map between a value (a tensor of
any layout, real or complex) and a vector of real numbers. All comparisons happen on those vectors, so nothing else in
gradvet needs to know what kind of value a leaf is.

Coordinates may be infinite or not a number. A finite sum shows that all of them are finite, so they are tested one by
one only where it is not.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import array_api_compat

Array = Any
"""An array of the Python array API standard; the standard has no static type of its own."""

LARGE = 1 << 18
"""Number of elements of the inputs from which vectors are not kept from one check to the next."""


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

    __slots__ = ("leaves", "offsets", "parts", "sections", "size", "slices")

    def __init__(self, leaves: Sequence[Leaf]) -> None:
        self.leaves = tuple(leaves)
        self.offsets, self.size = [0], 0
        self.parts = 1
        """The most coordinates that one number has anywhere."""
        for leaf in self.leaves:
            self.size += leaf.coordinates.size
            self.offsets.append(self.size)
            self.parts = max(self.parts, leaf.coordinates.parts)
        self.slices = tuple(map(slice, self.offsets, self.offsets[1:]))
        """Where the coordinates of each leaf lie in a vector of the space."""
        self.sections = tuple(zip(self.leaves, self.slices, strict=True))
        """Each leaf with that."""

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


MAX_PIECE = 1 << 18
"""Entries of a vector that are worked on at a time where temporary vectors of its size would take much memory."""

_NAMESPACES: dict[type, Any] = {}


QUANTILE_ENTRIES = 1 << 20
"""Number of entries, evenly spaced, of which quantiles are taken in large tensors."""


def namespace(array: Array) -> Any:
    """The functions of the array API standard for arrays of this kind."""
    kind = type(array)
    if kind not in _NAMESPACES:
        _NAMESPACES[kind] = array_api_compat.array_namespace(array)
    return _NAMESPACES[kind]


def pieces(part: slice) -> list[slice]:
    """A part of a vector in pieces whose temporary vectors take little memory."""
    starts = range(part.start, part.stop, MAX_PIECE)
    return [slice(start, min(part.stop, start + MAX_PIECE)) for start in starts]


def dot(a: Array, b: Array) -> float:
    """The dot product over the coordinates where a is not zero: b may be infinite elsewhere."""
    product = float(a @ b)
    if math.isfinite(product):
        return product
    xp = namespace(a)
    return float(xp.sum(xp.where(a != 0.0, a * b, xp.zeros_like(a))))


def dots(rows: Array, b: Array) -> Array:
    """`dot` of each row of a matrix, or of a vector, and b."""
    products = rows @ b
    if all_finite(products):
        return products
    xp = namespace(rows)
    return xp.sum(xp.where(rows != 0.0, rows * b, xp.zeros_like(rows)), axis=-1)


def norm(v: Array, values: Array | None = None) -> float:
    """The Euclidean norm of v, or of v * values over the coordinates where v is not zero."""
    product = v if values is None else v * values
    square = float(product @ product)
    if not math.isfinite(square):
        xp = namespace(v)
        product = xp.where(v != 0.0, product, xp.zeros_like(v))
        square = float(product @ product)
    return math.sqrt(square)


def peak(values: Array) -> float:
    """The largest size of a finite number among these; zero where there is none."""
    xp = namespace(values)
    if not math.prod(values.shape):
        return 0.0
    lengths = xp.abs(values)
    top = float(xp.max(lengths))
    return top if math.isfinite(top) else float(xp.max(xp.where(xp.isfinite(lengths), lengths, xp.zeros_like(lengths))))


def rms(values: Array) -> float:
    """Root mean square."""
    return math.sqrt(float(namespace(values).mean(values * values)))


def nonzero_rms(values: Array) -> float:
    """Root mean square of the numbers that are not zero; zero where there is none."""
    return math.sqrt(float(values @ values) / max(1, int(namespace(values).count_nonzero(values))))


def nonzero_rms_by_leaf(space: Space, values: Array) -> list[float]:
    """`nonzero_rms` of the coordinates of each leaf."""
    return [nonzero_rms(values[part]) for part in space.slices]


def quantile(values: Array, part: float) -> float:
    """The number below which this part of all numbers is; zero where there is none."""
    xp = namespace(values)
    some = xp.sort(values[:: 1 + values.shape[0] // QUANTILE_ENTRIES])
    return float(some[int(part * some.shape[0])]) if some.shape[0] else 0.0


def nonzero_median(sizes: Array) -> float:
    """The median of the positive numbers among some of which none is negative; zero where there is none."""
    xp = namespace(sizes)
    some = int(xp.count_nonzero(sizes))
    return smallest(sizes, sizes.shape[0] - some + (some - 1) // 2) if some else 0.0


def smallest(numbers: Array, index: int) -> float:
    """The number with this index if they were sorted."""
    select = getattr(numbers, "kthvalue", None)  # torch's, which sorts no others; on a GPU it is slower than a sort
    if select is None or str(numbers.device) != "cpu":
        return float(namespace(numbers).sort(numbers)[index])
    return float(select(index + 1)[0])


def equal(one: Array, other: Array) -> bool:
    """Whether two vectors hold the same numbers; what is not a number equals nothing."""
    at_once = getattr(one, "equal", None)  # torch has one call for it
    if at_once is not None:
        return bool(at_once(other))
    return one.shape == other.shape and bool((one == other).all())


def is_zero(vector: Array) -> bool:
    """Whether every number is zero."""
    return not bool(namespace(vector).any(vector))


def all_finite(values: Array) -> bool:
    """Whether every number is finite."""
    xp = namespace(values)
    return math.isfinite(float(xp.sum(values))) or bool(xp.all(xp.isfinite(values)))


def finite_part(values: Array) -> Array:
    """The values, with zero in place of what is not finite."""
    xp = namespace(values)
    return values if all_finite(values) else xp.where(xp.isfinite(values), values, xp.zeros_like(values))


def nan_as_inf(sizes: Array) -> Array:
    """The sizes, infinite where one is not a number."""
    xp = namespace(sizes)
    return xp.where(sizes == sizes, sizes, xp.full_like(sizes, math.inf))


def first_true(mask: Array) -> int:
    """The index of the first True."""
    xp = namespace(mask)
    return int(xp.argmax(xp.astype(mask, xp.int64)))


def window(vector: Array, part: slice) -> Array:
    """The vector in one part, zero (or False) elsewhere."""
    xp = namespace(vector)
    return xp.concat([xp.zeros_like(vector[: part.start]), vector[part], xp.zeros_like(vector[part.stop :])])


def unit_rows(zeros: Array, start: int) -> Array:
    """A matrix of zeros with the unit vectors from number `start` on in its rows, in the memory of `zeros`."""
    namespace(zeros).reshape(zeros, (-1,), copy=False)[start :: zeros.shape[1] + 1] = 1.0
    return zeros


def unit(zeros: Array, index: int, length: float = 1.0) -> Array:
    """A vector of zeros with one entry set, in the memory of `zeros`."""
    zeros[index] = length
    return zeros


def as_lists(matrix: Array) -> list[list[float]]:
    """The rows of a matrix as plain numbers."""
    rows: list[list[float]] = matrix.tolist()
    return rows


def distinct_values(values: Sequence[float], alike: float) -> list[float]:
    """The values without those that equal a smaller one."""
    found: list[float] = []
    for value in sorted(values):
        if not found or abs(value - found[-1]) > alike * max(abs(value), abs(found[-1])):
            found.append(value)
    return found
