"""From a line along which a derivative is wrong to the entry that makes it so, in about log₂(size) evaluations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gradvet.core.arithmetic import dot, namespace
from gradvet.core.descent import descend
from gradvet.core.judgement import Judgement, Reason, Standard, judge
from gradvet.core.ladder import Estimate, read
from gradvet.core.lines import Claim, steps_for
from gradvet.core.modes import Mode
from gradvet.core.noise import inherited
from gradvet.core.portrait import sweep
from gradvet.core.results import Verdict
from gradvet.core.spaces import Array, Location
from gradvet.core.trial import Trial

UNKNOWN = Judgement(Verdict.FAIL, Reason.NOT_FINITE)

FINER = 2.0**-12
"""By so much the steps are narrowed."""

LARGE = 64.0
"""Numbers beyond this are also moved by steps of size one."""

ROWS_OF_COLUMN = 16
"""So many outputs are looked at where a column has no finite derivative."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the Jacobian as the derivative under test and the differences give it; no row: some combination."""

    output: Location | None
    input: Location
    derivative: float
    numerical: float
    error: float
    judgement: Judgement = UNKNOWN
    row: int = -1
    column: int = -1
    sweep: Mapping[str, Any] = field(default_factory=dict)
    """Its error at every step."""

    @property
    def verdict(self) -> Verdict:
        return self.judgement.verdict

    @property
    def reason(self) -> Reason:
        return self.judgement.reason


def pinpoint(trial: Trial, mode: Mode, u: Array, v: Array) -> Entry | None:
    """The entry that contributes most to the disagreement of v·J·u, judged by a ladder of its own."""
    subject = trial.subject
    step = middle_step(trial)
    slope, displacement = slope_along(trial, u, step)
    row = _row(trial, mode, v, slope, displacement)
    if row is None:
        return None
    unit = subject.zeros(subject.codomain.size)
    unit[row] = 1.0
    pulled = subject.reverse.pull(unit) if mode.name == "reverse" else unit

    def part(start: int, stop: int) -> float:
        window = _window(u, start, stop)
        change, moved = slope_along(trial, window, step)
        return float(change[row]) - _predicted(trial, mode, row, pulled, moved)

    column = descend(part, u.shape[0], float(slope[row]) - _predicted(trial, mode, row, pulled, displacement))
    return judged_entry(trial, mode, row, column)


def judged_entry(trial: Trial, mode: Mode, row: int, column: int) -> Entry:
    """One entry by a ladder along its own column; a wrong one also by narrower steps, lest those were too wide for it.

    They are of the size of the number itself, of size one if that is large, or much smaller: a function may oscillate,
    or end, on a scale that its inputs do not show.
    """
    size = float(trial.sizes[column])
    own = abs(float(trial.subject.point[column]))
    entry = _laddered(trial, mode, (row, column), size)
    narrower = [own] if 0.0 < own < size / 2.0 else []
    narrower += [1.0] if size > LARGE else []
    for other in narrower:
        if entry.verdict is not Verdict.PASS:
            finer = _laddered(trial, mode, (row, column), other)
            entry = finer if entry.verdict is not Verdict.FAIL or _speaks_against(finer, entry) else entry
    if entry.verdict is not Verdict.PASS and trial.is_fine and trial.is_rough_as_it_looks:
        # Much narrower steps show the slope of any noise: they may speak for a derivative, but not against it.
        finer = _laddered(trial, mode, (row, column), FINER * size)
        entry = finer if _speaks_against(finer, entry) else entry
    return entry


def _speaks_against(finer: Entry, entry: Entry) -> bool:
    """Whether an agreement is close enough to speak against a disagreement."""
    return finer.verdict is Verdict.PASS and 2.0 * finer.error < abs(entry.derivative - entry.numerical)


