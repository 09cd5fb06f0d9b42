"""The largest contribution to a sum, in about log₂(size) evaluations of parts of it."""

from __future__ import annotations

from collections.abc import Callable


def descend(part: Callable[[int, int], float], size: int, whole: float) -> int:
    """Follow the larger half of a sum down to one index; `part(start, stop)` is the sum over a range."""
    start, stop = 0, size
    while stop - start > 1:
        middle = (start + stop) // 2
        left = part(start, middle)
        right = whole - left
        # What is not a number draws the search to itself.
        if not abs(left) < abs(right):
            stop, whole = middle, left
        else:
            start, whole = middle, right
    return start
