"""What the figures of a wrong entry are made of: the block around it in both versions, and its error at every step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradvet.core.arithmetic import namespace
from gradvet.core.differences import CENTRAL
from gradvet.core.ladder import Reading, Rungs
from gradvet.core.problem import Problem
from gradvet.core.spaces import Array, Space

MOST = 2304
"""So many entries of a block are kept at most: 48 × 48."""

SIDE, NEIGHBOURS = 48, 8
"""So many rows and columns around an entry are shown, fewer where they must be computed for it."""

EPSILON = 2.0**-52

FACTOR, REACH = 4.0, 8
"""The steps of a sweep around the step of a classical check: so many powers of this factor to both sides."""


def around(space: Space, index: int, most: int = SIDE) -> range:
    """Coordinates of the leaf around one of them, all if they are few."""
    section = space.slice(space.locate(index).leaf)
    start = max(section.start, min(index - most // 2, section.stop - most))
    return range(start, min(section.stop, start + most))


def neighbourhood(problem: Problem, mode: str, place: tuple[int, int], step: float) -> dict[str, Any]:
    """The block around an entry of a Jacobian that nobody has computed whole: a few rows and columns of it."""
    rows, columns = around(problem.codomain, place[0], NEIGHBOURS), around(problem.domain, place[1], NEIGHBOURS)
    within = slice(rows.start, rows.stop)
    units = [_unit(problem, problem.domain.size, column) for column in columns]
    xp = namespace(units[0])
    differences = [CENTRAL.along(problem, problem.move(unit * step))[within] / step for unit in units]
    if mode == "forward":
        derivative = xp.stack([problem.forward.push(unit)[within] for unit in units], axis=1)
    else:
        pulled = [problem.reverse.pull(_unit(problem, problem.codomain.size, row)) for row in rows]
        derivative = xp.stack([gradient[columns.start : columns.stop] for gradient in pulled], axis=0)
    numerical = xp.stack(differences, axis=1)
    return block(numerical, derivative, names(problem.codomain, rows), names(problem.domain, columns))


def classical_sweep(problem: Problem, place: tuple[int, int], step: float, gap: float) -> dict[str, Any]:
    """How the central difference of one entry depends on its step, around the step that the user chose."""
    row, column = place
    move = problem.move(_unit(problem, problem.domain.size, column) * step)
    slopes: dict[float, float] = {}
    size = 0.0
    for power in range(-REACH, REACH + 1):
        scale = FACTOR**power
        try:
            plus, minus = (float(values[row]) for values in problem.evaluate(move, (scale, -scale)))
        except Exception:  # the function ends before so large a step
            break
        size = max(size, abs(plus)) if power <= 0 else size
        slopes[scale * step] = (plus - minus) / (2.0 * scale * step)
    steps, found = list(slopes), list(slopes.values())
    if len(steps) < 3:
        return {}
    # Where a step agrees best with both of its neighbours, neither roundoff nor curvature has much to say.
    triples = zip(found, found[1:], found[2:], strict=False)
    best = min(triples, key=lambda three: max(abs(three[1] - three[0]), abs(three[1] - three[2])))[1]
    return {
        "steps": steps,
        "errors": [abs(slope - best) for slope in found],
        "floor": [EPSILON * size / h for h in steps],
        "chosen": step,
        "gap": gap,
    }


def _unit(problem: Problem, size: int, index: int) -> Array:
    vector = problem.zeros(size)
    vector[index] = 1.0
    return vector


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
