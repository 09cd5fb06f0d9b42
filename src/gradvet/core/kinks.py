"""Kinks at the point: elements at which the function has two one-sided slopes. They are found, named and tested.

Elements of one input with the same absolute value are at kinks of one kind (zeros of a ReLU, ones of a clamp), so they
are tested together, apart from the other elements. The derivative must agree with the slope in outputs without a kink,
and lie between the one-sided slopes in the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from gradvet.core import thresholds
from gradvet.core.confirmation import despite_ties, distances, error_nearby, slope_nearby
from gradvet.core.context import Context
from gradvet.core.decision import Decision, Entry, ErrorScale, Reason, decide
from gradvet.core.extrapolation import fit_slope
from gradvet.core.finite_differences import Cotangent, DirectionalDifference, middle_step, steps_for
from gradvet.core.line_test import bent_rows, enter_resolution, screen_agrees, typical_contributions
from gradvet.core.localise import bisect_sum, decide_entry, find_wrong_entry
from gradvet.core.modes import Mode
from gradvet.core.problem import Distribution
from gradvet.core.results import Verdict
from gradvet.core.vectors import Array, all_finite, dot, finite_part, namespace, nonzero_rms, norm, peak, window

TIED_DIRECTIONS = 2
"""Number of joint directions along which tied elements are tested."""

MAX_ENTRIES = 2
"""Number of elements at kinks that are tested one by one."""


def decide_kink(context: Context, mode: Mode, u: Array, cotangent: Cotangent) -> tuple[Array, Decision]:
    """Columns of the elements at the kink that bends v·f along u most, and the decision about them."""
    columns, entry = find_kinks(context, mode, u, cotangent)
    if entry is None:
        return columns, Decision(Verdict.PASS, Reason.KINK)
    failure = Decision(Verdict.FAIL, entry.reason, entry, entry.derivative - entry.numerical, entry.error)
    return columns, despite_ties(context, mode, failure)


def is_beside_the_point(context: Context, u: Array, cotangent: Cotangent) -> bool:
    """Whether a kink of v·f along u is beside the point: over the smallest step that would show it, there is none.

    The norm of a small difference looks like a kink over steps that are wider than the difference. Without this its
    derivative is only compared with one-sided slopes. In double precision; eight evaluations. Needed by
    `distance_of_far_points_halved`.
    """
    if not context.is_double or context.is_generated:
        return False

    def bend(step: float) -> float:
        # Without its part of h, which is curvature: needed by `ramp_of_a_clamp_too_steep`.
        difference = DirectionalDifference.along(context.problem, u, step)
        return abs(dot(cotangent.v, 2.0 * difference.even - difference.at_twice_the_step.even))

    step, point = middle_step(context.eps), finite_part(context.problem.point)
    roundoff = norm(cotangent.v, context.value_noise) + context.eps * norm(cotangent.vjp, point)
    least = thresholds.NEGLIGIBLE_PART * bend(step)
    smallest = max(thresholds.ROUNDOFFS * roundoff / (least or math.inf), steps_for(context.eps)[-1])
    return smallest < step and bend(smallest) <= least


def enter_kinks(
    context: Context,
    mode: Mode,
    cotangent: Cotangent,
    difference: DirectionalDifference,
    rest: Array,
    bar: float,
    is_seen_nearby: bool,
) -> None:
    """Enter the comparison at a kink in the ledger, for inputs that have no element elsewhere.

    For other inputs, the comparison of their other elements is entered. A derivative of zero is compared with the
    one-sided slopes. Without this, inputs with all elements at kinks count as not compared. Needed by `norm_at_zero`
    and `test_single_element_at_a_kink_passes`, which are inconclusive without it.
    """
    xp = context.xp
    one_sided = norm(cotangent.v, xp.abs(difference.odd) + xp.abs(difference.even))
    contributions = typical_contributions(context.problem, cotangent.vjp, difference.u)
    kept = {leaf.name for leaf, part in context.problem.domain.sections if peak(rest[part])}
    alone = {name: size or one_sided for name, size in contributions.items() if name not in kept}
    enter_resolution(context, mode, alone, bar)
    for name in alone if is_seen_nearby else ():
        context.record.compared(name, mode.name, context.precision, context.options.resolution)


def find_kinks(context: Context, mode: Mode, u: Array, cotangent: Cotangent) -> tuple[Array, Entry | None]:
    """Columns of the elements at the kink that bends v·f along u most, and a wrong entry among them, if there is one.

    Calls the function and its derivative.
    """
    problem, xp = context.problem, namespace(u)
    column = _most_bent_column(context, u, cotangent)
    leaf = problem.domain.slices[problem.domain.leaf_of(column)]
    tied = (xp.abs(problem.point) == xp.abs(problem.point[column])) & (u != 0.0)
    tied[column] = True
    columns = window(tied, leaf)
    count = int(xp.count_nonzero(columns))
    others = f" and {count - 1} other element{'' if count == 2 else 's'} of the same size" if count > 1 else ""
    context.record.note(
        f"kink at {problem.domain.locate(column)}{others}: the derivative must lie between the one-sided slopes"
    )
    row = _most_bent_row(context, cotangent, column)
    wrong = _wrong_alone(context, mode, cotangent, _first_columns(columns, column), row)
    if wrong is None and int(xp.count_nonzero(tied)) > 1:
        wrong = _ties_violate_bounds(context, mode, tied, (row, column))
    if wrong is None and count > 1:
        wrong = _wrong_in_smooth_rows(context, mode, columns)
    return columns, wrong


def _wrong_alone(
    context: Context, mode: Mode, cotangent: Cotangent, columns: Sequence[int], first_row: int
) -> Entry | None:
    """The first of these columns that is wrong alone, in the output that it bends most; that of the first is known."""
    for number, column in enumerate(columns):
        row = _most_bent_row(context, cotangent, column) if number else first_row
        entry = decide_entry(context, mode, row, column)
        if entry.verdict is Verdict.FAIL:
            return entry
    return None


def is_right_nearby(context: Context, mode: Mode, columns: Array) -> bool:
    """Whether the derivative by these columns is right around the point, as sharply as asked for, on either side.

    At the kink it only has to lie between the one-sided slopes, so that a wrong one may pass there. In float32 only the
    largest distance is wider than a step: two points there are tried. Calls the function and its derivative. Needed by
    `test_error_that_kinks_hide_does_not_pass`.
    """
    if context.is_generated:
        return True
    xp = context.xp
    for distance in distances() if context.is_double else 2 * distances()[-1:]:
        displacement = distance * context.joint_direction()
        seen = [_is_right_at(context, mode, side, columns, distance) for side in (displacement, -displacement)]
        if None in seen:  # outside of the domain
            seen = [_is_right_at(context, mode, xp.abs(displacement), columns, distance)]
        if all(seen):
            return True
    return False


def _is_right_at(context: Context, mode: Mode, displacement: Array, columns: Array, distance: float) -> bool | None:
    """Whether the derivative by these columns is right at a displaced point; None if an output is not finite there."""
    problem, xp = context.problem, context.xp
    # Far smaller than the distance of tied elements that were moved apart.
    small = thresholds.CONFIRM_NEAR * math.sqrt(thresholds.CONFIRM_FAR / distance)
    step = small if context.is_double else context.first.step
    u = xp.where(columns, context.joint_direction(), xp.zeros_like(context.lengths))
    slope, _ = slope_nearby(context, displacement, u, step)
    if not all_finite(xp.where(xp.isfinite(context.value), slope, xp.zeros_like(slope))):
        return None
    size, v = xp.abs(finite_part(slope)), problem.random(slope.shape[0], Distribution.NEAR_UNIT)
    v = xp.where(size > 0.0, v / (size + (thresholds.GENERATED_PEAK_RTOL * peak(size) or 1.0)), xp.zeros_like(v))
    products = xp.zeros_like(u)
    if context.has_reverse:
        # Signs with which the products add up: in others a common factor may cancel. Needed by
        # `test_factor_of_biases_of_zero_behind_padded_rows_never_passes`.
        gradient = finite_part(problem.vjp_at(displacement, v))
        u = xp.where(gradient < 0.0, -abs(u), abs(u))
        products = gradient * u
    typical = nonzero_rms(products) or norm(v, size)
    if not typical:
        return True
    found = error_nearby(context, mode, displacement, u, v, step)
    return abs(found.value) + found.error <= context.options.resolution * typical


def _wrong_in_smooth_rows(context: Context, mode: Mode, columns: Array) -> Entry | None:
    """A wrong entry in outputs that have no kink along these columns.

    The columns were chosen because their elements are as large as the one at the kink; their effect on other outputs
    may be smooth, and must then be compared. Needed by `padding_lost_through_the_smooth_branch`.
    """
    xp = namespace(columns)
    difference = context.difference(xp.where(columns, context.joint_direction(), xp.zeros_like(context.lengths)))
    bent = bent_rows(context, difference)
    slope = context.slope_of(difference)
    smooth = xp.isfinite(slope) if bent is None else xp.isfinite(slope) & ~bent
    if not bool(xp.any(smooth)):
        return None
    weights = context.cotangents_for(xp.where(smooth, slope, xp.zeros_like(slope)), 1)[0].v
    cotangent = context.cotangent(xp.where(smooth, weights, xp.zeros_like(weights)))
    if not context.is_double or screen_agrees(context, mode, difference, [cotangent]):
        return None
    entry = find_wrong_entry(context, mode, difference.u, cotangent.v)
    return entry if entry is not None and entry.verdict is Verdict.FAIL else None


def _ties_violate_bounds(context: Context, mode: Mode, columns: Array, place: tuple[int, int]) -> Entry | None:
    """A wrong derivative of tied elements that move together, though each may be right alone.

    This happens where every tied element gets the whole gradient. The bounds hold only where all kinks of the output
    bend in the same direction. Needed by `largest_to_every_tie`, `larger_to_both` and `ascending_by_value`.
    """
    problem, xp = context.problem, namespace(columns)
    row, column = place
    cotangent = context.row(row)
    fits = []
    for number in range(TIED_DIRECTIONS):
        u = xp.where(columns, context.joint_direction(), xp.zeros_like(context.lengths))
        u = u if number else xp.abs(u)
        slope = float(mode.slope(context, cotangent, u))
        fit = fit_slope(context.sweep_steps(u, [cotangent], partial(mode.change, context), few=True)[0])
        decision = decide(fit, ErrorScale(abs(slope), abs(slope), context.eps), math.inf)
        fits.append((decision, fit, slope))
    bends = [fit.kink.value for _, fit, _ in fits]
    for other in _first_columns(columns, column):
        bends.append(float(_bend_of_column(context, other)[row]))
    if min(bends) < 0.0 < max(bends):
        return None
    for decision, fit, slope in fits:
        if decision.reason is Reason.OUTSIDE:
            output, source = problem.codomain.locate(row), problem.domain.locate(column)
            numerical, error = slope + fit.error.value, fit.error.error
            return Entry(output, source, slope, numerical, error, Verdict.FAIL, Reason.OUTSIDE, row, column)
    return None


def _bend_of_column(context: Context, column: int) -> Array:
    return context.wide_difference(context.column(column)).even


def _most_bent_column(context: Context, u: Array, cotangent: Cotangent) -> int:
    """The element that adds most to the bend of v·f along u."""

    def bend(start: int, stop: int) -> float:
        return dot(cotangent.v, context.wide_difference(window(u, slice(start, stop))).even)

    return bisect_sum(bend, u.shape[0], bend(0, u.shape[0]))


def _most_bent_row(context: Context, cotangent: Cotangent, column: int) -> int:
    xp = namespace(cotangent.v)
    return int(xp.argmax(finite_part(xp.abs(cotangent.v * _bend_of_column(context, column)))))


def _first_columns(columns: Array, first: int) -> list[int]:
    """The column found first, then others of the same kind, up to the limit."""
    places = namespace(columns).nonzero(columns)[0]
    others = [int(place) for place in places[: MAX_ENTRIES + 1] if int(place) != first]
    return [first, *others[: MAX_ENTRIES - 1]]
