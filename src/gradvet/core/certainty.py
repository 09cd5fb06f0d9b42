"""Is a disagreement at a point that nobody asked for beyond doubt?

At such points functions have kinks, ties and jumps, several at once, and frameworks have conventions for them. A
derivative is called wrong there only if the slopes all around the point leave no other reading:

    smooth      the slopes come together towards the point at one number, and the derivative is another
    one kink    they are one of two numbers, and the derivative lies outside of both
    no number   the derivative is not finite, and the slopes come together

Three equal numbers have a median that is smooth along every line, with a slope that is no sum of slopes; only its
surroundings show that there is no derivative.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gradvet.core.arithmetic import namespace
from gradvet.core.judgement import Reason
from gradvet.core.outcome import Outcome
from gradvet.core.pinpoint import Entry
from gradvet.core.spaces import Array
from gradvet.core.trial import Trial

AROUND, FEW = 8, 2
"""So many points around are looked at, and so many where a first look will do."""

SHORTEST, LONGEST = 2.0**-36, 2.0**-19
"""Steps along which slopes around the point are taken, relative to the size of the inputs; the points are eight steps
away. As short as roundoff allows: a function that oscillates within a longer step has slopes of its own there."""

FAR, NEARER = 2.0**-14, 2.0**-20
"""Two steps at which the slopes of a smooth function differ by as much as the steps do."""

ALIKE = 0.1
"""Slopes that differ by this part of what the derivative is wrong by are the same."""

MATERIAL, BESIDE = 1e-3, 1e-4
"""What changes an output by less than this part of itself, or of the largest beside it, over a step of the input's own
size, is not called wrong."""

ROUNDOFFS = 64.0


def is_certain(trial: Trial, outcome: Outcome) -> bool:
    """Whether a failure at a point of the checker's own choice may be called one."""
    entry = outcome.entry
    if entry is None or entry.column < 0:
        return False
    if outcome.reason is Reason.NOT_FINITE:
        return entry.row < 0 and _slopes_come_together(trial, entry.column)
    if entry.row < 0:
        return False
    if outcome.reason is Reason.OUTSIDE:
        return any(_is_beyond_one_kink(trial, entry.row, d) for d in _along_ties(trial, entry.column))
    return _is_another_slope(trial, entry)


def obstacle(trial: Trial) -> Reason | None:
    """What a short look shows that makes a scrutiny of the point vain: a jump, or neither slopes nor derivative."""
    subject, u = trial.subject, trial.direction_of_all()
    xp = namespace(u)
    f0 = subject.value[: subject.codomain.size]
    far, near = (xp.abs(subject.displaced(step * u).values[: f0.shape[0]] - f0) for step in (FAR, NEARER))
    if not bool(xp.all(near <= far / 8.0 + ROUNDOFFS * trial.coarse_noise)):
        return Reason.JUMP
    broken = trial.look(subject.signed(f0.shape[0])).broken
    d = xp.where(broken, xp.abs(u), xp.zeros_like(u))
    lost = bool(xp.any(broken)) and not _come_together(trial, d, slice(None), FEW)
    return Reason.NOT_FINITE if lost else None


def _is_another_slope(trial: Trial, entry: Entry) -> bool:
    """Whether the error is there alone, and also when all that is tied with the entry moves along.

    Which of several equal numbers gets the derivative of their median is a choice; what all of them get is not.
    """
    return all(_disagrees(trial, entry.row, d) for d in _along_ties(trial, entry.column))


def _disagrees(trial: Trial, row: int, d: Array) -> bool:
    if not _come_together(trial, d, slice(row, row + 1)):
        return False
    claim = _claim(trial, row, d)
    rough = float(next(_around(trial, d, LONGEST, _beside(trial)))[0][row])
    slopes = _row_around(trial, row, d, abs(claim - rough))
    if not slopes:
        return False
    error = min(abs(claim - slope) for slope in slopes)
    return error > _material(trial, row) and max(slopes) - min(slopes) <= ALIKE * error


def _claim(trial: Trial, row: int, d: Array) -> float:
    """What the derivative says about one output along d."""
    unit = trial.subject.zeros(trial.subject.codomain.size)
    unit[row] = 1.0
    return float(namespace(d).sum(trial.look(unit).w * d))


