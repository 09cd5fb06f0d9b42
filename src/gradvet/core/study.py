"""Around an entry that is wrong: how far the error reaches, and what kind of wrong it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import array_api_compat

from gradvet.core.diagnose import diagnose
from gradvet.core.modes import Mode
from gradvet.core.pinpoint import Entry, middle_step, slope_along
from gradvet.core.portrait import around, block, names
from gradvet.core.spaces import Array
from gradvet.core.trial import Trial

AROUND, LARGE, AROUND_IN_LARGE = 48, 256, 8
"""So many columns and rows around the wrong entry are compared for the diagnosis, fewer in a large space."""

OTHERS = 4
"""So many wrong entries are named beside the worst."""

ALIKE = 1e-4
"""Entries that differ by less than this part of the largest one around are not listed as wrong."""


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
    if trial.late:
        return Study(1, 1, (), "")
    step = middle_step(trial)
    numerical = _numerical(trial, rows, columns, step)
    derivative = _derivative(trial, mode, rows, columns)
    xp = array_api_compat.array_namespace(numerical)
    finite = xp.isfinite(numerical)
    top = float(xp.max(xp.abs(xp.where(finite, numerical, xp.zeros_like(numerical)))))
    limit = max(ALIKE * top, abs(entry.derivative - entry.numerical) / 16.0)
    wrong = ~(xp.abs(derivative - numerical) <= limit)
    count = int(xp.count_nonzero(wrong))
    places = [(i, j) for i, j in _places(wrong) if (rows[i], columns[j]) != (entry.row, entry.column)]
    others = tuple(
        Entry(
            subject.codomain.locate(rows[i]),
            subject.domain.locate(columns[j]),
            float(derivative[i, j]),
            float(numerical[i, j]),
            _error(trial, rows[i], columns[j], float(numerical[i, j]), step),
            row=rows[i],
            column=columns[j],
        )
        for i, j in places[:OTHERS]
    )
    return Study(
        max(1, count),
        wrong.shape[0] * wrong.shape[1],
        others,
        diagnose(numerical, derivative, limit),
        block(numerical, derivative, names(subject.codomain, rows), names(subject.domain, columns)),
    )


def _error(trial: Trial, row: int, column: int, numerical: float, step: float) -> float:
    """The error bar of one entry: truncation, a third of what twice the step changes, and roundoff."""
    far = float(_numerical(trial, range(row, row + 1), range(column, column + 1), 2.0 * step)[0, 0])
    return abs(far - numerical) / 3.0 + float(trial.noise[row]) / (step * float(trial.sizes[column]))


def _numerical(trial: Trial, rows: range, columns: range, step: float) -> Array:
    found = []
    for column in columns:
        u = trial.subject.zeros(trial.subject.domain.size)
        u[column] = trial.sizes[column]
        slope, moved = slope_along(trial, u, step)
        size = float(moved[column])
        found.append(slope[rows.start : rows.stop] / size if size else slope[rows.start : rows.stop])
    return array_api_compat.array_namespace(found[0]).stack(found, axis=1)


def _derivative(trial: Trial, mode: Mode, rows: range, columns: range) -> Array:
    subject = trial.subject
    if mode.name == "forward":
        pushes = []
        for column in columns:
            u = subject.zeros(subject.domain.size)
            u[column] = 1.0
            pushes.append(subject.forward.push(u)[rows.start : rows.stop])
        return array_api_compat.array_namespace(pushes[0]).stack(pushes, axis=1)
    pulls = []
    for row in rows:
        v = subject.zeros(subject.codomain.size)
        v[row] = 1.0
        pulls.append(subject.reverse.pull(v)[columns.start : columns.stop])
    return array_api_compat.array_namespace(pulls[0]).stack(pulls, axis=0)


def _places(wrong: Array) -> list[tuple[int, int]]:
    xp = array_api_compat.array_namespace(wrong)
    rows, columns = xp.nonzero(wrong)
    return [(int(i), int(j)) for i, j in zip(rows[: OTHERS + 1], columns[: OTHERS + 1], strict=True)]
