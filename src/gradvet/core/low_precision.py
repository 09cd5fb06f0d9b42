"""The error-bar policy in single precision: sweeps along several directions, and averages where roundoff hides much."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from gradvet.core import thresholds
from gradvet.core.context import Context
from gradvet.core.decision import Decision, Reason
from gradvet.core.direction_average import decide_by_averages
from gradvet.core.finite_differences import DirectionalDifference
from gradvet.core.modes import Mode
from gradvet.core.projections import Cotangent
from gradvet.core.results import Verdict
from gradvet.core.vectors import window

MAX_DIRECTIONS = 3
"""Number of directions that are tried until one is conclusive."""

MAX_AVERAGED = 1 << 22
"""Number of inputs and outputs up to which averages over many directions are taken, for their memory."""


class DirectionTest(Protocol):
    """The test of one direction, as `slope_test` provides it."""

    context: Context
    mode: Mode

    def along(self, difference: DirectionalDifference, cotangents: Sequence[Cotangent]) -> Decision: ...


def decide_low_precision(test: DirectionTest) -> Decision:
    """The first conclusive decision among a few directions; agreement must show along the gradient as well."""
    decision = test.along(test.context.first, test.context.cotangents)
    for _ in range(MAX_DIRECTIONS - 1):
        if decision.verdict is not Verdict.INCONCLUSIVE or test.context.out_of_budget:
            break
        decision = _along_another(test)
    if decision.verdict is Verdict.PASS and (steepest := _along_gradient(test)).verdict is Verdict.FAIL:
        decision = steepest
    inconclusive = decision.verdict is Verdict.INCONCLUSIVE and decision.reason is Reason.PRECISION
    if not inconclusive or test.context.out_of_budget or test.context.in_internal_format() is not None:
        return decision  # a coarser format inside is tried next
    return _by_averages(test, decision)


def _by_averages(test: DirectionTest, undecided: Decision) -> Decision:
    """Averages over many directions in single precision: they show the common factor, and single entries to a quarter.

    Needed by `test_loss_of_many_elements_in_float32_passes`: a hundredth of one entry is less than the roundoff of a
    mean over all of them. Not for functions of float64 numbers that round inside: they stay inconclusive.
    """
    context = test.context
    is_double = context.problem.eps <= thresholds.DOUBLE_EPS
    if is_double or context.problem.domain.size + context.problem.codomain.size > MAX_AVERAGED:
        return undecided
    decisions = list(decide_by_averages(context, test.mode))
    verdicts = {decision.verdict for decision in decisions}
    if verdicts == {Verdict.PASS}:
        return max(decisions, key=lambda decision: decision.bar)
    wrong = [found for found in decisions if found.verdict is Verdict.FAIL]
    if not wrong or not abs(wrong[0].error) > context.asked_resolution:
        return undecided
    # Needed by `test_right_kernel_of_one_dtype_does_not_fail`, whose zero rows vary within the usual steps.
    lengths = thresholds.NARROW_FACTOR * context.lengths
    narrow = context.rescaled(replace(context.scaling, lengths=lengths, is_narrow=True))
    again = {decision.verdict for decision in decide_by_averages(narrow, test.mode)}
    return wrong[0] if Verdict.FAIL in again else undecided


def _along_gradient(test: DirectionTest) -> Decision:
    """The decision along a direction with the signs of the gradient, in which the slopes of all elements add up.

    In another one they may cancel by chance, and with them an error that is the same part of all: needed by
    `test_factor_in_float32_is_seen_whatever_the_directions_are`.
    """
    context = test.context
    u, xp, v = abs(context.joint_direction()), context.xp, context.cotangents[0].vjp
    u = xp.where(xp.isfinite(v) & (v < 0.0), -u, u)
    return test.along(context.difference(context.restricted(u)), context.cotangents)


def _along_another(test: DirectionTest, part: slice | None = None) -> Decision:
    context = test.context
    u = context.joint_direction()
    u = u if part is None else window(u, part)
    difference = context.difference(context.restricted(u))
    return test.along(difference, context.cotangents_for(context.slope_of(difference)))