def _is_beyond_one_kink(trial: Trial, row: int, d: Array) -> bool:
    """Whether the slopes along d are one of two numbers, and the derivative is not between them."""
    claim = _claim(trial, row, d)
    slopes = _row_around(trial, row, d, abs(claim))
    if not slopes:
        return False
    low, high = min(slopes), max(slopes)
    beyond = max(low - claim, claim - high)
    if not beyond > ALIKE * (high - low) + MATERIAL * max(abs(low), abs(high)):
        return False
    return all(min(slope - low, high - slope) <= ALIKE * beyond for slope in slopes)


def _slopes_come_together(trial: Trial, column: int) -> bool:
    """Whether the slopes around differ the less, the nearer to the point they are taken, for every output."""
    broken = trial.set_aside
    xp = namespace(broken)
    alone = _unit(trial, column)
    several = xp.where(broken, xp.abs(trial.direction_of_all()), alone)
    return all(_come_together(trial, d, slice(None)) for d in (alone, several))


def _come_together(trial: Trial, d: Array, rows: slice, places: int = AROUND) -> bool:
    """Towards the point, do the slopes along d come together, and do all values come to the value there?"""
    beside = _beside(trial)[: places + 1]
    far, near = (_surroundings(trial, d, step, beside) for step in (FAR, NEARER))
    noise = ROUNDOFFS * trial.coarse_noise
    xp = namespace(noise)
    smooth = near.spread <= far.spread / 8.0 + noise / NEARER
    steady = near.distance <= far.distance / 8.0 + noise
    return bool(xp.all(smooth[rows])) and bool(xp.all(steady))


@dataclass(frozen=True, slots=True)
class _Surroundings:
    """How much slopes next to the point differ among each other, and values from the value at the point."""

    spread: Array
    distance: Array


def _surroundings(trial: Trial, d: Array, step: float, beside: Sequence[Array]) -> _Surroundings:
    slopes, values = zip(*_around(trial, d, step, beside), strict=True)
    xp = namespace(d)
    block, f0 = xp.stack(slopes), trial.subject.value[: trial.subject.codomain.size]
    distance = xp.max(xp.abs(xp.stack(values) - f0), axis=0)
    return _Surroundings(xp.max(block, axis=0) - xp.min(block, axis=0), distance)


def _row_around(trial: Trial, row: int, d: Array, error: float) -> list[float]:
    """Slopes of one output along d that are sharp enough to see the error; nothing where it is not material."""
    value = abs(float(trial.subject.value[row]))
    if not (math.isfinite(error) and error > _material(trial, row)):
        return []
    step = min(LONGEST, max(SHORTEST, ROUNDOFFS * trial.subject.epsilon * value / (ALIKE * error)))
    return [float(slope[row]) for slope, _ in _around(trial, d, step, _beside(trial))]


def _material(trial: Trial, row: int) -> float:
    largest = float(trial.coarse_noise[row]) / trial.subject.epsilon
    return max(MATERIAL * abs(float(trial.subject.value[row])), BESIDE * largest)


def _along_ties(trial: Trial, column: int) -> Iterator[Array]:
    """The column alone; with all of the same value; with all of the same size, away from zero."""
    unit, point = _unit(trial, column), trial.subject.point
    xp = namespace(point)
    yield unit
    same, alike = point == point[column], xp.abs(point) == xp.abs(point[column])
    if int(xp.count_nonzero(same)) > 1:
        yield xp.where(same, trial.sizes, xp.zeros_like(unit))
    if int(xp.count_nonzero(alike)) > int(xp.count_nonzero(same)):
        yield xp.where(alike, trial.sizes * xp.sign(point), xp.zeros_like(unit))


def _beside(trial: Trial) -> list[Array]:
    """Where to look: at the point itself, and in random directions from it."""
    return [trial.subject.zeros(trial.subject.domain.size), *(trial.direction_of_all() for _ in range(AROUND))]


def _around(trial: Trial, d: Array, step: float, beside: Sequence[Array]) -> Iterator[tuple[Array, Array]]:
    """The slopes along d of all outputs, and their values, at these places."""
    subject, rows = trial.subject, trial.subject.codomain.size
    for direction in beside:
        place = 8.0 * step * direction
        start, end = subject.displaced(place), subject.displaced(place + step * d)
        yield (end.values - start.values)[:rows] / step, start.values[:rows]


def _unit(trial: Trial, column: int) -> Array:
    u = trial.subject.zeros(trial.subject.domain.size)
    u[column] = trial.sizes[column]
    return u
