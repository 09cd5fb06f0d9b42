"""The error-bar policy in half precision: slopes along many directions, averaged.

One step of a format with two or three digits shows little. But its rounding errors are incoherent, and errors of a
formula are not. So every input moves alone along many random directions at a few wide steps h, and the residuals

    r(h) = { v·[f(x + h u) - f(x - h u)]/2 - (Jᵀv)·(h u) } / h

are compared with the predicted slopes. The tests are: a factor that all have in common (a wrong constant), one column
that explains them (a lost element), and whether one element of typical size would show at all. The resolution is that
of the common factor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gradvet.core import thresholds
from gradvet.core.context import Context
from gradvet.core.decision import Decision, Entry, Reason
from gradvet.core.extrapolation import Estimate, last_consistent
from gradvet.core.finite_differences import steps_for
from gradvet.core.gradient_match import explained_factor, gradient_is_stable
from gradvet.core.line_test import rows_changing_by_roundoff
from gradvet.core.modes import Mode
from gradvet.core.output_probes import PROBES, OutputProbes, input_direction
from gradvet.core.problem import Distribution
from gradvet.core.projections import Cotangent
from gradvet.core.refinement import by_derivative, refined
from gradvet.core.results import WORST_FIRST, Verdict
from gradvet.core.spaces import Array
from gradvet.core.vectors import all_finite, dot, finite_part, namespace, nonzero_rms, norm, peak, rms

DIRECTIONS, MOST_DIRECTIONS, MAX_ALL_DIRECTIONS, RANDOM_COTANGENTS = 16, 64, 192, 16
"""Number of directions of one input, at a time and at most, and of all inputs together; and of cotangents."""

STEPS = 5
"""Number of steps, the widest ones of a sweep."""

CALLS = 600
"""Number of forward calls for one input with one set of step lengths, about."""

SPENT = "{} could not be decided by {} calls in half precision: reference= compares it with plain torch by few"


def decide_by_averages(context: Context, mode: Mode) -> Iterator[Decision]:
    """A decision for each input, which moves alone; a failure must show along other directions too.

    Needed by `linear_kernel_in_float16` and `squash_every_second_lost_in_float16`.
    """
    for number, leaf in enumerate(context.problem.domain.leaves):
        if not leaf.coordinates.size:
            continue
        if context.out_of_budget:
            yield Decision(Verdict.INCONCLUSIVE, Reason.BUDGET)
            return
        part = context.problem.domain.slice(number)
        used = context.limited(CALLS)
        decision = _decide_input(used, mode, part)
        if decision.verdict is Verdict.INCONCLUSIVE and (finer := refined(context)) is not None:
            used = finer.limited(CALLS)
            decision = _decide_input(used, mode, part)
        if decision.verdict is Verdict.FAIL and not (
            gradient_is_stable(context, part) and _fails_again(used, mode, part)
        ):
            decision = decision.weakened()
        if decision.verdict is Verdict.INCONCLUSIVE and used.out_of_budget:
            context.record.note(SPENT.format(leaf.name, CALLS))
        if decision.verdict is Verdict.PASS:
            context.record.ledger.compared(leaf.name, mode.name, context.precision, decision.bar)
        yield decision
        if decision.verdict is Verdict.FAIL:
            return


def _fails_again(context: Context, mode: Mode, part: slice) -> bool:
    """Whether other directions fail too, also over steps at which a right derivative would not exceed the outputs.

    The latter is needed by `test_right_kernel_of_one_dtype_does_not_fail`.
    """
    scaled = context, by_derivative(context)
    return all(_decide_input(one, mode, part).verdict is Verdict.FAIL for one in scaled if one is not None)


@dataclass(frozen=True, eq=False)
class _Residuals:
    """Residuals of all pairs of a direction and a cotangent at every step, with what the derivative predicts."""

    at: Sequence[Array]
    """For each step, from the widest one on: directions × cotangents."""
    bend: Sequence[float]
    """For each step, root mean square of v·[f(x + h u) + f(x - h u) - 2 f(x)]/2h, what kinks explain, and roundoff."""
    predicted: Array
    """Directions × cotangents: the slopes by the derivative."""
    directions: Array
    vjps: Array

    def joined(self, other: _Residuals) -> _Residuals:
        """The residuals along the directions of both, at the steps that both have."""
        xp, count = namespace(self.predicted), min(len(self.at), len(other.at))
        at = [xp.concat(pair) for pair in zip(self.at[-count:], other.at[-count:], strict=True)]
        predicted = xp.concat([self.predicted, other.predicted])
        directions = xp.concat([self.directions, other.directions])
        pairs = zip(self.bend[-count:], other.bend[-count:], strict=True)
        bend = [math.hypot(*pair) / math.sqrt(2.0) for pair in pairs]
        return _Residuals(at, bend, predicted, directions, self.vjps)

    @property
    def estimates(self) -> list[Array]:
        """The residuals at each step, and those without their h² term."""
        pairs = zip(self.at, self.at[1:], strict=False)
        return [*self.at, *((4.0 * narrow - wide) / 3.0 for wide, narrow in pairs)]


def _decide_input(context: Context, mode: Mode, part: slice) -> Decision:
    """All elements of the input in outputs without a kink; without the zeros among them, the other outputs too.

    Zeros (padding, unused units) are where most kinks are: their derivative must lie between the one-sided slopes.
    """
    probes = OutputProbes.along(context, part)
    if probes is None:
        return Decision(Verdict.INCONCLUSIVE, Reason.NOT_FINITE)
    xp = namespace(probes.slope)
    if not bool(xp.any(probes.bent)):
        return _decide_rows(context, mode, part, probes, ~probes.bent)
    if bool(xp.all(context.problem.point[part] != 0.0)):  # roundoff inside the function looks like kinks
        together = _decide_rows(context, mode, part, probes, probes.bent | ~probes.bent, DIRECTIONS)
        if together.verdict is Verdict.PASS:
            return together
    decisions = [_decide_rows(context, mode, part, probes, ~probes.bent)] if not bool(xp.all(probes.bent)) else []
    if decisions and decisions[0].verdict is Verdict.FAIL:
        return decisions[0]
    if not probes.lie_between(context, mode):
        decisions.append(Decision(Verdict.INCONCLUSIVE, Reason.KINK))
    without_zeros = context.excluding(context.problem.point == 0.0)
    rest = OutputProbes.along(without_zeros, part)
    if rest is None:
        return Decision(Verdict.INCONCLUSIVE, Reason.NOT_FINITE)
    bent = _decide_rows(without_zeros, mode, part, rest, probes.bent)
    if bent.verdict is not Verdict.PASS and bool(xp.any(rest.bent & probes.bent)):
        bent = bent.weakened(Reason.KINK)
    context.record.note("kinks at elements that are zero: the derivative must lie between the one-sided slopes")
    return min((*decisions, bent), key=lambda found: (WORST_FIRST.index(found.verdict), -found.bar))


def _decide_rows(
    context: Context, mode: Mode, part: slice, probes: OutputProbes, rows: Array, most: int = 0
) -> Decision:
    """These outputs, along as many directions as it takes for the error bars to be as small as asked for."""
    cotangents = _cotangents(context, probes, rows)
    most = most or max(DIRECTIONS, min(MOST_DIRECTIONS, MAX_ALL_DIRECTIONS // len(context.problem.domain.leaves)))
    residuals: _Residuals | None = None
    while True:
        more = _residuals(context, mode, part, cotangents, probes)
        if more is None:
            return Decision(Verdict.INCONCLUSIVE, Reason.NOT_FINITE)
        residuals = more if residuals is None else residuals.joined(more)
        if not peak(residuals.predicted) and not any(peak(found) for found in residuals.at):
            if rows_changing_by_roundoff(context, input_direction(context, part), cotangents[0].v) is not None:
                return Decision(Verdict.INCONCLUSIVE, Reason.NO_SIGNAL)
            return Decision(Verdict.PASS, Reason.AGREES)
        decision = _decide(context, mode, cotangents, residuals, part)
        is_decided = decision.verdict is not Verdict.INCONCLUSIVE
        if is_decided or context.out_of_budget or not _needs_more(context, residuals, most):
            return decision


def _needs_more(context: Context, residuals: _Residuals, most: int) -> bool:
    """Whether more directions, up to a number in all, may lead to a decision.

    Error bars shrink with the square root of their number; what kinks explain does not.
    """
    count, size = residuals.predicted.shape[0], rms(residuals.predicted)
    if count >= most or not size:
        return bool(count < most)
    scale, columns, gain = _common_factor(residuals)[0], _columns(residuals), math.sqrt(most / count)
    bar, noise, kinked = scale.error / gain, columns.noise / gain, min(residuals.bend) / size
    may_pass = bar <= context.asked_resolution and noise <= thresholds.LOW_PRECISION_PART
    by_scale = abs(scale.value) > thresholds.CLEAR * max(bar, kinked)
    return may_pass or by_scale or columns.worst > thresholds.CLEAR * max(noise, kinked)


def _decide(
    context: Context, mode: Mode, cotangents: Sequence[Cotangent], residuals: _Residuals, part: slice
) -> Decision:
    asked, eps = context.asked_resolution, context.problem.eps
    material, size = min(thresholds.ROUNDOFFS * eps, thresholds.MATERIAL_MAX), rms(residuals.predicted)
    columns, dense = _columns(residuals), _dense_error(residuals)
    entry = _entry(context, residuals, columns, part) if size else None
    failure = Decision(Verdict.FAIL, Reason.DISAGREES, entry, dense, min(residuals.bend))
    if dense > material * size:
        return failure if _is_additive(context, mode, cotangents, part) else failure.weakened(Reason.KINK)
    if not size:
        return failure.weakened()
    scale, is_constant = _common_factor(residuals)
    kinked, bar = min(residuals.bend) / size, max(scale.error, explained_factor(eps))
    if is_constant and abs(scale.value) > max(thresholds.CLEAR * max(scale.error, kinked), material):
        failure = Decision(Verdict.FAIL, Reason.DISAGREES, entry, scale.value, scale.error)
        return failure if _is_additive(context, mode, cotangents, part) else failure.weakened(Reason.KINK)
    limit = max(columns.noise, thresholds.PRECISION_DOUBT_PART)
    is_wrong = columns.worst > max(thresholds.CLEAR * max(limit, kinked), thresholds.LOW_PRECISION_PART)
    if is_wrong and _fails_alone(context, mode, cotangents, part.start + columns.index):
        return Decision(Verdict.FAIL, Reason.DISAGREES, entry, columns.worst, columns.noise)
    # Single elements must be visible too.
    seen = abs(scale.value) + bar
    if abs(scale.value) <= bar and seen <= asked and columns.worst <= limit <= thresholds.LOW_PRECISION_PART:
        return Decision(Verdict.PASS, Reason.AGREES, None, scale.value, seen)
    return Decision(Verdict.INCONCLUSIVE, Reason.PRECISION, None, scale.value, bar)


def _dense_error(residuals: _Residuals) -> float:
    """Size of residuals that are the same at the clearest three steps and too large for kinks; 0 if there are none."""
    order = sorted(range(len(residuals.at)), key=lambda number: residuals.bend[number])
    clearest = order[: thresholds.PLATEAU_STEPS]
    for number in clearest:
        gap = rms(residuals.at[number] - residuals.at[clearest[0]])
        if not rms(residuals.at[number]) > thresholds.COHERENT * max(residuals.bend[number], gap):
            return 0.0
    return rms(residuals.at[clearest[0]])


def _moved(context: Context, mode: Mode, cotangents: Sequence[Cotangent], u: Array, step: float) -> tuple[Array, Array]:
    """Residual and change of slope along u for each cotangent. Two evaluations."""
    problem, rows = context.problem, context.problem.codomain.size
    plus, minus = problem.evaluate_at(step * u), problem.evaluate_at(-step * u)
    odd = (plus.values[:rows] - minus.values[:rows]) / 2.0
    even = (plus.values[:rows] + minus.values[:rows]) / 2.0 - problem.value[:rows]
    moved = (plus.displacement - minus.displacement) / 2.0
    found = [
        ((dot(p.v, odd) - p.predicted(moved, step)) / step, dot(p.v, even) / step)
        for p in mode.predictions(context, u, cotangents)
    ]
    table = namespace(odd).asarray(found, dtype=odd.dtype, device=odd.device)
    return table[:, 0], table[:, 1]


def _roundoff(noise: Array, cotangents: Sequence[Cotangent]) -> float:
    """Roundoff of v·f, root mean square, by that of the outputs."""
    noises = [norm(cotangent.v, finite_part(noise)) for cotangent in cotangents]
    return thresholds.NOISE_FLOOR * math.hypot(*noises) / math.sqrt(len(noises))


def _is_additive(context: Context, mode: Mode, cotangents: Sequence[Cotangent], part: slice) -> bool:
    """Whether the slope along a sum of directions is the sum of the slopes, as where the function has a derivative.

    Ties of three and more elements (a median, a sort) may have none though every line through the point is smooth, so
    inputs of few different values are not trusted. Needed by
    `test_largest_numbers_of_a_kernel_do_not_fail_in_float16`.
    """
    own = context.problem.point[part]
    if 3 * int(namespace(own).unique_values(own).shape[0]) <= min(own.shape[0], thresholds.FEW_VALUES):
        return False
    step = steps_for(context.eps)[STEPS // 2]
    together, apart = 0.0, 0.0
    for _ in range(PROBES):
        one, other = input_direction(context, part), input_direction(context, part)
        r = [_moved(context, mode, cotangents, u, step)[0] for u in (one, other, one + other)]
        together, apart = together + rms(r[2]) ** 2, apart + rms(r[2] - r[0] - r[1]) ** 2
    return thresholds.COHERENT**2 * apart <= together


def _fails_alone(context: Context, mode: Mode, cotangents: Sequence[Cotangent], column: int) -> bool:
    """Whether the error shows where this element moves alone, at several steps, and no kink and no tie explains it.

    Needed by `largest_five_in_float16`.
    """
    point, clear = context.problem.point, 0
    if int(namespace(point).count_nonzero(point == point[column])) > 2:
        return False
    u = context.column(column)
    size = math.sqrt(sum(dot(cotangent.vjp, u) ** 2 for cotangent in cotangents) / len(cotangents))
    for step in steps_for(context.eps)[:STEPS]:
        error, kink = map(rms, _moved(context, mode, cotangents, u, step))
        kink = math.hypot(kink, _roundoff(context.value_noise, cotangents) / step)
        clear += error > max(thresholds.CLEAR * kink, thresholds.LOW_PRECISION_PART * size)
    return clear >= thresholds.PLATEAU_STEPS


def _cotangents(context: Context, probes: OutputProbes, rows: Array) -> list[Cotangent]:
    """Random cotangents in which each of these outputs weighs about the same."""
    xp = namespace(rows)
    weight = xp.where(rows, probes.weights, xp.zeros_like(probes.slope))
    return [
        context.cotangent(weight * context.problem.random(weight.shape[0], Distribution.NEAR_UNIT))
        for _ in range(min(RANDOM_COTANGENTS, int(xp.count_nonzero(rows))))
    ]


def _residuals(
    context: Context, mode: Mode, part: slice, cotangents: Sequence[Cotangent], probes: OutputProbes
) -> _Residuals | None:
    """Two evaluations for each step of each direction; None where fewer than two steps are finite."""
    problem, steps = context.problem, steps_for(context.eps)[:STEPS]
    found: list[list[Array]] = [[] for _ in steps]
    # Values that are equal at all steps are rounded, too: see `test_saturated_output_does_not_fail`.
    roundoff = _roundoff(probes.noise, cotangents) ** 2
    # On stairs the rounding errors of all outputs may add up.
    roundoff += sum(dot(abs(cotangent.v), probes.stairs) ** 2 for cotangent in cotangents) / len(cotangents)
    evens: list[list[Array]] = [[] for _ in steps]
    directions, predicted = [], []
    for _ in range(DIRECTIONS):
        u = input_direction(context, part)
        directions.append(u)
        predicted.append([p.predicted(u, 1.0) for p in mode.predictions(context, u, cotangents)])
        for number, step in enumerate(steps):
            r, even = _moved(context, mode, cotangents, u, step)
            found[number].append(r)
            evens[number].append(even)
    xp = namespace(problem.value)
    bends = _bends([xp.stack(some) for some in evens], [math.sqrt(roundoff) / step for step in steps])
    at = [xp.stack(some) for some in found]
    first = max((number + 1 for number, some in enumerate(at) if not all_finite(some)), default=0)
    if len(at) - first < thresholds.PLATEAU_STEPS:
        return None
    vjps = xp.stack([finite_part(cotangent.vjp)[part] for cotangent in cotangents])
    table = xp.asarray(predicted, dtype=problem.value.dtype, device=problem.value.device)
    return _Residuals(at[first:], bends[first:], table, xp.stack([u[part] for u in directions]), vjps)


def _bends(evens: Sequence[Array], roundoff: Sequence[float]) -> list[float]:
    """For each step, what kinks and roundoff explain: the even part, or what is left of it without curvature.

    The latter is needed by `loss_without_its_target_in_bfloat16`: over wide steps a loss is curved, over narrow ones
    rounded. Curvature is proportional to the step, and a kink is the same at this step and at the next one, half as
    wide.
    """
    bends = [math.hypot(rms(even), noise) for even, noise in zip(evens, roundoff, strict=True)]
    pairs = zip(evens, evens[1:], roundoff, roundoff[1:], strict=False)
    straight = [math.hypot(rms(2.0 * half - whole), 2.0 * finer, noise) for whole, half, noise, finer in pairs]
    return [*map(min, bends, straight), bends[-1]]


def _common_factor(residuals: _Residuals) -> tuple[Estimate, bool]:
    """The relative error that all residuals share, and whether several steps show the same one."""
    xp, predicted = namespace(residuals.predicted), residuals.predicted
    total = float(xp.sum(predicted * predicted))
    found = []
    for r in residuals.estimates:
        value = float(xp.sum(r * predicted)) / total
        # The residuals of one direction are not independent of each other.
        left = xp.sum((r - value * predicted) * predicted, axis=1)
        found.append(Estimate(value, thresholds.PRECISION_SCALE_WIDTH * math.sqrt(float(left @ left)) / total))
    plain, extrapolated = found[: len(residuals.at)], found[len(residuals.at) :]
    best = min(map(last_consistent, (plain, extrapolated)), key=lambda estimate: estimate.error)
    same = [abs(one.value - best.value) <= thresholds.PLATEAU_RTOL * abs(best.value) + one.error for one in plain]
    clear = [abs(one.value) > one.error for one in plain]
    return best, sum(a and b for a, b in zip(same, clear, strict=True)) >= thresholds.PLATEAU_STEPS


@dataclass(frozen=True, eq=False)
class _Columns:
    """Errors of the gradient in single columns, as parts of a typical column, or of their own where that is larger."""

    worst: float
    index: int
    error: float
    """Error of the worst column for the first cotangent."""
    noise: float
    """Error of a typical column that noise explains."""


def _columns(residuals: _Residuals) -> _Columns:
    """The column that explains the residuals best, at the step with the smallest residuals."""
    xp = namespace(residuals.predicted)
    r = min(residuals.estimates, key=lambda found: float(xp.sum(found * found)))
    u, w = residuals.directions, residuals.vjps
    length = xp.sqrt(xp.mean(u * u, axis=0))
    safe = xp.where(length > 0.0, length, xp.ones_like(length))
    # Least squares along each column, for each cotangent: Σ r u / Σ u².
    error = (xp.matrix_transpose(r) @ u) / (u.shape[0] * safe * safe)
    size, found = (xp.sqrt(xp.mean(some * some, axis=0)) * length for some in (w, error))
    typical = nonzero_rms(size)
    if not typical:
        return _Columns(0.0, 0, 0.0, math.inf)
    part = found / xp.clip(size, typical)
    index = int(xp.argmax(part))
    width = 1.0 + (thresholds.PRECISION_SCALE_WIDTH - 1.0) / math.sqrt(w.shape[0])
    noise = width * rms(r) / math.sqrt(u.shape[0])
    return _Columns(float(part[index]), index, float(error[0, index]), noise / typical)


def _entry(context: Context, residuals: _Residuals, columns: _Columns, part: slice) -> Entry:
    """The worst column for the first cotangent."""
    place = context.problem.domain.locate(part.start + columns.index)
    derivative = float(residuals.vjps[0, columns.index])
    bar = abs(columns.error) * columns.noise / columns.worst if columns.worst else 0.0
    return Entry(None, place, derivative, derivative + columns.error, bar, reason=Reason.DISAGREES)