def _laddered(trial: Trial, mode: Mode, place: tuple[int, int], size: float) -> Entry:
    subject = trial.subject
    row, column = place
    unit, u = subject.zeros(subject.codomain.size), subject.zeros(subject.domain.size)
    unit[row], u[column] = 1.0, size
    look = trial.look(unit)
    claim = mode.claims(trial, u, [look])[0]
    rungs = trial.climb(u, [claim], few=True)[0]
    reading = read(rungs)
    value = claim.predicted(u, 1.0)
    standard = Standard(abs(value), abs(value), subject.epsilon, inherited(trial, unit) if trial.is_fine else 0.0)
    judgement = judge(reading, standard, math.inf)
    return Entry(
        subject.codomain.locate(row),
        subject.domain.locate(column),
        value / size,
        (value + reading.error.value) / size,
        reading.error.error / size,
        judgement,
        row,
        column,
        sweep(rungs, reading, size),
    )


def slope_of_column(trial: Trial, column: int) -> Estimate | None:
    """The slope along one coordinate, over all outputs that it moves; None if it is not finite for one of them.

    Outputs are looked at one by one, up to a few: an infinite slope in one of them must not hide in a sum.
    """
    subject = trial.subject
    u = subject.zeros(subject.domain.size)
    u[column] = trial.sizes[column]
    xp = namespace(u)
    change = bend_along(trial, u, middle_step(trial)), slope_along(trial, u, middle_step(trial))[0]
    moved = [int(row) for row in xp.nonzero((change[0] != 0.0) | (change[1] != 0.0))[0][:ROWS_OF_COLUMN]]
    units = []
    for row in moved:
        unit = subject.zeros(subject.codomain.size)
        unit[row] = 1.0
        units.append(unit)
    claims = [Claim(unit, lambda displacement, t: 0.0) for unit in units]
    found = Estimate(0.0, 0.0)
    for row, rungs in zip(moved, trial.climb(u, claims), strict=True):
        reading = read(rungs)
        if not math.isfinite(reading.error.error) or reading.steep or reading.jump:
            return None
        if not math.isfinite(float(subject.value[row])):
            return None
        if abs(reading.error.value) > abs(found.value):
            found = reading.error
    return found


def slope_along(trial: Trial, u: Array, step: float) -> tuple[Array, Array]:
    """J·u by one central difference, and the direction as it was really walked."""
    rows = trial.subject.codomain.size
    plus, minus = (trial.subject.displaced(t * u) for t in (step, -step))
    return (plus.values - minus.values)[:rows] / (2.0 * step), (plus.displacement - minus.displacement) / (2.0 * step)


def bend_along(trial: Trial, u: Array, step: float) -> Array:
    """Half the change of slope at the point, for every output."""
    rows = trial.subject.codomain.size
    plus, minus = (trial.subject.displaced(t * u) for t in (step, -step))
    return ((plus.values + minus.values) / 2.0 - trial.subject.value)[:rows] / step


def middle_step(trial: Trial) -> float:
    """A step at which neither roundoff nor curvature is at its worst."""
    steps = steps_for(trial.subject.epsilon)
    return steps[len(steps) // 2]


def _predicted(trial: Trial, mode: Mode, row: int, pulled: Array, moved: Array) -> float:
    if mode.name == "reverse":
        return dot(pulled, moved)
    return float(trial.subject.forward.push(moved)[row])


def _row(trial: Trial, mode: Mode, v: Array, slope: Array, displacement: Array) -> int | None:
    """The row that contributes most; by masking the codirection where the mode shows only combinations of rows."""
    xp = namespace(v)
    gap = mode.column_gap(trial, v, slope, displacement)
    if gap is not None:
        gap = xp.where(v != 0.0, xp.abs(gap), xp.zeros_like(gap))
        return int(xp.argmax(gap))

    def part(start: int, stop: int) -> float:
        window = _window(v, start, stop)
        return dot(window, slope) - dot(trial.subject.reverse.pull(window), displacement)

    return descend(part, v.shape[0], part(0, v.shape[0])) if v.shape[0] else None


def _window(vector: Array, start: int, stop: int) -> Array:
    """The vector between two indices, zero elsewhere."""
    xp = namespace(vector)
    window = xp.zeros_like(vector)
    window[start:stop] = vector[start:stop]
    return window
