"""The error-bar policy below double precision: sweeps along several directions, and outputs in groups.

The roundoff of many outputs hides what one entry adds to the slope of all of them together. So where all together are
inconclusive they are tested in groups, as large as their roundoff allows: one sweep gives the values of all groups, and
each group costs one VJP. The resolution is that of the worst group.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from gradvet.core import thresholds
from gradvet.core.context import Context
from gradvet.core.decision import AGREES, Decision, Reason
from gradvet.core.direction_average import decide_by_averages
from gradvet.core.extrapolation import SlopeFit
from gradvet.core.finite_differences import DirectionalDifference
from gradvet.core.line_test import decide_beyond_jitter, error_scale, sweep_line, typical_contributions
from gradvet.core.modes import Mode
from gradvet.core.problem import Distribution
from gradvet.core.projections import Cotangent
from gradvet.core.results import Verdict
from gradvet.core.vectors import Array, dot, namespace, window

MAX_DIRECTIONS = 3
"""Number of directions that are tried until one is conclusive."""

MAX_GROUPS = 128
MAX_GROUP_BYTES = 1 << 28
"""Memory for the gradients of all groups."""

FEW_GROUPS = 8
"""Number of groups where the error bar is not what leaves the decision open."""

MAX_UNCONFIRMED = 8
"""Number of groups that fail without being confirmed until error bars count as too small: no more are confirmed."""

MAX_AVERAGED = 1 << 22
"""Number of inputs and outputs up to which averages over many directions are taken, for their memory."""

GROUP_MARGIN = 2.0
"""Factor between the resolution that a group aims for and the one asked for, as error bars vary between groups."""


class DirectionTest(Protocol):
    """The test of one direction, as `slope_test` provides it."""

    context: Context
    mode: Mode

    def along(self, difference: DirectionalDifference, cotangents: Sequence[Cotangent]) -> Decision: ...
    def sweep(self, u: Array, cotangents: Sequence[Cotangent]) -> Decision: ...
    def confirmed(self, u: Array, cotangent: Cotangent, decision: Decision, fit: SlopeFit) -> Decision: ...


def decide_low_precision(test: DirectionTest) -> Decision:
    """The first conclusive decision among a few directions; a failure must show along another direction too.

    Agreement must show along the gradient as well.
    """
    decision = test.along(test.context.first, test.context.cotangents)
    for _ in range(MAX_DIRECTIONS - 1):
        if decision.verdict is not Verdict.INCONCLUSIVE or test.context.out_of_budget:
            break
        decision = _along_another(test)
    if decision.verdict is Verdict.PASS and (steepest := _along_gradient(test)).verdict is Verdict.FAIL:
        decision = steepest
    if decision.verdict is Verdict.FAIL and not fails_along_others(test):
        decision = decision.weakened()
    inconclusive = decision.verdict is Verdict.INCONCLUSIVE and decision.reason is Reason.PRECISION
    if not inconclusive or test.context.out_of_budget or test.context.in_internal_format() is not None:
        return decision  # a coarser format inside is tried next
    found = _in_groups(test, decision)
    is_hidden = found.verdict is Verdict.INCONCLUSIVE and found.reason is Reason.PRECISION
    if not is_hidden or test.context.eps > thresholds.HALF_PRECISION_EPS or test.context.out_of_budget:
        return found
    return _by_averages(test, found)


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


def fails_along_others(test: DirectionTest, part: slice | None = None) -> bool:
    """Whether the first conclusive one of a few other directions, along some of the inputs, fails too.

    Needed by `test_products_rounded_to_tf32_are_compared_in_that_precision`: rounding inside may look like an error.
    """
    return _first_conclusive(_along_another(test, part) for _ in range(MAX_DIRECTIONS)) is Verdict.FAIL


def _along_gradient(test: DirectionTest) -> Decision:
    """The decision along a direction with the signs of the gradient, in which the slopes of all elements add up.

    In another one they may cancel by chance, and with them an error that is the same part of all: needed by
    `test_factor_in_float32_is_seen_whatever_the_directions_are`.
    """
    context = test.context
    u, xp, v = abs(context.joint_direction()), context.xp, context.cotangents[0].vjp
    u = xp.where(xp.isfinite(v) & (v < 0.0), -u, u)
    return test.along(context.difference(context.restricted(u)), context.cotangents)


def _first_conclusive(decisions: Iterator[Decision]) -> Verdict | None:
    return next((found.verdict for found in decisions if found.verdict is not Verdict.INCONCLUSIVE), None)


def _along_another(test: DirectionTest, part: slice | None = None) -> Decision:
    context = test.context
    u = context.joint_direction()
    u = u if part is None else window(u, part)
    difference = context.difference(context.restricted(u))
    return test.along(difference, context.cotangents_for(context.slope_of(difference)))


@dataclass(frozen=True, slots=True)
class _Group:
    """Some outputs of one leaf together."""

    leaf: int
    cotangent: Cotangent
    weight: float
    """Root mean square of the cotangent's entries."""
    entries: Mapping[str, float]
    """By name of the input: what one typical entry adds to the slope, over all groups of the leaf."""


