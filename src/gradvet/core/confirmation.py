"""Whether a failure at a generated point, or at ties, is beyond doubt.

At generated points functions have kinks, ties and jumps, several at once, and frameworks have conventions for them. A
derivative is called wrong there only if the slopes around the point allow no other interpretation:

    smooth      the slopes tend to one number towards the point, and the derivative is another
    one kink    the slopes are one of two numbers, and the derivative is outside both
    not finite  the derivative is not finite, and the slopes tend to one number

The median of three equal numbers is smooth along every line, with a slope that is no sum of slopes; only the points
around it show that there is no derivative. Needed by `call_option_before_expiry`; see also
`median_of_ties` and `sort_of_ties`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from gradvet.core import thresholds
from gradvet.core.context import Context
from gradvet.core.decision import Decision, Entry, Reason
from gradvet.core.extrapolation import Estimate
from gradvet.core.modes import Mode
from gradvet.core.results import Verdict
from gradvet.core.vectors import Array, dot, namespace, norm, unit

POINTS_AROUND = 8
"""Number of points around the given one at which slopes are taken, each eight steps away."""

MIN_TIES = 3
"""Number of equal elements from which a failure must be confirmed by the points around it; at a kink, two."""


def distances() -> list[float]:
    """Distances of points without ties, relative to the step lengths."""
    near, far = thresholds.CONFIRM_FAR, thresholds.TIES_FAR
    return [near, math.sqrt(near * far), far]


def despite_ties(context: Context, mode: Mode, failure: Decision) -> Decision:
    """A failure, unless several equal elements may explain it. Calls the function and its derivative.

    Three equal elements may have no derivative though every line through the point is smooth, as those of a sort.
    And the slopes around ties may be others than the two one-sided ones, as those of a maximum times a minimum: a
    derivative between them is one of the derivatives around the point (`maximum_times_minimum_of_ties`).
    """
    entry, is_outside = failure.entry, failure.reason is Reason.OUTSIDE
    if entry is None or not (is_outside or failure.reason is Reason.DISAGREES):
        return failure
    point, rules = context.problem.point, context.problem.rules
    tied = int(namespace(point).count_nonzero(point == point[entry.column]))
    # Where the rules are the framework's own, its operators may break the same tie in different ways. Roundoff makes
    # ties inside the function too: see `test_kinks_that_cancel_but_for_roundoff_do_not_fail`.
    is_convention = rules.are_builtin and (is_outside or not rules.is_smooth_branch)
    if tied < (2 if is_outside else MIN_TIES) and (is_outside or not is_convention):
        return failure
    if not is_outside and _is_wrong_nearby(context, mode, entry):
        return failure
    if not is_convention and (context.is_double or is_outside) and is_confirmed(context, failure):
        return failure
    if is_outside and _is_among_slopes(context, entry):
        return Decision(Verdict.PASS, Reason.KINK, entry, failure.error, failure.bar)
    return failure.weakened(Reason.KINK)


def _is_wrong_nearby(context: Context, mode: Mode, entry: Entry) -> bool:
    """Whether the derivative is wrong at points around too, where no elements are equal. Calls function and derivative.

    Then no tie explains it; a derivative that is wrong at the tie alone is a convention
    (`test_derivative_that_differs_at_ties_alone_is_a_convention_of_the_framework`). Both of two points at the same
    distance must show the error: at one of them other elements may be within a step
    (`test_sort_of_many_ties_passes`). Needed by `test_lost_gradient_of_equal_small_weights_fails`, which is
    inconclusive without it.
    """
    if entry.row < 0:
        return False
    u, v = context.column(entry.column), unit(context.problem.zeros(context.problem.codomain.size), entry.row)
    error = abs(entry.derivative - entry.numerical) * float(context.lengths[entry.column])

    def is_wrong(distance: float) -> bool:
        displacement = distance * context.joint_direction()
        step = distance * thresholds.CONFIRM_NEAR / thresholds.CONFIRM_FAR
        found = error_nearby(context, mode, displacement, u, v, step)
        return abs(found.value) > max(thresholds.CLEAR * found.error, thresholds.PLATEAU_RTOL * error)

    return any(is_wrong(distance) and is_wrong(distance) for distance in distances())


def slope_nearby(context: Context, displacement: Array, u: Array, step: float) -> tuple[Array, Array]:
    """Central differences of the outputs along u at a displaced point, and what rounding left of u. Two evaluations."""
    ahead, behind = (context.problem.evaluate_at(displacement + sign * step * u) for sign in (1.0, -1.0))
    slope = (ahead.values - behind.values)[: context.problem.codomain.size] / (2.0 * step)
    return slope, (ahead.displacement - behind.displacement) / (2.0 * step)


def error_nearby(context: Context, mode: Mode, displacement: Array, u: Array, v: Array, step: float) -> Estimate:
    """Error of v·J·u at a displaced point, by central differences of two steps. Calls function and derivative."""
    found = []
    for width in (step, step / 2.0):
        slope, moved = slope_nearby(context, displacement, u, width)
        found.append(mode.slope_at(context, displacement, v, moved) - dot(v, slope))
    noise = thresholds.ROUNDOFFS * norm(v, context.peak_noise) / step
    return Estimate(found[1], noise + abs(found[1] - found[0]))


def is_confirmed(context: Context, decision: Decision) -> bool:
    """Whether a failure at a generated point is beyond doubt. Calls the function and its derivative."""
    entry = decision.entry
    if entry is None or entry.column < 0:
        return False
    if decision.reason is Reason.NOT_FINITE:
        return entry.row < 0 and _converge(context, context.column(entry.column), slice(None))
    if entry.row < 0:
        return False
    directions = _tied_directions(context, entry.column)
    if decision.reason is Reason.OUTSIDE:
        return any(_is_beyond_one_kink(context, entry.row, d) for d in directions)
    # Which of several equal numbers gets the derivative of their median is a choice; what all of them get is not.
    return all(_is_another_slope(context, entry, d) for d in directions)


def _is_another_slope(context: Context, entry: Entry, d: Array) -> bool:
    """Whether the slopes along d tend to one number, and the derivative is another."""
    row = entry.row
    if not _converge(context, d, slice(row, row + 1)):
        return False
    predicted = dot(d, context.row(row).vjp)
    rough = float(next(_around(context, d, thresholds.CONFIRM_NEAR, _points_around(context)))[0][row])
    slopes = _slopes_of_row(context, row, d, abs(predicted - rough))
    if not slopes:
        return False
    error = min(abs(predicted - slope) for slope in slopes)
    return error > _material(context, row) and max(slopes) - min(slopes) <= thresholds.PLATEAU_RTOL * error


def _is_beyond_one_kink(context: Context, row: int, d: Array) -> bool:
    """Whether the slopes along d are one of two numbers, and the derivative is not between them."""
    predicted = dot(d, context.row(row).vjp)
    slopes = _slopes_of_row(context, row, d, abs(predicted))
    if not slopes:
        return False
    low, high = min(slopes), max(slopes)
    beyond = max(low - predicted, predicted - high)
    allowed = thresholds.PLATEAU_RTOL * (high - low) + thresholds.GENERATED_RTOL * max(abs(low), abs(high))
    is_one_of_two = all(min(s - low, high - s) <= thresholds.PLATEAU_RTOL * beyond for s in slopes)
    return beyond > allowed and is_one_of_two


def _is_among_slopes(context: Context, entry: Entry) -> bool:
    """Whether the derivative is between the slopes around the point, along its element and along all tied ones."""
    for d in _tied_directions(context, entry.column):
        predicted = dot(d, context.row(entry.row).vjp)
        slopes = _slopes_of_row(context, entry.row, d, abs(predicted)) or [0.0]
        low, high = min(slopes), max(slopes)
        allowed = thresholds.PLATEAU_RTOL * (high - low) + _material(context, entry.row)
        if not low - allowed <= predicted <= high + allowed:
            return False
    return True


def _converge(context: Context, d: Array, rows: slice) -> bool:
    """Whether towards the point the slopes of some rows along d converge, and all values tend to the value there."""
    points = _points_around(context)
    far, near = thresholds.CONFIRM_FAR, thresholds.CONFIRM_NEAR
    (wide, wide_values), (narrow, narrow_values) = (_spreads(context, d, step, points) for step in (far, near))
    noise, shrinkage = thresholds.ROUNDOFFS * context.peak_noise, math.sqrt(far / near)
    xp = namespace(noise)
    is_smooth = narrow <= wide / shrinkage + noise / near
    is_continuous = narrow_values <= wide_values / shrinkage + noise
    return bool(xp.all(is_smooth[rows])) and bool(xp.all(is_continuous))


def _spreads(context: Context, d: Array, step: float, points: Sequence[Array]) -> tuple[Array, Array]:
    """Largest difference of the slopes around the point, and of the values there from the value at the point."""
    slopes, values = zip(*_around(context, d, step, points), strict=True)
    xp = namespace(d)
    block = xp.stack(slopes)
    return xp.max(block, axis=0) - xp.min(block, axis=0), xp.max(xp.abs(xp.stack(values) - context.value), axis=0)


def _slopes_of_row(context: Context, row: int, d: Array, error: float) -> list[float]:
    """Slopes of one output along d, with steps that resolve the error; empty where the error is not material."""
    value = abs(float(context.problem.value[row]))
    if not (math.isfinite(error) and error > _material(context, row)):
        return []
    shortest, longest = context.eps ** (2.0 / 3.0), max(thresholds.CONFIRM_NEAR, math.sqrt(context.eps))
    resolving = thresholds.ROUNDOFFS * context.eps * value / (thresholds.PLATEAU_RTOL * error)
    step = min(longest, max(shortest, resolving))
    return [float(slope[row]) for slope, _ in _around(context, d, step, _points_around(context))]


def _material(context: Context, row: int) -> float:
    largest = float(context.peak_noise[row]) / context.eps
    own = abs(float(context.problem.value[row]))
    return max(thresholds.GENERATED_RTOL * own, thresholds.GENERATED_PEAK_RTOL * largest)


def _tied_directions(context: Context, column: int) -> Iterator[Array]:
    """The column alone, and together with all elements of the same value.

    A derivative that gives the whole gradient to each of several tied elements is right for each alone. Needed by
    `largest_to_every_tie`.
    """
    alone, point, xp = context.column(column), context.problem.point, context.xp
    yield alone
    same = point == point[column]
    if int(xp.count_nonzero(same)) > 1:
        yield xp.where(same, context.lengths, xp.zeros_like(alone))


def _points_around(context: Context) -> list[Array]:
    """Displacements: none, then random directions."""
    here = context.problem.zeros(context.problem.domain.size)
    return [here, *(context.joint_direction() for _ in range(POINTS_AROUND))]


def _around(context: Context, d: Array, step: float, points: Sequence[Array]) -> Iterator[tuple[Array, Array]]:
    """Forward differences along d of all outputs, and their values, at points eight steps away."""
    problem, rows = context.problem, context.problem.codomain.size
    for direction in points:
        displacement = 8.0 * step * direction
        start, end = problem.evaluate_at(displacement), problem.evaluate_at(displacement + step * d)
        yield (end.values - start.values)[:rows] / step, start.values[:rows]
