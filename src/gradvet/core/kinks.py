"""Points at which a function has a slope on each side but no derivative: found, named, and judged side by side."""

from __future__ import annotations

import math

from gradvet.core.context import Context, Cotangent
from gradvet.core.decision import Entry, ErrorScale, Reason, decide
from gradvet.core.extrapolation import fit_slope
from gradvet.core.finite_differences import NEAR, DirectionalDifference, bend_along, middle_step
from gradvet.core.localise import bisect_sum, test_entry
from gradvet.core.modes import Mode
from gradvet.core.results import Verdict
from gradvet.core.spaces import Array
from gradvet.core.vectors import dot, finite_part, namespace

CLEAR_OF_NOISE = 64.0
"""A bend counts from so many roundoffs on."""

SMOOTH = 3.0
"""Twice the step makes the even part of a smooth function four times as large, that of a kink twice."""

TOGETHER = 2
"""And so many directions of all of them together."""

JUDGED = 2
"""So many elements at kinks are judged each by itself."""


def bent_rows(context: Context, difference: DirectionalDifference) -> Array | None:
    """Outputs whose even part is that of a kink rather than of a curve; None if there is none."""
    if not context.is_double:
        return None
    xp = namespace(difference.even)
    even = xp.abs(difference.even)
    bent = even > xp.maximum(1e-5 * xp.abs(difference.odd), (CLEAR_OF_NOISE / NEAR) * context.peak_noise)
    if not bool(xp.any(bent)):
        return None
    bent = bent & (2.0 * xp.abs(difference.far[1]) < SMOOTH * even) & xp.isfinite(even)
    return bent if bool(xp.any(bent)) else None


def exclude_kinks(context: Context, mode: Mode, u: Array, cotangent: Cotangent) -> tuple[Array, Entry | None]:
    """The columns at the kink that bends v·f along u most, with their likes; an entry among them that is wrong."""
    problem, step = context.problem, middle_step(context.problem.eps)
    xp = namespace(u)

    def part(start: int, stop: int) -> float:
        window = xp.zeros_like(u)
        window[start:stop] = u[start:stop]
        return dot(cotangent.v, bend_along(context.problem, window, step))

    column = bisect_sum(part, u.shape[0], part(0, u.shape[0]))
    place = problem.domain.locate(column)
    # Kinks of one kind sit at one value, in whichever input: the others there are set aside with it.
    alike = (xp.abs(problem.point) == xp.abs(problem.point[column])) & (u != 0.0)
    alike[column] = True
    count = int(xp.count_nonzero(alike))
    like = f" and at {count - 1} more of the same size" if count > 1 else ""
    context.record.note(f"kink at {place}{like}: the derivative there is held to the slopes on both sides")
    bends = xp.abs(cotangent.v * bend_along(context.problem, _unit(context, column), step))
    row = int(xp.argmax(finite_part(bends)))
    for other in _some(alike, column):
        entry = test_entry(context, mode, row if other == column else _bent_row(context, cotangent, other, step), other)
        if entry.verdict is Verdict.FAIL:
            return alike, entry
    return alike, _ties_violate_bounds(context, mode, alike, (row, column)) if count > 1 else None


def _ties_violate_bounds(context: Context, mode: Mode, columns: Array, place: tuple[int, int]) -> Entry | None:
    """Each element may be right by itself and all together wrong, as where every tied entry gets the whole gradient.

    Only where the kinks of the output all bend the same way: otherwise the two slopes of a line need not hold the
    value between them.
    """
    problem = context.problem
    row, column = place
    xp = namespace(columns)
    unit = problem.zeros(problem.codomain.size)
    unit[row] = 1.0
    cotangent = context.cotangent(unit)
    fits = []
    for number in range(TOGETHER):
        u = xp.where(columns, context.joint_direction(), xp.zeros_like(context.lengths))
        # All tied entries that grow together show what each of them gets too much.
        u = u if number else xp.abs(u)
        prediction = mode.predictions(context, u, [cotangent])[0]
        slope = prediction.predicted(u, 1.0)
        fit = fit_slope(context.sweep_steps(u, [prediction], few=True)[0])
        scale_of_error = ErrorScale(abs(slope), abs(slope), problem.eps)
        fits.append((decide(fit, scale_of_error, math.inf), fit, slope))
    bends = [fit.kink.value for _, fit, _ in fits]
    bends += [
        float(bend_along(context.problem, _unit(context, other), middle_step(context.problem.eps))[row])
        for other in _some(columns, column)
    ]
    if min(bends) < 0.0 < max(bends):
        return None
    for decision, fit, slope in fits:
        if decision.reason is Reason.OUTSIDE:
            numerical, error = slope + fit.error.value, fit.error.error
            output, source = problem.codomain.locate(row), problem.domain.locate(column)
            return Entry(output, source, slope, numerical, error, decision, row, column)
    return None


def _bent_row(context: Context, cotangent: Cotangent, column: int, step: float) -> int:
    xp = namespace(cotangent.v)
    bends = xp.abs(cotangent.v * bend_along(context.problem, _unit(context, column), step))
    return int(xp.argmax(finite_part(bends)))


def _unit(context: Context, column: int) -> Array:
    u = context.problem.zeros(context.problem.domain.size)
    u[column] = context.lengths[column]
    return u


def _some(alike: Array, first: int) -> list[int]:
    places = namespace(alike).nonzero(alike)[0]
    others = [int(place) for place in places[: JUDGED + 1] if int(place) != first]
    return [first, *others[: JUDGED - 1]]
