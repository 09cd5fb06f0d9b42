"""Sums and maxima over coordinates of which some may be infinite or not a number.

A finite result shows that all coordinates are finite, so they are tested one by one only where it is not.
"""

from __future__ import annotations

import math
from typing import Any

import array_api_compat

from gradvet.core.spaces import Array

MAX_PIECE = 1 << 20
"""Entries of a vector that are worked on at a time where temporary vectors of its size would take much memory."""

_NAMESPACES: dict[type, Any] = {}


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


def norm(v: Array, values: Array) -> float:
    """The Euclidean norm of v * values over the coordinates where v is not zero."""
    product = v * values
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


def nonzero_median(sizes: Array) -> float:
    """The median of the positive numbers among some of which none is negative; zero where there is none."""
    xp = namespace(sizes)
    some = int(xp.count_nonzero(sizes))
    return float(xp.sort(sizes)[sizes.shape[0] - some + (some - 1) // 2]) if some else 0.0


def equal(one: Array, other: Array) -> bool:
    """Whether two vectors hold the same numbers; what is not a number equals nothing."""
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


def first_true(mask: Array) -> int:
    """The index of the first True."""
    xp = namespace(mask)
    return int(xp.argmax(xp.astype(mask, xp.int64)))


def window(vector: Array, part: slice) -> Array:
    """The vector in one part, zero (or False) elsewhere."""
    xp = namespace(vector)
    return xp.concat([xp.zeros_like(vector[: part.start]), vector[part], xp.zeros_like(vector[part.stop :])])


def unit(zeros: Array, index: int, length: float = 1.0) -> Array:
    """A vector of zeros with one entry set, in the memory of `zeros`."""
    zeros[index] = length
    return zeros
