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

from gradvet.core.context import Context
from gradvet.core.decision import Decision, Entry, Reason
from gradvet.core.spaces import Array
from gradvet.core.vectors import namespace

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


def is_confirmed(context: Context, decision: Decision) -> bool:
    """Whether a failure at a point of the checker's own choice may be called one."""
    entry = decision.entry
    if entry is None or entry.column < 0:
        return False
    if decision.reason is Reason.NOT_FINITE:
        return entry.row < 0 and _slopes_come_together(context, entry.column)
    if entry.row < 0:
        return False
    if decision.reason is Reason.OUTSIDE:
        return any(_is_beyond_one_kink(context, entry.row, d) for d in _along_ties(context, entry.column))
    return _is_another_slope(context, entry)


def blocking_reason(context: Context) -> Reason | None:
    """What a short look shows that makes a scrutiny of the point vain: a jump, or neither slopes nor derivative."""
    problem, u = context.problem, context.joint_direction()
    xp = namespace(u)
    f0 = problem.value[: problem.codomain.size]
    far, near = (xp.abs(problem.evaluate_at(step * u).values[: f0.shape[0]] - f0) for step in (FAR, NEARER))
    if not bool(xp.all(near <= far / 8.0 + ROUNDOFFS * context.peak_noise)):
        return Reason.JUMP
    broken = context.cotangent(problem.signed(f0.shape[0])).broken
    d = xp.where(broken, xp.abs(u), xp.zeros_like(u))
    lost = bool(xp.any(broken)) and not _come_together(context, d, slice(None), FEW)
    return Reason.NOT_FINITE if lost else None


def _is_another_slope(context: Context, entry: Entry) -> bool:
    """Whether the error is there alone, and also when all that is tied with the entry moves along.

    Which of several equal numbers gets the derivative of their median is a choice; what all of them get is not.
    """
    return all(_disagrees(context, entry.row, d) for d in _along_ties(context, entry.column))


def _disagrees(context: Context, row: int, d: Array) -> bool:
    if not _come_together(context, d, slice(row, row + 1)):
        return False
    prediction = _claim(context, row, d)
    rough = float(next(_around(context, d, LONGEST, _beside(context)))[0][row])
    slopes = _row_around(context, row, d, abs(prediction - rough))
    if not slopes:
        return False
    error = min(abs(prediction - slope) for slope in slopes)
    return error > _material(context, row) and max(slopes) - min(slopes) <= ALIKE * error


def _claim(context: Context, row: int, d: Array) -> float:
    """What the derivative says about one output along d."""
    unit = context.problem.zeros(context.problem.codomain.size)
    unit[row] = 1.0
    return float(namespace(d).sum(context.cotangent(unit).w * d))


def _is_beyond_one_kink(context: Context, row: int, d: Array) -> bool:
    """Whether the slopes along d are one of two numbers, and the derivative is not between them."""
    prediction = _claim(context, row, d)
    slopes = _row_around(context, row, d, abs(prediction))
    if not slopes:
        return False
    low, high = min(slopes), max(slopes)
    beyond = max(low - prediction, prediction - high)
    if not beyond > ALIKE * (high - low) + MATERIAL * max(abs(low), abs(high)):
        return False
    return all(min(slope - low, high - slope) <= ALIKE * beyond for slope in slopes)


def _slopes_come_together(context: Context, column: int) -> bool:
    """Whether the slopes around differ the less, the nearer to the point they are taken, for every output."""
    broken = context.excluded
    xp = namespace(broken)
    alone = _unit(context, column)
    several = xp.where(broken, xp.abs(context.joint_direction()), alone)
    return all(_come_together(context, d, slice(None)) for d in (alone, several))


def _come_together(context: Context, d: Array, rows: slice, places: int = AROUND) -> bool:
    """Towards the point, do the slopes along d come together, and do all values come to the value there?"""
    beside = _beside(context)[: places + 1]
    far, near = (_surroundings(context, d, step, beside) for step in (FAR, NEARER))
    noise = ROUNDOFFS * context.peak_noise
    xp = namespace(noise)
    smooth = near.spread <= far.spread / 8.0 + noise / NEARER
    steady = near.distance <= far.distance / 8.0 + noise
    return bool(xp.all(smooth[rows])) and bool(xp.all(steady))


@dataclass(frozen=True, slots=True)
class _Surroundings:
    """How much slopes next to the point differ among each other, and values from the value at the point."""

    spread: Array
    distance: Array


def _surroundings(context: Context, d: Array, step: float, beside: Sequence[Array]) -> _Surroundings:
    slopes, values = zip(*_around(context, d, step, beside), strict=True)
    xp = namespace(d)
    block, f0 = xp.stack(slopes), context.problem.value[: context.problem.codomain.size]
    distance = xp.max(xp.abs(xp.stack(values) - f0), axis=0)
    return _Surroundings(xp.max(block, axis=0) - xp.min(block, axis=0), distance)


def _row_around(context: Context, row: int, d: Array, error: float) -> list[float]:
    """Slopes of one output along d that are sharp enough to see the error; nothing where it is not material."""
    value = abs(float(context.problem.value[row]))
    if not (math.isfinite(error) and error > _material(context, row)):
        return []
    step = min(LONGEST, max(SHORTEST, ROUNDOFFS * context.problem.eps * value / (ALIKE * error)))
    return [float(slope[row]) for slope, _ in _around(context, d, step, _beside(context))]


def _material(context: Context, row: int) -> float:
    largest = float(context.peak_noise[row]) / context.problem.eps
    return max(MATERIAL * abs(float(context.problem.value[row])), BESIDE * largest)


def _along_ties(context: Context, column: int) -> Iterator[Array]:
    """The column alone; with all of the same value; with all of the same size, away from zero."""
    unit, point = _unit(context, column), context.problem.point
    xp = namespace(point)
    yield unit
    same, alike = point == point[column], xp.abs(point) == xp.abs(point[column])
    if int(xp.count_nonzero(same)) > 1:
        yield xp.where(same, context.lengths, xp.zeros_like(unit))
    if int(xp.count_nonzero(alike)) > int(xp.count_nonzero(same)):
        yield xp.where(alike, context.lengths * xp.sign(point), xp.zeros_like(unit))


def _beside(context: Context) -> list[Array]:
    """Where to look: at the point itself, and in random directions from it."""
    return [context.problem.zeros(context.problem.domain.size), *(context.joint_direction() for _ in range(AROUND))]


def _around(context: Context, d: Array, step: float, beside: Sequence[Array]) -> Iterator[tuple[Array, Array]]:
    """The slopes along d of all outputs, and their values, at these places."""
    problem, rows = context.problem, context.problem.codomain.size
    for direction in beside:
        place = 8.0 * step * direction
        start, end = problem.evaluate_at(place), problem.evaluate_at(place + step * d)
        yield (end.values - start.values)[:rows] / step, start.values[:rows]


def _unit(context: Context, column: int) -> Array:
    u = context.problem.zeros(context.problem.domain.size)
    u[column] = context.lengths[column]
    return u