def _in_groups(test: DirectionTest, undecided: Decision) -> Decision:
    """All groups along the first direction; agreement needs every group to agree.

    Needed by `growth_without_tail_block_in_bfloat16`.
    """
    context, mode = test.context, test.mode
    rows = [_shuffled_rows(context, context.cotangents[0].v, part) for part in context.problem.codomain.slices]
    count = sum(int(some.shape[0]) for some in rows)
    size = _group_size(context, count, undecided)
    groups, inside = _grouped(context, rows, size) if size else ([], 0)
    if len(groups) < 2:
        return undecided
    worst: dict[str, float] = {}
    open_decision = None if inside == count else undecided
    u = context.first.u
    cotangents = [group.cotangent for group in groups]
    unconfirmed = 0
    for group, fit in zip(groups, sweep_line(context, mode, u, cotangents), strict=True):
        decision = _decide_group(context, u, group, fit)
        if decision.verdict is Verdict.FAIL and unconfirmed < MAX_UNCONFIRMED:
            decision = test.confirmed(u, group.cotangent, decision, fit)
            if decision.verdict is Verdict.FAIL and _fails_elsewhere(test, group, decision):
                return decision
            unconfirmed += 1
        if decision.verdict is not Verdict.PASS:
            open_decision = decision.weakened()
        for name, typical in group.entries.items():
            worst[name] = max(worst.get(name, 0.0), max(decision.bar, abs(decision.error)) / typical)
    if inside == count:
        for name, resolution in worst.items():
            context.record.ledger.compared(name, mode.name, context.precision, resolution)
    words = f"{inside} of {count} outputs were compared in groups of {size}"
    context.record.note(f"{words}: the roundoff of all together hides single entries")
    return open_decision or AGREES


def _decide_group(context: Context, u: Array, group: _Group, fit: SlopeFit) -> Decision:
    scale = error_scale(context, u, group.cotangent, group.entries)
    return decide_beyond_jitter(context, u, group.cotangent, fit, scale)


def _fails_elsewhere(test: DirectionTest, group: _Group, decision: Decision) -> bool:
    """Whether the entry fails alone, and the first conclusive one of a few other directions fails too.

    Needed by `test_products_rounded_to_tf32_are_compared_in_that_precision`.
    """
    if decision.entry is None or decision.entry.verdict is not Verdict.FAIL:
        return False
    context = test.context
    directions = (context.restricted(context.joint_direction()) for _ in range(MAX_DIRECTIONS))
    return _first_conclusive(test.sweep(u, [group.cotangent]) for u in directions) is Verdict.FAIL


def _grouped(context: Context, rows: Sequence[Array], size: int) -> tuple[list[_Group], int]:
    """Groups of this size within each output, or some of them where there are too many; and their number of outputs."""
    problem = context.problem
    most = max(1, min(MAX_GROUPS, MAX_GROUP_BYTES // (8 * (problem.domain.size + problem.codomain.size))))
    cut = [(leaf, some[k : k + size]) for leaf, some in enumerate(rows) for k in range(0, some.shape[0], size)]
    cut = cut[:: max(1, math.ceil(len(cut) / most))]
    groups = _with_typical_entries([_group(context, leaf, some) for leaf, some in cut])
    return groups, sum(int(some.shape[0]) for _, some in cut)


def _shuffled_rows(context: Context, v: Array, part: slice) -> Array:
    """The outputs of one leaf that the cotangent weighs, in random order."""
    xp = namespace(v)
    rows = xp.nonzero(v[part])[0] + part.start
    return rows[xp.argsort(context.problem.random(rows.shape[0], Distribution.NEAR_UNIT))]


def _group_size(context: Context, count: int, undecided: Decision) -> int:
    """How many outputs together have so little roundoff that an error of the size asked for would show."""
    contributions = typical_contributions(context.problem, context.cotangents[0].vjp, context.first.u)
    typical = max(contributions.values(), default=0.0)
    if not typical or not math.isfinite(undecided.bar) or count < 2:
        return 0
    excess = GROUP_MARGIN * undecided.bar / (context.options.resolution * typical)
    return min(count // 2, max(1, int(count / excess**2) if excess > 1.0 else count // FEW_GROUPS))


def _group(context: Context, leaf: int, rows: Array) -> _Group:
    v = context.problem.zeros(context.problem.codomain.size)
    v[rows] = context.cotangents[0].v[rows]
    cotangent = context.cotangent(v)
    weight = math.sqrt(dot(cotangent.v, cotangent.v) / int(rows.shape[0]))
    entries = typical_contributions(context.problem, cotangent.vjp, context.first.u)
    return _Group(leaf, cotangent, weight, entries)


def _with_typical_entries(groups: Sequence[_Group]) -> list[_Group]:
    """A group that hardly varies is compared with the typical entry of all groups of its leaf."""
    squares: dict[tuple[int, str], list[float]] = {}
    for group in groups:
        for name, entry in group.entries.items():
            squares.setdefault((group.leaf, name), []).append((entry / group.weight) ** 2)
    typical = {key: math.sqrt(sum(some) / len(some)) for key, some in squares.items()}
    return [
        replace(
            group,
            entries={
                name: max(entry, group.weight * typical[group.leaf, name])
                for name, entry in group.entries.items()
                if typical[group.leaf, name]
            },
        )
        for group in groups
    ]
