"""The error-bar policy in low precision: slopes along many directions, averaged.

One step of a format with two or three digits shows little. But its rounding errors are incoherent, and errors of a
formula are not. So every input moves alone along many random directions at a few wide steps h, and the residuals

    r(h) = { v·[f(x + h u) - f(x - h u)]/2 - (Jᵀv)·(h u) } / h

are compared with the predicted slopes. Half of the cotangents have the signs of the outputs' slopes along one of the
directions, so that all outputs add up. `residuals` has the tests: a factor that all have in common (a wrong constant),
a dense error (a missing term, a lost row), one column that explains them (a lost element), and whether one element of
typical size would show at all. The resolution is that of the common factor. A failure must show again along directions
that start one roundoff away, each at a point of its own: rounding inside the function differs there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise, zip_longest

from gradvet.core import thresholds
from gradvet.core.context import Context
from gradvet.core.decision import AGREES, Decision, Entry, Reason
from gradvet.core.extrapolation import Estimate
from gradvet.core.finite_differences import Cotangent, steps_for
from gradvet.core.gradient_match import JITTER_PAIRS, explained_factor, gradient_is_stable, value_roundoff
from gradvet.core.line_test import rows_changing_by_roundoff
from gradvet.core.modes import Mode
from gradvet.core.problem import Distribution
from gradvet.core.reference_errors import spacing_at_zero
from gradvet.core.refinement import hides_gradient, refined
from gradvet.core.residual_sampling import OutputProbes, ResidualSampling, input_direction, matched_count, roundoff_of
from gradvet.core.residuals import Residuals, Slopes
from gradvet.core.results import WORST_FIRST, Verdict
from gradvet.core.vectors import Array, dot, dots, finite_part, namespace, peak, rms

DIRECTIONS = 16
"""Number of directions of one input that are tried before each decision."""

MOST_DIRECTIONS, MAX_ALL_DIRECTIONS = 256, 768
"""Largest number of directions of one input, and of all inputs together."""

MAX_AVERAGED = 1 << 22
"""Number of inputs and outputs up to which averages are taken in single precision, for their memory."""

MAX_COTANGENTS = 16
"""Largest number of cotangents, with the signs of probes and with random ones together."""

STEPS = 5
"""Number of steps, the widest ones of a sweep."""

CALLS, SCALAR_CALLS = 600, 2400
"""Number of forward calls for one input with one set of step lengths, about; the latter for a single output."""

UNKNOWN = Estimate(math.nan, math.nan)
AVERAGED = (
    "roundoff hides single entries: the resolution is that of a common factor, and each entry was compared to a "
    "quarter of a typical one"
)
UNDECIDED = "{} could not be decided in this precision: reference= compares it with plain torch, by few calls"


def decide_by_averages(context: Context, mode: Mode) -> Iterator[Decision]:
    """A decision for each input, which moves alone; a failure must show along other directions too.

    Needed by `linear_kernel_in_float16` and `squash_every_second_lost_in_float16`.
    """
    for leaf, part in context.problem.domain.sections:
        if not leaf.coordinates.size:
            continue
        if context.out_of_budget:
            yield Decision(Verdict.INCONCLUSIVE, Reason.BUDGET)
            return
        sampling, decision = _decided(context, mode, part)
        if decision.verdict is Verdict.INCONCLUSIVE and sampling.finds_boundaries:
            # A large error is blurred by the way to a boundary: needed by `loss_without_its_target_in_bfloat16`.
            again = _decided(context, mode, part, is_plain=True)
            if again[1].verdict is Verdict.FAIL or abs(decision.error) <= context.asked_resolution:
                sampling, decision = again
        if decision.verdict is Verdict.INCONCLUSIVE and sampling.context.out_of_budget:
            context.record.note(UNDECIDED.format(leaf.name))
        is_seen = decision.verdict is not Verdict.PASS or sampling.finds_boundaries
        if not is_seen and hides_gradient(context, mode, input_direction(context, part)):
            decision = decision.weakened(Reason.NO_SIGNAL)
        if decision.verdict is Verdict.PASS:
            context.record.note(AVERAGED)
            context.record.compared(leaf.name, mode.name, context.precision, decision.bar)
        yield decision
        if decision.verdict is Verdict.FAIL:
            return


def decide_single_precision(context: Context, mode: Mode, undecided: Decision) -> Decision:
    """Averages where one direction decides nothing: they show the common factor, and single entries to a quarter.

    Needed by `test_loss_of_many_elements_in_float32_passes`: a hundredth of one entry is less than the roundoff of a
    mean over all of them. Not for functions of float64 numbers that round inside: they stay inconclusive.
    """
    is_double = context.problem.eps <= thresholds.DOUBLE_EPS
    if is_double or context.problem.domain.size + context.problem.codomain.size > MAX_AVERAGED:
        return undecided
    decisions = list(decide_by_averages(context, mode))
    if all(found.verdict is Verdict.PASS for found in decisions):
        return max(decisions, key=lambda found: found.bar, default=undecided)
    wrong = [found for found in decisions if found.verdict is Verdict.FAIL]
    if not wrong or not abs(wrong[0].error) > context.asked_resolution:
        return undecided
    # Needed by `test_right_kernel_of_one_dtype_does_not_fail`, whose zero rows vary within the usual steps.
    lengths = thresholds.NARROW_FACTOR * context.lengths
    narrow = context.rescaled(replace(context.scaling, lengths=lengths, is_narrow=True))
    again = any(found.verdict is Verdict.FAIL for found in decide_by_averages(narrow, mode))
    return wrong[0] if again else undecided


def _decided(context: Context, mode: Mode, part: slice, *, is_plain: bool = False) -> tuple[ResidualSampling, Decision]:
    """The samples of one input and the decision, with smaller steps where it is inconclusive."""
    # A single output in half precision needs more calls for each step.
    is_rounded = context.problem.codomain.size == 1 and context.eps > thresholds.HALF_PRECISION_EPS
    calls = SCALAR_CALLS if is_rounded and not is_plain else CALLS
    sampling = ResidualSampling(context.limited(calls), mode, part, is_plain=is_plain)
    decision = decide_input(sampling)
    if decision.verdict is Verdict.INCONCLUSIVE and (finer := refined(context)) is not None:
        sampling = replace(sampling, context=finer.limited(calls))
        decision = decide_input(sampling)
    is_wrong = decision.verdict is Verdict.FAIL
    # Other directions must fail too, each from a point of its own: without that `largest_five_in_float16`, which is
    # right, fails for one seed in twenty.
    if is_wrong and not (
        gradient_is_stable(context, part, decision.error)
        and decide_input(replace(sampling, is_shifted=True)).verdict is Verdict.FAIL
    ):
        decision = decision.weakened()
    return sampling, decision


def decide_input(sampling: ResidualSampling) -> Decision:
    """All elements of the input in outputs without a kink; without the zeros among them, the other outputs too.

    Zeros (padding, unused units) are where most kinks are: their derivative must lie between the one-sided slopes.
    """
    context, part = sampling.context, sampling.part
    probes = OutputProbes.along(context, part)
    if probes is None:
        return Decision(Verdict.INCONCLUSIVE, Reason.NOT_FINITE)
    xp = namespace(probes.slope)
    if not bool(xp.any(probes.bent)):
        return _decide_rows(sampling, probes, ~probes.bent)
    if bool(xp.all(context.problem.point[part] != 0.0)):
        # Roundoff inside the function looks like kinks: needed by `test_norm_before_an_activation_passes_in_bfloat16`.
        together = _decide_rows(sampling, probes, probes.bent | ~probes.bent, DIRECTIONS)
        if together.verdict is Verdict.PASS:
            return together
    decisions = [_decide_rows(sampling, probes, ~probes.bent)] if not bool(xp.all(probes.bent)) else []
    if decisions and decisions[0].verdict is Verdict.FAIL:
        return decisions[0]
    if not probes.lie_between(context, sampling.mode):
        decisions.append(Decision(Verdict.INCONCLUSIVE, Reason.KINK))
    without_zeros = replace(sampling, context=context.excluding(context.problem.point == 0.0))
    rest = OutputProbes.along(without_zeros.context, part)
    if rest is None:
        return Decision(Verdict.INCONCLUSIVE, Reason.NOT_FINITE)
    bent = _decide_rows(without_zeros, rest, probes.bent)
    if bent.verdict is not Verdict.PASS and bool(xp.any(rest.bent & probes.bent)):
        bent = bent.weakened(Reason.KINK)
    context.record.note("kinks at elements that are zero: the derivative must lie between the one-sided slopes")
    return min((*decisions, bent), key=lambda found: (WORST_FIRST.index(found.verdict), -found.bar))


def _decide_rows(sampling: ResidualSampling, probes: OutputProbes, rows: Array, most: int = 0) -> Decision:
    """These outputs, along as many directions as it takes for the error bars to be as small as asked for.

    The first directions are those of the probes, over all steps; the others over the steps that show the most.
    """
    context, cotangents = sampling.context, _cotangents(sampling.context, probes, rows)
    most = most or max(DIRECTIONS, min(MOST_DIRECTIONS, MAX_ALL_DIRECTIONS // len(context.problem.domain.leaves)))
    steps, known = steps_for(context.eps)[:STEPS], [found.u for found in probes.differences]
    residuals = sampling.residuals(cotangents, probes, known + sampling.directions(DIRECTIONS - len(known)), steps)
    if residuals is None:
        return Decision(Verdict.INCONCLUSIVE, Reason.NOT_FINITE)
    if not peak(residuals.predicted) and not any(map(peak, residuals.at)):
        if rows_changing_by_roundoff(context, input_direction(context, sampling.part), cotangents.v[-1]) is not None:
            return Decision(Verdict.INCONCLUSIVE, Reason.NO_SIGNAL)
        return AGREES
    best, steps = residuals.clearest(context.asked_resolution), steps[len(steps) - len(residuals.at) :]
    while True:
        decision = _decide_residuals(sampling, cotangents, probes, residuals, best)
        is_decided = decision.verdict is not Verdict.INCONCLUSIVE or decision.reason is Reason.KINK
        if is_decided or context.out_of_budget or not _needs_more(context, residuals, best, most):
            return decision
        few = [steps[number] for number in best.steps]
        more = sampling.residuals(cotangents, probes, sampling.directions(DIRECTIONS), few)
        if more is None:
            return decision
        best = best.joined(more.slopes(tuple(range(len(few)))))


def _decide_residuals(
    sampling: ResidualSampling, cotangents: Cotangent, probes: OutputProbes, residuals: Residuals, best: Slopes
) -> Decision:
    """What the residuals along the directions so far show.

    FAIL for a common factor, a dense error or a single wrong column, in this order. PASS if none of them is seen,
    the common factor is known as sharply as asked for, and a quarter of a typical column would have been seen.
    """
    context, part = sampling.context, sampling.part
    asked, eps = context.asked_resolution, context.problem.eps
    size, least = residuals.size, thresholds.HALF_FACTOR * explained_factor(eps)
    (column, _, worst, column_noise), (dense, explained) = best.worst_column(), residuals.dense()
    is_dense = dense > max(explained, least * size)
    scale, is_constant = _scale(residuals, best), residuals.factor()[1]
    kinked, bar = min(residuals.bend) / (size or 1.0), max(scale.error, explained_factor(eps))
    # Rounding on stairs may add up in all cotangents; those that belong to a direction leave such outputs out. Needed
    # by `test_right_loss_whose_values_do_not_change_does_not_fail_in_half_precision`.
    step = steps_for(context.eps)[STEPS // 2]
    stairs = [probes.stair_factor(cotangents.v[number], step, size) for number in (0, -1)]
    noise = thresholds.CLEAR * max(scale.error, residuals.kink_factor(), stairs[0])
    if is_constant and abs(scale.value) > max(least, noise):
        entry = _all_entries(context, part, size, scale)
        failure = Decision(Verdict.FAIL, Reason.DISAGREES, entry, scale.value, scale.error)
        return _confirmed(sampling, failure, cotangents, probes, best)
    if is_dense and dense > stairs[1] * size:
        is_column, scaled = worst > thresholds.CLEAR * column_noise, size or 1.0
        entry = _entry(context, best, part) if is_column else _all_entries(context, part, size)
        failure = Decision(Verdict.FAIL, Reason.DISAGREES, entry, dense / scaled, explained / scaled)
        return _confirmed(sampling, failure, cotangents, probes)
    if not size:
        return Decision(Verdict.INCONCLUSIVE, Reason.PRECISION, None, dense, explained)
    limit = max(column_noise, 1.0 / thresholds.PRECISION_DOUBT)
    is_doubtful = worst > thresholds.CLEAR * max(limit, kinked)
    if is_doubtful and _fails_alone(sampling, cotangents, part.start + column):
        entry = _entry(context, best, part)
        return Decision(Verdict.FAIL, Reason.DISAGREES, entry, worst, column_noise)
    # Single elements must be visible too.
    seen = max(abs(scale.value) + scale.error, eps)
    is_seen = worst <= limit <= thresholds.LOW_PRECISION_PART
    if abs(scale.value) <= bar and seen <= asked and is_seen and not is_dense:
        return Decision(Verdict.PASS, Reason.AGREES, None, scale.value, seen)
    return Decision(Verdict.INCONCLUSIVE, Reason.PRECISION, None, scale.value, bar)


def _confirmed(
    sampling: ResidualSampling,
    failure: Decision,
    cotangents: Cotangent,
    probes: OutputProbes,
    factor: Slopes | None = None,
) -> Decision:
    """The failure, unless the roundoff of the gradient explains its error, or the function has no derivative.

    The former is needed by `test_gradient_summed_in_half_precision_does_not_fail`, and next to the smallest numbers
    of float16, where all roundings are alike, by `test_product_with_the_smallest_numbers_does_not_fail`.

    `factor`: residuals that have a common factor; if it explains them, the slopes are linear in the direction.
    Twelve VJPs.
    """
    problem, part, length = sampling.context.problem, sampling.part, sampling.context.lengths[sampling.part]
    for number in JITTER_PAIRS * [0, -1]:
        tiny = 2.0 * thresholds.INTERVAL_WIDTH * value_roundoff(sampling.context)
        v, own = cotangents.v[number], length * cotangents.vjp[number, part]
        near = [length * finite_part(problem.vjp_at(sign * tiny, v))[part] for sign in (1.0, -1.0)]
        # Of three values that differ by roundoff alone; what changes in proportion drops out.
        change, square = (near[0] + near[1] - 2.0 * own) / math.sqrt(6.0), dot(own, own)
        noise = abs(dot(change, own)) if factor else math.sqrt(dot(change, change) * square)
        noise += spacing_at_zero(problem.eps) * math.sqrt(dot(length, length) * square)
        if thresholds.COHERENT * noise > abs(failure.error) * square:
            return failure.weakened()
    if factor and thresholds.COHERENT * rms(factor.rest) <= rms(factor.residuals):
        return failure
    directions = [found.u for found in probes.differences]
    return failure if _is_additive(sampling, cotangents, directions) else failure.weakened(Reason.KINK)


def _fails_alone(sampling: ResidualSampling, cotangents: Cotangent, column: int) -> bool:
    """Whether a quarter of its slope is wrong where this element moves alone, and no kink and no tie explains it.

    Several steps must show it. Needed by `largest_five_in_float16`, and by
    `test_single_error_is_seen_where_entries_differ_in_size`: the column may be smaller than a typical one.
    """
    context, point, clear = sampling.context, sampling.context.problem.point, 0
    if int(namespace(point).count_nonzero(point == point[column])) > 2:
        return False
    u = context.column(column)
    count, size = cotangents.v.shape[0], rms(dots(cotangents.vjp, u))
    for step in steps_for(context.eps)[:STEPS]:
        residual, _, bend, _ = sampling.moved(cotangents, u, step, sampling.start())
        kink = math.hypot(rms(bend[:count]), roundoff_of(context.value_noise, cotangents) / step)
        clear += rms(residual) > max(thresholds.CLEAR * kink, thresholds.LOW_PRECISION_PART * size)
    return clear >= thresholds.PLATEAU_STEPS


def _is_additive(sampling: ResidualSampling, cotangents: Cotangent, directions: Sequence[Array]) -> bool:
    """Whether the slope along a sum of directions is the sum of the slopes, as where the function has a derivative.

    Ties of three and more elements (a median, a sort) may have none though every line through the point is smooth.
    Needed by `test_order_statistic_of_ties_does_not_fail`.
    """
    wide, narrow = steps_for(sampling.context.eps)[1:3]
    together, apart = 0.0, 0.0
    for one, other in pairwise(directions):
        start, r = sampling.start(), []
        for u in (one, other, one + other):
            far, near = (sampling.moved(cotangents, u, step, start)[0] for step in (wide, narrow))
            r.append((4.0 * near - far) / 3.0)
        together, apart = together + rms(r[2]) ** 2, apart + rms(r[2] - r[0] - r[1]) ** 2
    return thresholds.COHERENT**2 * apart <= together


def _needs_more(context: Context, residuals: Residuals, best: Slopes, most: int) -> bool:
    """Whether more directions, up to a number in all, may lead to a decision.

    Error bars shrink with the square root of their number; what kinks explain does not.
    """
    count, size = best.predicted.shape[0], residuals.size
    if count >= most or not size:
        return False
    scale, (_, _, worst, noise), gain = _scale(residuals, best), best.worst_column(), math.sqrt(most / count)
    bar, noise, kinked = scale.error / gain, noise / gain, min(residuals.bend) / size
    may_pass = bar <= context.asked_resolution and noise <= thresholds.LOW_PRECISION_PART
    by_scale = abs(scale.value) > thresholds.CLEAR * max(bar, residuals.kink_factor())
    return may_pass or by_scale or worst > thresholds.CLEAR * max(noise, kinked)


def _scale(residuals: Residuals, best: Slopes) -> Estimate:
    """The common factor by all steps, or by all directions where that is sharper and agrees."""
    by_steps, by_directions = residuals.factor()[0], best.factor
    is_same = abs(by_steps.value - by_directions.value) <= by_steps.error
    return by_directions if is_same and by_directions.error < by_steps.error else by_steps


def _cotangents(context: Context, probes: OutputProbes, rows: Array) -> Cotangent:
    """Cotangents in which each of these outputs weighs about the same, half of them with the signs of the probes.

    All outputs add up along the direction of the probe, and their rounding errors do not.
    """
    xp, count = namespace(rows), min(MAX_COTANGENTS, int(namespace(rows).count_nonzero(rows)))
    weight = xp.where(rows, probes.weights, xp.zeros_like(probes.slope))
    signs = [found.odd / (xp.abs(found.odd) + probes.noise / found.step + 1e-300) for found in probes.differences]
    drawn = [context.problem.random(weight.shape[0], Distribution.NEAR_UNIT) for _ in range(count)]
    if weight.shape[0] == 1:
        vs = [abs(weight * drawn[0])]
    else:
        pairs = zip_longest(signs[: matched_count(count)], drawn)
        vs = [weight * one if sign is None else weight * sign * xp.abs(one) for sign, one in pairs]
    cotangents = [context.cotangent(v) for v in vs]
    return Cotangent(*(xp.stack([getattr(one, name) for one in cotangents]) for name in ("v", "vjp")))


def _entry(context: Context, slopes: Slopes, part: slice) -> Entry:
    """The worst column for the first cotangent."""
    column, error, worst, noise = slopes.worst_column()
    place, derivative = context.problem.domain.locate(part.start + column), float(slopes.vjps[0, column])
    bar = abs(error) * noise / worst if worst else 0.0
    return Entry(None, place, derivative, derivative + error, bar, reason=Reason.DISAGREES)


def _all_entries(context: Context, part: slice, size: float, error: Estimate | None = None) -> Entry:
    """All elements of an input together, by the root mean square of their slopes.

    Without a common relative error, what the slopes should be is NaN: only the size of the error is known.
    """
    place, found = replace(context.problem.domain.locate(part.start), label="", part=""), error or UNKNOWN
    return Entry(None, place, size, size * (1.0 + found.value), size * found.error, reason=Reason.DISAGREES)
