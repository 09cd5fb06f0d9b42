"""Around an entry that is wrong: how far the error reaches, and what kind of wrong it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gradvet.core.arithmetic import namespace, peak
from gradvet.core.diagnose import diagnose
from gradvet.core.modes import Mode
from gradvet.core.pinpoint import Entry, middle_step, slope_along
from gradvet.core.portrait import around, block, names
from gradvet.core.spaces import Array, Space
from gradvet.core.trial import Trial

AROUND, LARGE, AROUND_IN_LARGE = 48, 256, 8
"""So many columns and rows around the wrong entry are compared for the diagnosis, fewer in a large space."""

ALIKE, ALIKE_IN_FINE = 1e-4, 1e-6
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


def study(trial: Trial, mode: Mode, entry: Entry) -> Study:
    """Compare the block of the Jacobian around an entry, within its input and its output."""
    subject = trial.subject
    columns, rows = (
        around(space, index, AROUND if space.size <= LARGE else AROUND_IN_LARGE)
        for space, index in ((subject.domain, entry.column), (subject.codomain, entry.row))
    )
    rows, of_output = _whole(subject.codomain, rows)
    columns, of_input = _whole(subject.domain, columns)
    if trial.late:
        return Study(1, 1, (), "")
    numerical = _numerical(trial, rows, columns)
    derivative = _derivative(trial, mode, rows, columns)
    xp = namespace(numerical)
    top = peak(numerical)
    limit = max((ALIKE_IN_FINE if trial.is_fine else ALIKE) * top, abs(entry.derivative - entry.numerical) / 16.0)
    wrong = ~(xp.abs(derivative - numerical) <= limit)
    count = int(xp.count_nonzero(wrong))
    others = [
        _measured(trial, (rows.start + i, columns.start + j), float(derivative[i, j]))
        for i, j in _places(wrong)
        if (rows.start + i, columns.start + j) != (entry.row, entry.column)
    ]
    return Study(
        max(1, count),
        wrong.shape[0] * wrong.shape[1],
        tuple(other for other in others if not abs(other.derivative - other.numerical) <= other.error),
        diagnose(numerical, derivative, limit, parts=(of_output, of_input), alike=_alike(entry)),
        block(numerical, derivative, names(subject.codomain, rows), names(subject.domain, columns)),
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


def _measured(trial: Trial, place: tuple[int, int], derivative: float) -> Entry:
    """One more entry, with the change from one step to its half and the roundoff as error bar."""
    row, column = place
    subject, step = trial.subject, middle_step(trial)
    u = subject.zeros(subject.domain.size)
    u[column] = trial.sizes[column]
    slopes = []
    for t in (step, step / 2.0):
        slope, moved = slope_along(trial, u, t)
        slopes.append(float(slope[row]) / (float(moved[column]) or 1.0))
    noise = 2.0 * float(trial.noise[row]) / (step * (float(trial.sizes[column]) or 1.0))
    bar = abs(slopes[1] - slopes[0]) + noise
    output, source = subject.codomain.locate(row), subject.domain.locate(column)
    return Entry(output, source, derivative, slopes[1], bar, row=row, column=column)


def _numerical(trial: Trial, rows: range, columns: range) -> Array:
    step, found = middle_step(trial), []
    for column in columns:
        u = trial.subject.zeros(trial.subject.domain.size)
        u[column] = trial.sizes[column]
        slope, moved = slope_along(trial, u, step)
        size = float(moved[column])
        found.append(slope[rows.start : rows.stop] / size if size else slope[rows.start : rows.stop])
    return namespace(found[0]).stack(found, axis=1)


def _derivative(trial: Trial, mode: Mode, rows: range, columns: range) -> Array:
    subject = trial.subject
    if mode.name == "forward":
        pushes = []
        for column in columns:
            u = subject.zeros(subject.domain.size)
            u[column] = 1.0
            pushes.append(subject.forward.push(u)[rows.start : rows.stop])
        return namespace(pushes[0]).stack(pushes, axis=1)
    pulls = []
    for row in rows:
        v = subject.zeros(subject.codomain.size)
        v[row] = 1.0
        pulls.append(subject.reverse.pull(v)[columns.start : columns.stop])
    return namespace(pulls[0]).stack(pulls, axis=0)


def _places(wrong: Array) -> list[tuple[int, int]]:
    xp = namespace(wrong)
    rows, columns = xp.nonzero(wrong)
    return [(int(i), int(j)) for i, j in zip(rows[: LISTED + 1], columns[: LISTED + 1], strict=True)]
