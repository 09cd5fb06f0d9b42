"""Points at which a function has a slope on each side but no derivative: found, named, and judged side by side."""

from __future__ import annotations

import math

from gradvet.core.arithmetic import dot, finite_part, namespace
from gradvet.core.descent import descend
from gradvet.core.judgement import Reason, Standard, judge
from gradvet.core.ladder import read
from gradvet.core.lines import NEAR, Near
from gradvet.core.modes import Mode
from gradvet.core.pinpoint import Entry, bend_along, judged_entry, middle_step
from gradvet.core.results import Verdict
from gradvet.core.spaces import Array
from gradvet.core.trial import Look, Trial

CLEAR_OF_NOISE = 64.0
"""A bend counts from so many roundoffs on."""

SMOOTH = 3.0
"""Twice the step makes the even part of a smooth function four times as large, that of a kink twice."""

TOGETHER = 2
"""And so many directions of all of them together."""

JUDGED = 2
"""So many elements at kinks are judged each by itself."""


def bent_rows(trial: Trial, walk: Near) -> Array | None:
    """Outputs whose even part is that of a kink rather than of a curve; None if there is none."""
    if not trial.is_fine:
        return None
    xp = namespace(walk.even)
    even = xp.abs(walk.even)
    bent = even > xp.maximum(1e-5 * xp.abs(walk.odd), (CLEAR_OF_NOISE / NEAR) * trial.coarse_noise)
    if not bool(xp.any(bent)):
        return None
    bent = bent & (2.0 * xp.abs(walk.far[1]) < SMOOTH * even) & xp.isfinite(even)
    return bent if bool(xp.any(bent)) else None


def set_kinks_aside(trial: Trial, mode: Mode, u: Array, look: Look) -> tuple[Array, Entry | None]:
    """The columns at the kink that bends v·f along u most, with their likes; an entry among them that is wrong."""
    subject, step = trial.subject, middle_step(trial)
    xp = namespace(u)

    def part(start: int, stop: int) -> float:
        window = xp.zeros_like(u)
        window[start:stop] = u[start:stop]
        return dot(look.v, bend_along(trial, window, step))

    column = descend(part, u.shape[0], part(0, u.shape[0]))
    place = subject.domain.locate(column)
    # Kinks of one kind sit at one value, in whichever input: the others there are set aside with it.
    alike = (xp.abs(subject.point) == xp.abs(subject.point[column])) & (u != 0.0)
    alike[column] = True
    count = int(xp.count_nonzero(alike))
    like = f" and at {count - 1} more of the same size" if count > 1 else ""
    trial.record.note(f"kink at {place}{like}: the derivative there is held to the slopes on both sides")
    bends = xp.abs(look.v * bend_along(trial, _unit(trial, column), step))
    row = int(xp.argmax(finite_part(bends)))
    for other in _some(alike, column):
        entry = judged_entry(trial, mode, row if other == column else _bent_row(trial, look, other, step), other)
        if entry.verdict is Verdict.FAIL:
            return alike, entry
    return alike, _wrong_together(trial, mode, alike, (row, column)) if count > 1 else None


def _wrong_together(trial: Trial, mode: Mode, columns: Array, place: tuple[int, int]) -> Entry | None:
    """Each element may be right by itself and all together wrong, as where every tied entry gets the whole gradient.

    Only where the kinks of the output all bend the same way: otherwise the two slopes of a line need not hold the
    value between them.
    """
    subject = trial.subject
    row, column = place
    xp = namespace(columns)
    unit = subject.zeros(subject.codomain.size)
    unit[row] = 1.0
    look = trial.look(unit)
    readings = []
    for number in range(TOGETHER):
        u = xp.where(columns, trial.direction_of_all(), xp.zeros_like(trial.sizes))
        # All tied entries that grow together show what each of them gets too much.
        u = u if number else xp.abs(u)
        claim = mode.claims(trial, u, [look])[0]
        slope = claim.predicted(u, 1.0)
        reading = read(trial.climb(u, [claim], few=True)[0])
        standard = Standard(abs(slope), abs(slope), subject.epsilon)
        readings.append((judge(reading, standard, math.inf), reading, slope))
    bends = [reading.kink.value for _, reading, _ in readings]
    bends += [
        float(bend_along(trial, _unit(trial, other), middle_step(trial))[row]) for other in _some(columns, column)
    ]
    if min(bends) < 0.0 < max(bends):
        return None
    for judgement, reading, slope in readings:
        if judgement.reason is Reason.OUTSIDE:
            numerical, error = slope + reading.error.value, reading.error.error
            output, source = subject.codomain.locate(row), subject.domain.locate(column)
            return Entry(output, source, slope, numerical, error, judgement, row, column)
    return None


def _bent_row(trial: Trial, look: Look, column: int, step: float) -> int:
    xp = namespace(look.v)
    bends = xp.abs(look.v * bend_along(trial, _unit(trial, column), step))
    return int(xp.argmax(finite_part(bends)))


def _unit(trial: Trial, column: int) -> Array:
    u = trial.subject.zeros(trial.subject.domain.size)
    u[column] = trial.sizes[column]
    return u


def _some(alike: Array, first: int) -> list[int]:
    places = namespace(alike).nonzero(alike)[0]
    others = [int(place) for place in places[: JUDGED + 1] if int(place) != first]
    return [first, *others[: JUDGED - 1]]
