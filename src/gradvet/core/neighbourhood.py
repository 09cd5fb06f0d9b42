"""Around an entry that is wrong: how far the error reaches, and what kind of wrong it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gradvet.core.context import Context
from gradvet.core.decision import Entry
from gradvet.core.diagnosis import diagnose
from gradvet.core.finite_differences import CENTRAL, middle_step, slope_along
from gradvet.core.modes import Mode
from gradvet.core.problem import Problem
from gradvet.core.spaces import Array, Space
from gradvet.core.vectors import namespace, peak

AROUND_ENTRY, LARGE, AROUND_IN_LARGE = 48, 256, 8
"""So many columns and rows around the wrong entry are compared for the diagnosis, fewer in a large space."""

SAME_VALUE, SAME_VALUE_DOUBLE = 1e-4, 1e-6
"""Entries that differ by less than this part of the largest one around are not listed as wrong."""


COARSE_EYE, SHARP_EYE = 1e-3, 1e-6
"""Ratios of entries count as equal up to this, and for small errors up to that."""

LISTED = 4
"""So many wrong entries are named beside the worst."""


@dataclass(frozen=True, slots=True)
class Study:
    """What the neighbourhood of a wrong entry shows."""

    wrong: int
    entries: int
    others: tuple[Entry, ...]
    diagnosis: str
    block: Mapping[str, Any] = field(default_factory=dict)
    """Both versions of what was compared, for a figure."""


def study(context: Context, mode: Mode, entry: Entry) -> Study:
    """Compare the block of the Jacobian around an entry, within its input and its output."""
    problem = context.problem
    columns, rows = (
        around(space, index, AROUND_ENTRY if space.size <= LARGE else AROUND_IN_LARGE)
        for space, index in ((problem.domain, entry.column), (problem.codomain, entry.row))
    )
    rows, of_output = _whole(problem.codomain, rows)
    columns, of_input = _whole(problem.domain, columns)
    if context.out_of_time:
        return Study(1, 1, (), "")
    numerical = _numerical(context, rows, columns)
    derivative = _derivative(context, mode, rows, columns)
    xp = namespace(numerical)
    top = peak(numerical)
    limit = max(
        (SAME_VALUE_DOUBLE if context.is_double else SAME_VALUE) * top, abs(entry.derivative - entry.numerical) / 16.0
    )
    wrong = ~(xp.abs(derivative - numerical) <= limit)
    count = int(xp.count_nonzero(wrong))
    others = [
        _measured(context, (rows.start + i, columns.start + j), float(derivative[i, j]))
        for i, j in _places(wrong)
        if (rows.start + i, columns.start + j) != (entry.row, entry.column)
    ]
    return Study(
        max(1, count),
        wrong.shape[0] * wrong.shape[1],
        tuple(other for other in others if not abs(other.derivative - other.numerical) <= other.error),
        diagnose(numerical, derivative, limit, parts=(of_output, of_input), alike=_alike(entry)),
        block(numerical, derivative, names(problem.codomain, rows), names(problem.domain, columns)),
    )


def _alike(entry: Entry) -> float:
    """How alike ratios must be: small errors show their pattern only to a sharp eye."""
    off = abs(entry.derivative - entry.numerical)
    return min(COARSE_EYE, max(SHARP_EYE, 0.1 * off / abs(entry.numerical))) if entry.numerical else COARSE_EYE


def _whole(space: Space, window: range) -> tuple[range, int]:
    """A window that cuts no number in two, and how many coordinates a number has."""
    leaf = space.locate(window.start).leaf
    parts, section = space.leaves[leaf].coordinates.parts, space.slice(leaf)
    start = window.start - (window.start - section.start) % parts
    stop = window.stop + (section.start - window.stop) % parts
    return range(start, min(stop, section.stop)), parts


def _measured(context: Context, place: tuple[int, int], derivative: float) -> Entry:
    """One more entry, with the change from one step to its half and the roundoff as error bar."""
    row, column = place
    problem, step = context.problem, middle_step(context.problem.eps)
    u = problem.zeros(problem.domain.size)
    u[column] = context.lengths[column]
    slopes = []
    for t in (step, step / 2.0):
        slope, moved = slope_along(context.problem, u, t)
        slopes.append(float(slope[row]) / (float(moved[column]) or 1.0))
    noise = 2.0 * float(context.noise[row]) / (step * (float(context.lengths[column]) or 1.0))
    bar = abs(slopes[1] - slopes[0]) + noise
    output, source = problem.codomain.locate(row), problem.domain.locate(column)
    return Entry(output, source, derivative, slopes[1], bar, row=row, column=column)


def _numerical(context: Context, rows: range, columns: range) -> Array:
    step, found = middle_step(context.problem.eps), []
    for column in columns:
        u = context.problem.zeros(context.problem.domain.size)
        u[column] = context.lengths[column]
        slope, moved = slope_along(context.problem, u, step)
        size = float(moved[column])
        found.append(slope[rows.start : rows.stop] / size if size else slope[rows.start : rows.stop])
    return namespace(found[0]).stack(found, axis=1)


def _derivative(context: Context, mode: Mode, rows: range, columns: range) -> Array:
    problem = context.problem
    if mode.name == "forward":
        probe_jvps = []
        for column in columns:
            u = problem.zeros(problem.domain.size)
            u[column] = 1.0
            probe_jvps.append(problem.jvp(u)[rows.start : rows.stop])
        return namespace(probe_jvps[0]).stack(probe_jvps, axis=1)
    pulls = []
    for row in rows:
        v = problem.zeros(problem.codomain.size)
        v[row] = 1.0
        pulls.append(problem.vjp(v)[columns.start : columns.stop])
    return namespace(pulls[0]).stack(pulls, axis=0)


def _places(wrong: Array) -> list[tuple[int, int]]:
    xp = namespace(wrong)
    rows, columns = xp.nonzero(wrong)
    return [(int(i), int(j)) for i, j in zip(rows[: LISTED + 1], columns[: LISTED + 1], strict=True)]


MAX_BLOCK = 2304
"""So many entries of a block are kept at most: 48 × 48."""

SIDE, NEIGHBOURS = 48, 8
"""So many rows and columns around an entry are shown, fewer where they must be computed for it."""

EPS = 2.0**-52

FACTOR, REACH = 4.0, 8
"""The steps of a sweep around the step of a classical check: so many powers of this factor to both sides."""


def around(space: Space, index: int, most: int = SIDE) -> range:
    """Coordinates of the leaf around one of them, all if they are few."""
    section = space.slice(space.locate(index).leaf)
    start = max(section.start, min(index - most // 2, section.stop - most))
    return range(start, min(section.stop, start + most))


def computed_block(problem: Problem, mode: str, place: tuple[int, int], step: float) -> dict[str, Any]:
    """The block around an entry of a Jacobian that nobody has computed whole: a few rows and columns of it."""
    rows, columns = around(problem.codomain, place[0], NEIGHBOURS), around(problem.domain, place[1], NEIGHBOURS)
    within = slice(rows.start, rows.stop)
    units = [_unit(problem, problem.domain.size, column) for column in columns]
    xp = namespace(units[0])
    differences = [CENTRAL.along(problem, problem.move(unit * step))[within] / step for unit in units]
    if mode == "forward":
        derivative = xp.stack([problem.jvp(unit)[within] for unit in units], axis=1)
    else:
        vjp = [problem.vjp(_unit(problem, problem.codomain.size, row)) for row in rows]
        derivative = xp.stack([gradient[columns.start : columns.stop] for gradient in vjp], axis=0)
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
        "floor": [EPS * size / h for h in steps],
        "chosen": step,
        "gap": gap,
    }


def _unit(problem: Problem, size: int, index: int) -> Array:
    vector = problem.zeros(size)
    vector[index] = 1.0
    return vector


def block(numerical: Array, derivative: Array, rows: Sequence[str], columns: Sequence[str]) -> dict[str, Any]:
    """Both versions of a block of outputs × inputs, with the names of its rows and columns; nothing if it is large."""
    if len(rows) * len(columns) > MAX_BLOCK:
        return {}
    return {
        "numerical": [[float(entry) for entry in row] for row in numerical],
        "derivative": [[float(entry) for entry in row] for row in derivative],
        "rows": list(rows),
        "columns": list(columns),
    }


def names(space: Space, indices: range) -> list[str]:
    return [str(space.locate(index)) for index in indices]
