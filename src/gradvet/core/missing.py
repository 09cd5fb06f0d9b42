"""Derivatives that are not finite: is the function's own slope finite there?"""

from __future__ import annotations

import math

from gradvet.core.arithmetic import all_finite, namespace
from gradvet.core.judgement import Reason
from gradvet.core.modes import Mode
from gradvet.core.outcome import Outcome
from gradvet.core.pinpoint import Entry, slope_of_column
from gradvet.core.results import Verdict
from gradvet.core.spaces import Array, Location
from gradvet.core.trial import Trial

BROKEN = 4
"""So many columns without a finite derivative are looked at."""


def without_tangent(trial: Trial, mode: Mode) -> Outcome | None:
    """Forward mode gives something that is not finite for an output that has a finite slope."""
    xp, slope = namespace(trial.first.slope), trial.first.slope
    gap = mode.column_gap(trial, xp.ones_like(slope), slope, trial.first.displacement)
    if gap is None or all_finite(gap):
        return None
    bad = xp.isfinite(slope) & ~xp.isfinite(gap)
    if not bool(xp.any(bad)):
        return None
    row = int(xp.argmax(xp.astype(bad, xp.int64)))
    if bool(xp.any(trial.set_aside)):
        return Outcome(Verdict.INCONCLUSIVE, Reason.NOT_FINITE)
    place = Location(0, "the direction", "")
    numerical = float(slope[row])
    entry = Entry(trial.subject.codomain.locate(row), place, math.nan, numerical, math.nan)
    return Outcome(Verdict.FAIL, Reason.NOT_FINITE, entry)


def without_derivative(trial: Trial, mode: Mode, broken: Array) -> Outcome:
    """The derivative is not finite in some columns: is the function's slope finite there?"""
    xp = namespace(broken)
    missing = False
    for column in [int(place) for place in xp.nonzero(broken)[0][:BROKEN]]:
        if mode.is_finite_at(trial, column):
            continue
        missing = True
        where = trial.subject.domain.locate(column)
        slope = slope_of_column(trial, column)
        if slope is None:
            trial.record.note(f"the derivative is not finite at {where}, and the function has no finite slope there")
            continue
        entry = Entry(None, where, math.nan, slope.value, slope.error, column=column)
        return Outcome(Verdict.FAIL, Reason.NOT_FINITE, entry)
    return Outcome(Verdict.INCONCLUSIVE if missing else Verdict.PASS, Reason.NOT_FINITE)
