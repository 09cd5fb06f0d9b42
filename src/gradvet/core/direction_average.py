"""The error-bar policy in half precision: slopes along many directions, averaged.

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
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest

from gradvet.core import thresholds
from gradvet.core.context import Context
from gradvet.core.decision import Decision, Entry, Reason
from gradvet.core.extrapolation import Estimate
from gradvet.core.finite_differences import steps_for
from gradvet.core.gradient_match import explained_factor, gradient_is_stable, value_roundoff
from gradvet.core.line_test import rows_changing_by_roundoff
from gradvet.core.modes import Mode
from gradvet.core.output_probes import PROBES, OutputProbes, input_direction
from gradvet.core.problem import Distribution, Evaluation
from gradvet.core.projections import Cotangent
from gradvet.core.refinement import by_derivative, refined
from gradvet.core.residuals import Columns, Residuals, Slopes, columns_of
from gradvet.core.results import WORST_FIRST, Verdict
from gradvet.core.spaces import Array
from gradvet.core.vectors import all_finite, dot, finite_part, namespace, norm, peak, rms

DIRECTIONS, MOST_DIRECTIONS, MAX_ALL_DIRECTIONS, RANDOM_COTANGENTS = 16, 256, 768, 16
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
        test = _InputTest(context.limited(CALLS), mode, part)
        decision = test.decide()
        if decision.verdict is Verdict.INCONCLUSIVE and (finer := refined(context)) is not None:
            test = _InputTest(finer.limited(CALLS), mode, part)
            decision = test.decide()
        if decision.verdict is Verdict.FAIL and not (
            gradient_is_stable(context, part, decision.error) and test.fails_again()
        ):
            decision = decision.weakened()
        if decision.verdict is Verdict.INCONCLUSIVE and test.context.out_of_budget:
            context.record.note(SPENT.format(leaf.name, CALLS))
        if decision.verdict is Verdict.PASS:
            context.record.ledger.compared(leaf.name, mode.name, context.precision, decision.bar)
        yield decision
        if decision.verdict is Verdict.FAIL:
            return


@dataclass(frozen=True, eq=False)
class _InputTest:
    """One input, which moves alone."""

    context: Context
    mode: Mode
    part: slice
    is_shifted: bool = False
    """Whether every direction starts at a point of its own, one roundoff away: rounding inside differs there."""

    def fails_again(self) -> bool:
        """Whether other directions fail too, from other points, and over steps at which no output exceeds its size.

        The latter is needed by `test_right_kernel_of_one_dtype_does_not_fail`.
        """
        contexts = self.context, by_derivative(self.context)
        again = [replace(self, context=one, is_shifted=True) for one in contexts if one is not None]
        return all(test.decide().verdict is Verdict.FAIL for test in again)

    def decide(self) -> Decision:
        """All elements of the input in outputs without a kink; without the zeros among them, the other outputs too.

        Zeros (padding, unused units) are where most kinks are: their derivative must lie between the one-sided slopes.
        """
        context, part = self.context, self.part
        probes = OutputProbes.along(context, part)
        if probes is None:
            return Decision(Verdict.INCONCLUSIVE, Reason.NOT_FINITE)
        xp = namespace(probes.slope)
        if not bool(xp.any(probes.bent)):
            return self._decide_rows(probes, ~probes.bent)
        if bool(xp.all(context.problem.point[part] != 0.0)):  # roundoff inside the function looks like kinks
            together = self._decide_rows(probes, probes.bent | ~probes.bent, DIRECTIONS)
            if together.verdict is Verdict.PASS:
                return together
        decisions = [self._decide_rows(probes, ~probes.bent)] if not bool(xp.all(probes.bent)) else []
        if decisions and decisions[0].verdict is Verdict.FAIL:
            return decisions[0]
        if not probes.lie_between(context, self.mode):
            decisions.append(Decision(Verdict.INCONCLUSIVE, Reason.KINK))
        without_zeros = replace(self, context=context.excluding(context.problem.point == 0.0))
        rest = OutputProbes.along(without_zeros.context, part)
        if rest is None:
            return Decision(Verdict.INCONCLUSIVE, Reason.NOT_FINITE)
        bent = without_zeros._decide_rows(rest, probes.bent)
        if bent.verdict is not Verdict.PASS and bool(xp.any(rest.bent & probes.bent)):
            bent = bent.weakened(Reason.KINK)
        context.record.note("kinks at elements that are zero: the derivative must lie between the one-sided slopes")
        return min((*decisions, bent), key=lambda found: (WORST_FIRST.index(found.verdict), -found.bar))

    def _decide_rows(self, probes: OutputProbes, rows: Array, most: int = 0) -> Decision:
        """These outputs, along as many directions as it takes for the error bars to be as small as asked for.

        The first directions are those of the probes, over all steps; the others over the steps that show the most.
        """
        context, cotangents = self.context, _cotangents(self.context, probes, rows)
        most = most or max(DIRECTIONS, min(MOST_DIRECTIONS, MAX_ALL_DIRECTIONS // len(context.problem.domain.leaves)))
        steps, known = steps_for(context.eps)[:STEPS], [found.u for found in probes.differences]
        residuals = self._residuals(cotangents, probes, known + self._directions(DIRECTIONS - len(known)), steps)
        if residuals is None:
            return Decision(Verdict.INCONCLUSIVE, Reason.NOT_FINITE)
        if not peak(residuals.predicted) and not any(map(peak, residuals.at)):
            if rows_changing_by_roundoff(context, input_direction(context, self.part), cotangents[-1].v) is not None:
                return Decision(Verdict.INCONCLUSIVE, Reason.NO_SIGNAL)
            return Decision(Verdict.PASS, Reason.AGREES)
        best, steps = residuals.clearest(context.asked_resolution), steps[len(steps) - len(residuals.at) :]
        while True:
            decision = self._decide(cotangents, probes, residuals, best)
            is_decided = decision.verdict is not Verdict.INCONCLUSIVE or decision.reason is Reason.KINK
            if is_decided or context.out_of_budget or not _needs_more(context, residuals, best, most):
                return decision
            few = [steps[number] for number in best.steps]
            more = self._residuals(cotangents, probes, self._directions(DIRECTIONS), few)
            if more is None:
                return decision
            best = best.joined(more.slopes(tuple(range(len(few)))))

    def _directions(self, count: int) -> list[Array]:
        return [input_direction(self.context, self.part) for _ in range(count)]

    def _decide(
        self, cotangents: Sequence[Cotangent], probes: OutputProbes, residuals: Residuals, best: Slopes
    ) -> Decision:
        context, part = self.context, self.part
        asked, eps = context.asked_resolution, context.problem.eps
        size, least = residuals.size, thresholds.HALF_FACTOR * explained_factor(eps)
        columns, (dense, explained) = columns_of(best), residuals.dense()
        entry = _entry(context, best, columns, part) if size else None
        # Rounding on stairs may add up in all cotangents; those that belong to a direction leave such outputs out.
        stairs = [_stair_factor(context, probes, cotangent) for cotangent in (cotangents[0], cotangents[-1])]
        is_dense = dense > max(explained, least * size)
        scale, is_constant = _scale(residuals, best), residuals.factor()[1]
        kinked, bar = min(residuals.bend) / (size or 1.0), max(scale.error, explained_factor(eps))
        noise = thresholds.CLEAR * max(scale.error, residuals.kink_factor(), stairs[0])
        if is_constant and abs(scale.value) > max(least, noise):
            failure = Decision(Verdict.FAIL, Reason.DISAGREES, entry, scale.value, scale.error)
            return self._confirmed(failure, cotangents, probes, is_factor=True)
        if is_dense and dense > stairs[1] * size:
            failure = Decision(Verdict.FAIL, Reason.DISAGREES, entry, dense / (size or 1.0), explained / (size or 1.0))
            return self._confirmed(failure, cotangents, probes)
        if not size:
            return Decision(Verdict.INCONCLUSIVE, Reason.PRECISION, entry, dense, explained)
        limit = max(columns.noise, thresholds.PRECISION_DOUBT_PART)
        is_wrong = columns.worst > max(thresholds.CLEAR * max(limit, kinked), thresholds.LOW_PRECISION_PART)
        if is_wrong and self._fails_alone(cotangents, part.start + columns.index):
            return Decision(Verdict.FAIL, Reason.DISAGREES, entry, columns.worst, columns.noise)
        # Single elements must be visible too.
        seen = max(abs(scale.value) + scale.error, eps)
        is_seen = columns.worst <= limit <= thresholds.LOW_PRECISION_PART
        if abs(scale.value) <= bar and seen <= asked and is_seen and not is_dense:
            return Decision(Verdict.PASS, Reason.AGREES, None, scale.value, seen)
        return Decision(Verdict.INCONCLUSIVE, Reason.PRECISION, None, scale.value, bar)

    def _confirmed(
        self, failure: Decision, cotangents: Sequence[Cotangent], probes: OutputProbes, *, is_factor: bool = False
    ) -> Decision:
        """The failure, unless the roundoff of the gradient explains its error, or the function has no derivative.

        The former is needed by `test_gradient_summed_in_half_precision_does_not_fail`. Four VJPs.
        """
        problem, part, length = self.context.problem, self.part, self.context.lengths[self.part]
        tiny = 2.0 * thresholds.INTERVAL_WIDTH * value_roundoff(self.context)
        for cotangent in (cotangents[0], cotangents[-1]):
            own = length * cotangent.vjp[part]
            near = [length * finite_part(problem.vjp_at(sign * tiny, cotangent.v))[part] for sign in (1.0, -1.0)]
            # Of three values that differ by roundoff alone; what changes in proportion drops out.
            change, square = (near[0] + near[1] - 2.0 * own) / math.sqrt(6.0), dot(own, own)
            noise = abs(dot(change, own)) if is_factor else math.sqrt(dot(change, change) * square)
            if thresholds.COHERENT * noise > abs(failure.error) * square:
                return failure.weakened()
        return failure if self._is_additive(cotangents, probes) else failure.weakened(Reason.KINK)

    def _start(self) -> Evaluation:
        """Where a direction starts; one evaluation if that is not the point. Zeros stay zero, equal values equal."""
        problem = self.context.problem
        if self.is_shifted:
            return problem.evaluate_at(2.0 * value_roundoff(self.context))
        return Evaluation(problem.value, problem.zeros(problem.domain.size))

    def _moved(self, cotangents: Sequence[Cotangent], u: Array, step: float, start: Evaluation) -> tuple[Array, Array]:
        """Residual for each cotangent v, and change of slope for each v and each |v|. Two evaluations."""
        problem, rows = self.context.problem, self.context.problem.codomain.size
        plus, minus = (problem.evaluate_at(start.displacement + t * u) for t in (step, -step))
        odd = (plus.values[:rows] - minus.values[:rows]) / 2.0
        even = (plus.values[:rows] + minus.values[:rows]) / 2.0 - start.values[:rows]
        moved = (plus.displacement - minus.displacement) / 2.0
        predictions = self.mode.predictions(self.context, u, cotangents)
        xp = namespace(odd)
        residual = [(dot(p.v, odd) - p.predicted(moved, step)) / step for p in predictions]
        bend = [dot(v, even) / step for v in (*(p.v for p in predictions), *(abs(p.v) for p in predictions))]
        first, second = (xp.asarray(found, dtype=odd.dtype, device=odd.device) for found in (residual, bend))
        return first, second

    def _is_additive(self, cotangents: Sequence[Cotangent], probes: OutputProbes) -> bool:
        """Whether the slope along a sum of directions is the sum of the slopes, as where the function has a derivative.

        Ties of three and more elements (a median, a sort) may have none though every line through the point is smooth,
        so inputs of few different values are not trusted. Needed by
        `test_largest_numbers_of_a_kernel_do_not_fail_in_float16`.
        """
        own = self.context.problem.point[self.part]
        if 3 * int(namespace(own).unique_values(own).shape[0]) <= min(own.shape[0], thresholds.FEW_VALUES):
            return False
        wide, narrow = steps_for(self.context.eps)[1:3]
        together, apart = 0.0, 0.0
        for one, other in pairwise(found.u for found in probes.differences):
            start, r = self._start(), []
            for u in (one, other, one + other):
                far, near = (self._moved(cotangents, u, step, start)[0] for step in (wide, narrow))
                r.append((4.0 * near - far) / 3.0)
            together, apart = together + rms(r[2]) ** 2, apart + rms(r[2] - r[0] - r[1]) ** 2
        return thresholds.COHERENT**2 * apart <= together

    def _fails_alone(self, cotangents: Sequence[Cotangent], column: int) -> bool:
        """Whether the error shows where this element moves alone, at several steps, and no kink and no tie explains it.

        Needed by `largest_five_in_float16`.
        """
        context, point, clear = self.context, self.context.problem.point, 0
        if int(namespace(point).count_nonzero(point == point[column])) > 2:
            return False
        u = context.column(column)
        size = math.sqrt(sum(dot(cotangent.vjp, u) ** 2 for cotangent in cotangents) / len(cotangents))
        for step in steps_for(context.eps)[:STEPS]:
            r, even = self._moved(cotangents, u, step, self._start())
            kink = math.hypot(rms(even[: len(cotangents)]), _roundoff(context.value_noise, cotangents) / step)
            clear += rms(r) > max(thresholds.CLEAR * kink, thresholds.LOW_PRECISION_PART * size)
        return clear >= thresholds.PLATEAU_STEPS

    def _residuals(
        self,
        cotangents: Sequence[Cotangent],
        probes: OutputProbes,
        directions: Sequence[Array],
        steps: Sequence[float],
    ) -> Residuals | None:
        """Two evaluations for each step of each direction; None where few steps are finite."""
        problem = self.context.problem
        found: list[list[Array]] = [[] for _ in steps]
        # Values that are equal at all steps are rounded, too: see `test_saturated_output_does_not_fail`.
        roundoff = _roundoff(probes.noise, cotangents) ** 2
        # On stairs the rounding errors of all outputs may add up.
        roundoff += sum(dot(abs(cotangent.v), probes.stairs) ** 2 for cotangent in cotangents) / len(cotangents)
        evens: list[list[Array]] = [[] for _ in steps]
        predicted = []
        for u in directions:
            predicted.append([p.predicted(u, 1.0) for p in self.mode.predictions(self.context, u, cotangents)])
            start = self._start()
            for number, step in enumerate(steps):
                r, even = self._moved(cotangents, u, step, start)
                found[number].append(r)
                evens[number].append(even)
        xp = namespace(problem.value)
        at, bent = ([xp.stack(some) for some in stacks] for stacks in (found, evens))
        bends = _bends([even[:, : len(cotangents)] for even in bent], [math.sqrt(roundoff) / step for step in steps])
        first = max((number + 1 for number, some in enumerate(at) if not all_finite(some)), default=0)
        if len(at) - first < min(len(steps), thresholds.PLATEAU_STEPS):
            return None
        vjps = xp.stack([finite_part(cotangent.vjp)[self.part] for cotangent in cotangents])
        table = xp.asarray(predicted, dtype=problem.value.dtype, device=problem.value.device)
        moved = xp.stack([u[self.part] for u in directions])
        return Residuals(at[first:], bent[first:], bends[first:], table, moved, vjps, _matched(len(cotangents)))


def _needs_more(context: Context, residuals: Residuals, best: Slopes, most: int) -> bool:
    """Whether more directions, up to a number in all, may lead to a decision.

    Error bars shrink with the square root of their number; what kinks explain does not.
    """
    count, size = best.predicted.shape[0], residuals.size
    if count >= most or not size:
        return False
    scale, columns, gain = _scale(residuals, best), columns_of(best), math.sqrt(most / count)
    bar, noise, kinked = scale.error / gain, columns.noise / gain, min(residuals.bend) / size
    may_pass = bar <= context.asked_resolution and noise <= thresholds.LOW_PRECISION_PART
    by_scale = abs(scale.value) > thresholds.CLEAR * max(bar, residuals.kink_factor())
    return may_pass or by_scale or columns.worst > thresholds.CLEAR * max(noise, kinked)


def _scale(residuals: Residuals, best: Slopes) -> Estimate:
    """The common factor by all steps, or by all directions where that is sharper and agrees."""
    by_steps, by_directions = residuals.factor()[0], best.factor
    is_same = abs(by_steps.value - by_directions.value) <= by_steps.error
    return by_directions if is_same and by_directions.error < by_steps.error else by_steps


def _cotangents(context: Context, probes: OutputProbes, rows: Array) -> list[Cotangent]:
    """Cotangents in which each of these outputs weighs about the same, half of them with the signs of the probes.

    All outputs add up along the direction of the probe, and their rounding errors do not, but on stairs.
    """
    xp, count = namespace(rows), min(RANDOM_COTANGENTS, int(namespace(rows).count_nonzero(rows)))
    weight = xp.where(rows, probes.weights, xp.zeros_like(probes.slope))
    slope, bias = probes.stair_bias(steps_for(context.eps)[STEPS // 2])
    clear = xp.where(bias < thresholds.LOW_PRECISION_PART * slope, weight, xp.zeros_like(weight))
    clear = clear if peak(clear) else weight
    signs = [found.odd / (xp.abs(found.odd) + probes.noise / found.step + 1e-300) for found in probes.differences]
    drawn = (context.problem.random(weight.shape[0], Distribution.NEAR_UNIT) for _ in range(count))
    pairs = zip_longest(signs[: _matched(count)], drawn)
    return [context.cotangent(weight * one if sign is None else clear * sign * xp.abs(one)) for sign, one in pairs]


def _matched(cotangents: int) -> int:
    """How many of the cotangents have the signs of a probe."""
    return min(PROBES, cotangents // 2)


def _stair_factor(context: Context, probes: OutputProbes, cotangent: Cotangent) -> float:
    """Relative error of v·J·u that rounding on stairs explains."""
    slope, bias = probes.stair_bias(steps_for(context.eps)[STEPS // 2])
    size = dot(abs(cotangent.v), slope)
    return thresholds.COHERENT * dot(abs(cotangent.v), bias) / size if size else math.inf


def _roundoff(noise: Array, cotangents: Sequence[Cotangent]) -> float:
    """Roundoff of v·f, root mean square, by that of the outputs."""
    noises = [norm(cotangent.v, finite_part(noise)) for cotangent in cotangents]
    return thresholds.NOISE_FLOOR * math.hypot(*noises) / math.sqrt(len(noises))


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


def _entry(context: Context, residuals: Slopes, columns: Columns, part: slice) -> Entry:
    """The worst column for the first cotangent."""
    place = context.problem.domain.locate(part.start + columns.index)
    derivative = float(residuals.vjps[0, columns.index])
    bar = abs(columns.error) * columns.noise / columns.worst if columns.worst else 0.0
    return Entry(None, place, derivative, derivative + columns.error, bar, reason=Reason.DISAGREES)
