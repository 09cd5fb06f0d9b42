"""The error-bar policy: which directions are tested, and how their decisions combine to a verdict about one mode.

1. Columns without a finite derivative are tested one by one and excluded.
2. All inputs move together; while that is inconclusive, with smaller step lengths.
3. In double precision all inputs move together once more, balanced so that each adds about the same.
4. Inputs whose errors would not show beside the others move alone.
5. Outputs that exist on one side of the point alone, and those that roundoff hides at the usual step, are tested apart.

Elements at kinks are tested by themselves (`kinks`). The ledger gets all agreement, and all that was not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from gradvet.core import thresholds
from gradvet.core.confirmation import despite_ties
from gradvet.core.context import Context
from gradvet.core.decision import AGREES, Decision, Reason
from gradvet.core.direction_average import decide_by_averages, decide_single_precision
from gradvet.core.extrapolation import SlopeFit
from gradvet.core.finite_differences import Cotangent, DirectionalDifference
from gradvet.core.gradient_match import saturated_roundoff
from gradvet.core.kinks import decide_kink, enter_kinks, is_beside_the_point, is_right_nearby
from gradvet.core.line_test import (
    bent_rows,
    decide_line,
    enter_resolution,
    open_rows,
    screen_agrees,
    split_kinks,
    sweep_line,
    typical_contributions,
)
from gradvet.core.localise import find_wrong_entry, nonfinite_derivative, nonfinite_tangent
from gradvet.core.modes import Mode
from gradvet.core.refinement import (
    decide_hidden_outputs,
    one_sided_outputs,
    other_lengths,
    refined,
    with_inner_roundoff,
)
from gradvet.core.results import Verdict
from gradvet.core.vectors import Array, Leaf, norm, peak, window

MAX_ALONE = 64
"""Largest number of inputs that are tested alone because their ledger row is not resolved."""

MAX_RESOLVED_ALONE = 8
"""Largest number of inputs that are tested alone though their ledger row is resolved."""


class SlopeTest:
    """One mode of one problem."""

    def __init__(self, context: Context, mode: Mode) -> None:
        self.context, self.mode = context, mode
        mode.require(context)
        self.opened = open_rows(context, mode)
        """Inputs whose rows are new: a first derivative may have rows with the same names."""
        self.lost: Array | None = None
        """Columns that were not compared."""

    def run(self) -> Decision:
        """The decision about the mode; where it is not PASS, also in the coarser format inside the function."""
        decision = self._worst()
        is_open = decision.verdict is not Verdict.PASS and not self.context.out_of_budget
        if is_open and (coarser := self.context.in_internal_format()) is not None:
            self.context = coarser
            return self._worst()
        is_noisy = decision.verdict is Verdict.FAIL and self.context.scaling.is_narrow
        # At the smallest steps noise dominates: agreement there counts, disagreement does not.
        return decision.weakened() if is_noisy else decision

    def _worst(self) -> Decision:
        """The first failure, else the first inconclusive decision, else agreement."""
        worst = AGREES
        for decision in self._decisions():
            if decision.verdict is Verdict.FAIL:
                return decision
            worst = decision if worst is AGREES and decision.verdict is Verdict.INCONCLUSIVE else worst
        return worst

    def _decisions(self) -> Iterator[Decision]:
        yield from self._nonfinite_columns()
        if (undefined := nonfinite_tangent(self.context, self.mode)) is not None:
            yield undefined
            return
        if self._is_random():
            yield Decision(Verdict.INCONCLUSIVE, Reason.PRECISION)
            return
        if self.context.is_double:
            yield from self._in_double_precision()
        elif self.context.eps > thresholds.HALF_PRECISION_EPS:
            yield from decide_by_averages(self.context, self.mode)
            return
        else:
            yield self._in_single_precision()
            yield from self._each_alone()
        yield from self._at_the_edge()
        sweep = partial(self.sweep, self.context.first.u)
        yield from decide_hidden_outputs(self.context, sweep, self.leave_out)

    def _is_random(self) -> bool:
        """Whether calls at one point differ about as much as those a full step apart, so that no step shows a slope.

        At most one evaluation. Needed by `test_model_that_draws_other_numbers_in_each_call_takes_few_evaluations`.
        """
        context, problem = self.context, self.context.problem
        if not peak(noise := context.repeat_noise):
            return False
        change = problem.evaluate_at(context.restricted(context.joint_direction())).values - problem.value
        limit = thresholds.VISIBLE_NOISE
        return all(norm(change[rows]) <= limit * norm(noise[rows]) for rows in problem.codomain.slices)

    def _in_double_precision(self) -> Iterator[Decision]:
        """Two joint directions, then inputs alone: those that are not resolved yet, or all where that is inconclusive.

        If every input alone agrees, the joint directions need not. Needed by `loss_of_tiny_numbers`,
        which is inconclusive without it.
        """
        given = self.context.scaling
        together = [self._refining(lambda: self.along(self.context.first, self.context.cotangents))]
        if together[0].verdict is not Verdict.FAIL and not self.context.out_of_budget:
            together.append(self._refining(lambda: self.along(self.context.second, self.context.cotangents)))
        if together[-1].verdict is Verdict.FAIL:
            yield together[-1]
            return
        leaves, open_rows = self.context.problem.domain.leaves, self._open_rows()
        resolved = [number for number, leaf in enumerate(leaves) if leaf.coordinates.size and number not in open_rows]
        undecided = [decision for decision in together if decision.verdict is Verdict.INCONCLUSIVE]
        if undecided:
            self.context = self.context.rescaled(replace(given, excluded=self.context.scaling.excluded))
        alone = list(self._each_alone())
        if undecided and len(resolved) <= MAX_RESOLVED_ALONE:
            alone += map(self._alone, resolved)
            undecided = [] if all(decision.verdict is Verdict.PASS for decision in alone) else undecided
        yield from (*alone, *undecided)

    def _in_single_precision(self) -> Decision:
        """One direction; where it agrees, the gradient as well, and where roundoff hides the slope, averages.

        In a random direction slopes may cancel by chance, and with them an error that is the same part of all.
        Needed by `test_factor_in_float32_is_seen_whatever_the_directions_are`.
        """
        decision = self.along(self.context.first, self.context.cotangents)
        if decision.verdict is Verdict.PASS:
            context, xp = self.context, self.context.xp
            u, gradient = abs(context.joint_direction()), context.cotangents[0].vjp
            u = context.restricted(xp.where(xp.isfinite(gradient) & (gradient < 0.0), -u, u))
            steepest = self.along(context.difference(u), context.cotangents)
            decision = steepest if steepest.verdict is Verdict.FAIL else decision
        is_hidden = decision.verdict is Verdict.INCONCLUSIVE and decision.reason is Reason.PRECISION
        if not is_hidden or self.context.out_of_budget:
            return decision
        found = decide_single_precision(self.context, self.mode, decision)
        if found.verdict is Verdict.PASS:
            # Needed by `test_straight_through_gradient_of_fine_steps_does_not_pass`.
            fits = sweep_line(self.context, self.mode, self.context.first.u, self.context.cotangents)
            found = found.weakened(Reason.STAIRS) if any(fit.is_unfollowed for fit in fits) else found
        return found

    def _refining(self, test: Callable[[], Decision], cotangent: Cotangent | None = None) -> Decision:
        """Repeat a test with the roundoff of values inside, then with smaller steps while it is inconclusive.

        Needed by `wave_of_frequency_1e5` and `log_at_1e_2`, which vary within the usual step and stay undecided.
        """
        decision = test()
        is_measured = not self.context.is_double or self.context.inner_roundoff is not None
        if decision.verdict is not Verdict.PASS and not is_measured and not self.context.out_of_budget:
            self.context, is_rounded = with_inner_roundoff(self.context)
            decision = test() if is_rounded else decision
        while decision.verdict is Verdict.INCONCLUSIVE and not self.context.out_of_budget:
            if (finer := refined(self.context, cotangent)) is None:
                break
            self.context = finer
            decision = test()
        return decision

    def along(self, difference: DirectionalDifference, cotangents: Sequence[Cotangent]) -> Decision:
        """One direction: the screen, then a sweep; again without the elements at a kink where there are any.

        A kink beside the point is inconclusive: smaller steps do not reach it. Where ties leave a kink undecided, a
        failure of the other elements counts all the same. Needed by `distance_of_far_points` and
        `square_of_ones_lost_beside_clamp_at_one`.
        """
        if not peak(difference.u):
            return Decision(Verdict.PASS, Reason.NO_SIGNAL)
        given, undecided = self.context, None
        while True:
            decision, kinked = self._along_once(difference, cotangents)
            if kinked is None:
                break
            if is_beside_the_point(self.context, difference.u, kinked):
                return decision.weakened(Reason.KINK)
            columns, at_kink = decide_kink(self.context, self.mode, difference.u, kinked)
            if at_kink.verdict is Verdict.FAIL:
                return at_kink
            undecided = undecided or (at_kink if at_kink.verdict is Verdict.INCONCLUSIVE else None)
            were_excluded = self.context.is_excluded(columns)
            self.context = self.context.excluding(columns)
            rest = self.context.restricted(difference.u)
            if undecided is None:
                is_right = were_excluded or is_right_nearby(self.context, self.mode, columns)
                is_seen = is_right and not were_excluded
                enter_kinks(self.context, self.mode, kinked, difference, rest, decision.bar, is_seen)
                if not is_right:
                    self._leave_out_columns(columns, "kinks hide errors of the derivative")
            if were_excluded or not peak(rest):  # a kink that is not at these elements, or nothing is left
                decision = decision.weakened(Reason.KINK) if were_excluded else Decision(Verdict.PASS, Reason.KINK)
                break
            difference, cotangents = self.context.difference(rest), self.context.cotangents
        if undecided is None or decision.verdict is Verdict.FAIL:
            return decision
        self.context = given
        return undecided

    def _along_once(
        self, difference: DirectionalDifference, cotangents: Sequence[Cotangent]
    ) -> tuple[Decision, Cotangent | None]:
        """A decision, and the cotangent that shows a kink if there is one to be excluded."""
        context = self.context
        bent = bent_rows(context, difference)
        if context.is_double and bent is None and screen_agrees(context, self.mode, difference, cotangents):
            # A step that rounding takes away shows nothing of a single input: it is swept.
            moved = typical_contributions(context.problem, difference.u, difference.u)
            if len(moved) > 1 or self._resolution(*moved) <= context.options.resolution:
                return AGREES, None
        if context.out_of_budget:
            return Decision(Verdict.INCONCLUSIVE, Reason.BUDGET), None
        if bent is not None:
            cotangents = [part for one in cotangents for part in split_kinks(context, one, difference, bent)]
        return self._swept(difference.u, cotangents)

    def sweep(self, u: Array, cotangents: Sequence[Cotangent]) -> Decision:
        """One direction by a sweep over all steps, without regard to kinks."""
        return self._swept(u, cotangents)[0]

    def _swept(self, u: Array, cotangents: Sequence[Cotangent]) -> tuple[Decision, Cotangent | None]:
        worst = AGREES
        for cotangent, fit in zip(cotangents, sweep_line(self.context, self.mode, u, cotangents), strict=True):
            decision = decide_line(self.context, self.mode, u, cotangent, fit)
            if decision.verdict is Verdict.FAIL:
                decision = self.confirmed(u, cotangent, decision, fit)
            is_kink = decision.reason is Reason.KINK and decision.verdict is not Verdict.INCONCLUSIVE
            if is_kink or decision.verdict is Verdict.FAIL:
                return decision, cotangent if is_kink else None
            worst = decision if worst is AGREES and decision.verdict is Verdict.INCONCLUSIVE else worst
        return worst, None

    def confirmed(self, u: Array, cotangent: Cotangent, decision: Decision, fit: SlopeFit) -> Decision:
        """A failure along a direction, as the entry that contributes most decides it, or else as the line does."""
        found = replace(decision, entry=find_wrong_entry(self.context, self.mode, u, cotangent.v))
        # By the line: outside the slopes of a kink, and where the function is smooth along it.
        is_certain = found.reason is Reason.OUTSIDE or not abs(fit.kink.value) > fit.kink.error
        return self._by_entry(u, cotangent, found) or (found if is_certain else found.weakened(Reason.KINK))

    def _by_entry(self, u: Array, cotangent: Cotangent, found: Decision) -> Decision | None:
        """FAIL if the entry is wrong alone, and PASS or INCONCLUSIVE if it is right; None if it is not resolved.

        Along a line, roundoff of other entries may look like an error of this one. Needed by
        `certain_loss_with_logits`, which fails without it.
        """
        context, entry, error = self.context, found.entry, abs(found.error)
        if entry is None:
            return None
        if entry.verdict is Verdict.FAIL:
            return despite_ties(context, self.mode, replace(found, reason=entry.reason))
        if error <= thresholds.INTERVAL_WIDTH * (roundoff := saturated_roundoff(context, cotangent.v, peak(u))):
            # Needed by `certain_loss_with_logits`: one of its terms is constant over small steps.
            contributions = typical_contributions(context.problem, cotangent.vjp, u)
            enter_resolution(context, self.mode, contributions, error + roundoff)
            return Decision(Verdict.PASS, Reason.AGREES, entry, found.error, error + roundoff)
        part = thresholds.LOW_PRECISION_PART * error / (norm(cotangent.vjp, u) or 1.0)
        is_sharp = entry.error <= max(context.asked_resolution, part) * abs(entry.derivative)
        is_open = entry.reason in (Reason.PRECISION, Reason.NOT_FINITE)
        return None if is_open or not (context.is_double or is_sharp) else found.weakened()

    def _nonfinite_columns(self) -> Iterator[Decision]:
        """Columns in which the derivative is not finite: wrong where the function has a finite slope."""
        context = self.context
        found = [cotangent.nonfinite for cotangent in context.cotangents if cotangent.nonfinite is not None]
        if not found or context.is_excluded(columns := context.xp.any(context.xp.stack(found), axis=0)):
            return
        yield nonfinite_derivative(context, self.mode, columns)
        self._leave_out_columns(columns, "the derivative is not finite")
        self.context = context.excluding(columns)

    def _each_alone(self) -> Iterator[Decision]:
        """Inputs whose ledger row is not resolved yet: together while that resolves some of them, then one at a time.

        Beside others, the error of an input of small effect does not show. Needed by `one_faint_input_of_100`
        and `tiny_shift_before_softmax_lost`, which are inconclusive without it.
        """
        context, domain = self.context, self.context.problem.domain
        before, open_rows = len(domain.leaves) + 1, self._open_rows()
        while context.is_double and before > len(open_rows) > 1 and not context.out_of_budget:
            together = self._together(open_rows)
            if together.verdict is Verdict.FAIL:
                yield together
                return
            before, open_rows = len(open_rows), self._open_rows()
        for position, number in enumerate(open_rows):
            if position == MAX_ALONE or context.out_of_budget:
                late = context.out_of_budget
                reason = "the time budget was spent" if late else f"{MAX_ALONE} inputs at most are tested one by one"
                for leaf in (domain.leaves[other] for other in open_rows[position:]):
                    self.leave_out(leaf, leaf.coordinates.size, reason)
                yield Decision(Verdict.INCONCLUSIVE, Reason.BUDGET if late else Reason.NO_SIGNAL)
                return
            yield (decision := self._alone(number))
            if decision.verdict is Verdict.FAIL:
                return

    def _open_rows(self) -> list[int]:
        """The inputs whose ledger row is not resolved yet."""
        asked, leaves = self.context.options.resolution, self.context.problem.domain.leaves
        sized = ((number, leaf.name) for number, leaf in enumerate(leaves) if leaf.coordinates.size)
        return [number for number, name in sized if not self._resolution(name) <= asked]

    def _together(self, rows: Sequence[int]) -> Decision:
        """Several inputs of small effect, by the screen or by a sweep, which resolves far smaller contributions.

        Needed by `test_biases_before_batch_norms_pass_in_few_evaluations` and `test_small_biases_are_screened_at_once`.
        """
        context = self.context
        joint, domain = context.joint_direction(), context.problem.domain
        u = context.xp.concat([joint[part] * (number in rows) for number, part in enumerate(domain.slices)])
        if not peak(u := context.restricted(u)):
            return Decision(Verdict.PASS, Reason.NO_SIGNAL)
        difference = context.difference(u)
        cotangents = context.cotangents_for(context.slope_of(difference))
        is_smooth = bent_rows(context, difference) is None
        if is_smooth and screen_agrees(context, self.mode, difference, cotangents) and self._open_rows() != rows:
            return AGREES
        return self.sweep(u, cotangents)

    def _alone(self, number: int) -> Decision:
        """One input alone, with other step lengths where the usual ones do not show enough."""
        given, domain = self.context, self.context.problem.domain
        leaf, part = domain.leaves[number], domain.slices[number]
        decision = self._along_part(part)
        for self.context in other_lengths(given):
            is_seen = decision.verdict is Verdict.PASS and self._resolution(leaf.name) <= given.options.resolution
            if is_seen or decision.verdict is Verdict.FAIL or given.out_of_budget:
                break
            decision = self._along_part(part)
        self.context = given
        return decision

    def _along_part(self, part: slice) -> Decision:
        difference = self.context.difference(self.context.restricted(window(self.context.joint_direction(), part)))
        return self.along(difference, self.context.cotangents_for(self.context.slope_of(difference)))

    def _at_the_edge(self) -> Iterator[Decision]:
        """Outputs that exist at the point but not on both sides of it, along two directions that may stay inside.

        Along these all inputs grow, as numbers or in absolute value; the sweep uses the side that exists. Needed by
        `test_edge_of_the_domain_is_tested_from_inside`, and smaller steps by `asin_at_1e_9_from_one`: without them
        such outputs are not compared.
        """
        cotangent, xp, point = one_sided_outputs(self.context), self.context.xp, self.context.problem.point
        if cotangent is None:
            return

        def inside() -> Decision:
            size = xp.abs(self.context.restricted(self.context.joint_direction()))
            tried = (self.sweep(u, [cotangent]) for u in (size, xp.where(point < 0.0, -size, size)))
            found = (decision for decision in tried if decision.reason is not Reason.NOT_FINITE)
            return next(found, Decision(Verdict.INCONCLUSIVE, Reason.DOMAIN))

        yield self._refining(inside, cotangent)

    def _resolution(self, name: str) -> float:
        return self.context.record.resolution(name, self.mode.name, self.context.precision)

    def leave_out(self, leaf: Leaf, count: int, reason: str) -> None:
        self.context.record.left_out(leaf.name, self.mode.name, self.context.precision, count, reason)

    def _leave_out_columns(self, columns: Array, reason: str) -> None:
        self.lost = columns if self.lost is None else self.lost | columns
        xp = self.context.xp
        for leaf, part in self.context.problem.domain.sections:
            if bool(xp.any(columns[part])):
                self.leave_out(leaf, int(xp.count_nonzero(self.lost[part])), reason)


def decide_slopes(context: Context, mode: Mode) -> tuple[Decision, Context]:
    """The decision about one mode, and the context with the step lengths, excluded columns and precision of it."""
    test = SlopeTest(context, mode)
    try:
        return test.run(), test.context
    except Exception:
        # The comparison did not take place: the finding is about the exception.
        for name in test.opened:
            context.record.withdraw(name, mode.name, context.precision)
        raise
