"""What the figures of a wrong entry are made of: the block around it in both versions, and its error at every step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradvet.core.ladder import Reading, Rungs
from gradvet.core.spaces import Array, Space

MOST = 2304
"""So many entries of a block are kept at most: 48 × 48."""


def block(numerical: Array, derivative: Array, rows: Sequence[str], columns: Sequence[str]) -> dict[str, Any]:
    """Both versions of a block of outputs × inputs, with the names of its rows and columns; nothing if it is large."""
    if len(rows) * len(columns) > MOST:
        return {}
    return {
        "numerical": [[float(entry) for entry in row] for row in numerical],
        "derivative": [[float(entry) for entry in row] for row in derivative],
        "rows": list(rows),
        "columns": list(columns),
    }


def names(space: Space, indices: range) -> list[str]:
    return [str(space.locate(index)) for index in indices]


def sweep(rungs: Rungs, reading: Reading, size: float) -> dict[str, Any]:
    """How far the difference at each step is from the slope that was settled on; a step of 1 has the length `size`."""
    found = reading.error
    odd = [(plus - minus) / 2.0 for plus, minus in zip(rungs.plus, rungs.minus, strict=True)]
    return {
        "steps": [step * size for step in rungs.steps],
        "errors": [abs(value / step - found.value) / size for value, step in zip(odd, rungs.steps, strict=True)],
        "floor": [rungs.floor / (step * size) for step in rungs.steps],
        "chosen": found.step * size,
        "gap": abs(found.value) / size,
    }
