"""Where the errors of a tensor are: in words, and as a map."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gradvet.core import thresholds
from gradvet.core.spaces import Array
from gradvet.core.vectors import namespace

MAP_CELLS = 24
"""Rows and columns of an error map at most."""

ErrorMap = dict[str, Sequence[Sequence[float]] | Sequence[str]]


def region(wrong: Array) -> str:
    """`, all in [0:8, 60:64]`: the smallest box around the marked entries; empty for one entry and for all of them."""
    xp = namespace(wrong)
    parts, is_all = [], True
    for axis in range(wrong.ndim):
        others = tuple(other for other in range(wrong.ndim) if other != axis)
        places = xp.nonzero(xp.any(wrong, axis=others) if others else wrong)[0]
        if not places.shape[0]:
            return ""
        first, last = int(places[0]), int(places[-1]) + 1
        is_whole = (first, last) == (0, wrong.shape[axis])
        is_all = is_all and is_whole
        parts.append(":" if is_whole else str(first) if last == first + 1 else f"{first}:{last}")
    return "" if is_all or all(part.isdecimal() for part in parts) else f", all in [{', '.join(parts)}]"


def factor_there(found: Array, truth: Array, wrong: Array) -> str:
    """`: there it is 0.5 times the reference`, if the marked entries have one factor; empty otherwise."""
    xp = namespace(wrong)
    usable = wrong & xp.isfinite(found) & xp.isfinite(truth)
    found, truth = (xp.where(usable, array, xp.zeros_like(array)) for array in (found, truth))
    square = float(xp.sum(truth * truth))
    if not square > 0.0 or int(xp.count_nonzero(usable)) < 2:
        return ""
    factor = float(xp.sum(found * truth)) / square
    rest = found - factor * truth
    if float(xp.sum(rest * rest)) > (thresholds.PLATEAU_RTOL * (factor - 1.0)) ** 2 * square:
        return ""
    return f": there it is {factor:.4g} times the reference"


def error_map(found: Array, truth: Array, plain: Array) -> ErrorMap:
    """Largest errors by position, of the kernel and of plain torch, in at most `MAP_CELLS` rows and columns.

    Columns are positions along the last axis; rows are all others.
    """
    xp = namespace(truth)
    columns = truth.shape[-1] if truth.ndim else 1
    rows = math.prod(truth.shape) // max(1, columns)
    edges = _edges(rows), _edges(columns)
    names = ([str(a) if b == a + 1 else f"{a}:{b}" for a, b in parts] for parts in edges)
    matrices = (xp.reshape(array, (rows, columns)) for array in (xp.abs(found - truth), plain))
    kernel, usual = (
        [[float(xp.max(matrix[top:bottom, left:right])) for left, right in edges[1]] for top, bottom in edges[0]]
        for matrix in matrices
    )
    return {"kernel": kernel, "plain": usual, **dict(zip(("rows", "columns"), names, strict=True))}


def _edges(length: int) -> list[tuple[int, int]]:
    cells = min(length, MAP_CELLS)
    return [(length * k // cells, length * (k + 1) // cells) for k in range(cells)]
