"""Localisation: from a residual to the wrong entry, in a few evaluations instead of one per entry.

A residual v·Δu is a sum over rows and columns of the error Δ. Masking half of v takes one backward pass and tells how
much of the residual each half of the rows contributes; following the larger half leads to a row in log₂(m) passes. The
same with the direction and two evaluations each leads to a column. The entry that is found has the largest
contribution; whether it is outside a tolerance or an error bar is decided by its own difference. `leaf_verdicts` says
which inputs and outputs are wrong.

A value that is not finite makes every sum that contains it not finite, so it is located separately.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from gradvet.core import thresholds
from gradvet.core.context import Context
from gradvet.core.decision import Decision, Entry, ErrorScale, Reason, decide
from gradvet.core.extrapolation import Estimate, fit_slope, sweep_figure
from gradvet.core.finite_differences import Cotangent, middle_step
from gradvet.core.gradient_match import saturated_roundoff
from gradvet.core.line_test import (
    bent_rows,
    decide_beyond_jitter,
    error_scale,
    screen,
    sweep_line,
    typical_contributions,
)
from gradvet.core.modes import Mode
from gradvet.core.problem import Distribution, Problem
from gradvet.core.projections import ProbeDirection, Projections
from gradvet.core.reference_errors import overflow_size
from gradvet.core.results import Verdict
from gradvet.core.vectors import Array, Location, all_finite, dot, first_true, namespace, nan_as_inf, peak, unit, window

Slope = Callable[[Array], tuple[Array, Array]]
"""J u for all rows by a central difference, with one policy's choice of the step, and the displacement of it."""


@dataclass(frozen=True, slots=True)
class EntrySearch:
    """The search for the entry that contributes most to a residual v·(slope - J·displacement).

    With a derivative in reverse mode a row is found by VJPs of masked cotangents; a JVP shows all rows at once.
    """

    mode: Mode
    problem: Problem
    slope_of: Slope
    least: float = 0.0
    """The smallest residual that is searched."""

    def worst_row(self, v: Array, slope: Array, displacement: Array) -> int:
        """The row that contributes most."""
        if not self.mode.by_rows:
            xp, gap = namespace(v), v * (slope - self.problem.jvp(displacement))
            return _largest(xp.where(v != 0.0, gap, xp.zeros_like(gap)))

        def part(start: int, stop: int) -> float:
            some = window(v, slice(start, stop))
            return dot(some, slope) - dot(self.problem.vjp(some), displacement)

        return bisect_sum(part, v.shape[0], part(0, v.shape[0]), self.least)

    def worst_column(self, row: int, u: Array, slope: Array, displacement: Array) -> int:
        """The column that contributes most to the error of a row along u."""
        by_rows = self.mode.by_rows
        vjp = self.problem.vjp(unit(self.problem.zeros(self.problem.codomain.size), row)) if by_rows else None

        def error(change: Array, moved: Array) -> float:
            predicted = float(self.problem.jvp(moved)[row]) if vjp is None else dot(vjp, moved)
            return float(change[row]) - predicted

        def part(start: int, stop: int) -> float:
            return error(*self.slope_of(window(u, slice(start, stop))))

        return bisect_sum(part, u.shape[0], error(slope, displacement), self.least)

    def not_finite(self, projections: Projections) -> tuple[int, int] | None:
        """An entry where the derivative is not finite, if the first projection shows one."""
        direction = projections.probe_directions(1)[0]
        if not self.mode.by_rows:
            row = _first_not_finite(projections.probe_jvps(1)[0])
            return None if row is None else (row, self._column_of(row, direction))
        found = [_first_not_finite(probe.vjp) for probe in projections.probe_cotangents(1)]
        column = next((column for column in found if column is not None), None)
        if column is None:
            return None
        slopes, _ = self.slope_of(unit(self.problem.zeros(self.problem.domain.size), column, direction.step))
        return _largest(slopes), column

    def _column_of(self, row: int, direction: ProbeDirection) -> int:
        """The column that adds most to the slope of a row along a direction."""

        def part(start: int, stop: int) -> float:
            return float(self.slope_of(window(direction.displacement, slice(start, stop)))[0][row])

        return bisect_sum(part, self.problem.domain.size, float(direction.difference[row]))


def locate(projections: Projections, mode: Mode, descents: int = 4, least: float = 0.0) -> list[tuple[int, int]]:
    """Entries (row, column) where the derivative and the differences seem to differ most, and by `least` or more."""
    first = projections.probe_directions(1)[0]
    search = EntrySearch(mode, projections.problem, projections.slope_of, least * first.step)
    found = search.not_finite(projections)
    if found is not None:
        return [found]
    entries: list[tuple[int, int]] = []
    for number in range(descents):
        known = projections.probe_directions(number + 1)
        if number == len(known):  # the basis of few inputs
            break
        direction = known[number]
        row = _first_not_finite(direction.difference)
        try:
            if row is None:
                v = projections.problem.random(projections.problem.codomain.size, Distribution.OFF_ZERO)
                row = search.worst_row(v, direction.difference, direction.displacement)
            column = search.worst_column(row, direction.displacement, direction.difference, direction.displacement)
        except BelowLeastError:
            continue
        if (row, column) not in entries:
            entries.append((row, column))
    return entries


def find_wrong_entry(context: Context, mode: Mode, u: Array, v: Array) -> Entry | None:
    """The entry that contributes most to the residual of v·J·u, decided by a step sweep. Error-bar policy.

    If that is right, the residual may be curvature: in double precision the search is repeated with slopes from which
    a part proportional to the step is removed. Needed by `gate_of_zeros_halved_beside_clamped_values`.
    """
    if not v.shape[0]:
        return None

    def slope_of(u: Array, part: float = 1.0) -> tuple[Array, Array]:
        found = context.wide_difference(u, part)
        return found.odd, found.displacement

    def extrapolated(u: Array) -> tuple[Array, Array]:
        (narrow, moved), (odd, displacement) = slope_of(u, 0.5), slope_of(u)
        return 2.0 * narrow - odd, 2.0 * moved - displacement

    def found_by(slopes: Slope) -> Entry:
        search = EntrySearch(mode, context.problem, slopes)
        slope, displacement = search.slope_of(u)
        row = search.worst_row(v, slope, displacement)
        return decide_entry(context, mode, row, search.worst_column(row, u, slope, displacement))

    entry = found_by(slope_of)
    return found_by(extrapolated) if entry.verdict is Verdict.PASS and context.is_double else entry


def _first_not_finite(vector: Array) -> int | None:
    xp = namespace(vector)
    not_finite = ~xp.isfinite(vector)
    return first_true(not_finite) if bool(xp.any(not_finite)) else None


def _largest(vector: Array) -> int:
    """The index of the largest size in a vector; NaN counts as infinite."""
    xp = namespace(vector)
    return int(xp.argmax(nan_as_inf(xp.abs(vector))))


class BelowLeastError(Exception):
    """The part of a sum that is left is below the least that is searched."""


def bisect_sum(part: Callable[[int, int], float], size: int, whole: float, least: float = 0.0) -> int:
    """Follow the larger half of a sum of at least `least` to one index; `part(start, stop)` is the sum over a range."""
    start, stop = 0, size
    while stop - start > 1:
        if abs(whole) < least:
            raise BelowLeastError
        middle = (start + stop) // 2
        left = part(start, middle)
        right = whole - left
        # True for NaN: the search follows it.
        if not abs(left) < abs(right):
            stop, whole = middle, left
        else:
            start, whole = middle, right
    return start


ROWS_OF_COLUMN = 16
"""Outputs whose slopes are fitted where a column has no finite derivative."""


def decide_entry(context: Context, mode: Mode, row: int, column: int) -> Entry:
    """One entry by a step sweep along its own column; if it seems wrong, by sweeps of smaller step lengths as well.

    A function may oscillate, or its domain end, on a scale that its inputs do not show. At the smaller steps noise may
    dominate: a sharp agreement there counts, disagreement does not.
    """
    size = float(context.lengths[column])
    entry = _swept(context, mode, (row, column), size)
    is_resolved = entry.error <= context.asked_resolution * max(abs(entry.derivative), abs(entry.numerical))
    if entry.verdict is Verdict.PASS and context.is_double and not is_resolved:
        # Wider steps may show more: needed by `square_through_1e12_halved`.
        entry = _swept(context, mode, (row, column), size, few=False)
    lengths = _finer_lengths(context, entry, size)
    while entry.verdict is not Verdict.PASS and (length := next(lengths, None)) is not None:
        finer = _swept(context, mode, (row, column), length)
        bar = thresholds.CLEAR * finer.error
        is_sharp = bar < abs(entry.derivative - entry.numerical)
        # An error beyond the bar that no step shows twice is noise, unless it is below that of numbers of size one.
        # Needed by `sine_behind_1e8_halved`, and by `certain_loss_with_logits`.
        inside = thresholds.ROUNDOFFS * context.eps / length
        agrees = finer.reason is Reason.KINK or abs(finer.derivative - finer.numerical) <= max(bar, inside)
        entry = finer if finer.verdict is Verdict.PASS and is_sharp and agrees else entry
    return entry


def _finer_lengths(context: Context, entry: Entry, size: float) -> Iterator[float]:
    """Smaller step lengths for an entry. May call the function.

    These are the length over which a right derivative changes the output as much as it changed at all, needed by
    `test_right_kernel_of_one_dtype_does_not_fail`; and a much smaller one, needed by `asin_at_1e_9_from_one`.
    """
    step = middle_step(context.eps)
    if entry.derivative:
        change = context.wide_difference(context.column(entry.column)).odd[entry.row]
        length = abs(step * float(change) / entry.derivative)
        if 0.0 < length < step * size / 2.0:
            yield length
    if context.is_double and context.computes_in_io_dtype:
        yield thresholds.NARROW_FACTOR * size


def _swept(context: Context, mode: Mode, place: tuple[int, int], size: float, *, few: bool = True) -> Entry:
    problem = context.problem
    row, column = place
    u, cotangent = unit(problem.zeros(problem.domain.size), column, size), context.row(row)
    step_sweep = context.sweep_steps(u, [cotangent], partial(mode.change, context), few=few)[0]
    fit, value = fit_slope(step_sweep), float(mode.slope(context, cotangent, u))
    granted = context.options.accuracy * abs(value)
    saturated = saturated_roundoff(context, cotangent.v, size) if size == float(context.lengths[column]) else 0.0
    scale = ErrorScale(abs(value), abs(value) or math.inf, context.eps, granted, 1.0, saturated, saturated)
    decision = decide(fit, scale, math.inf)
    return Entry(
        problem.codomain.locate(row),
        problem.domain.locate(column),
        value / size,
        (value + fit.error.value) / size,
        fit.error.error / size,
        decision.verdict,
        decision.reason,
        row,
        column,
        sweep_figure(step_sweep, fit, size),
    )


def slope_of_column(context: Context, column: int) -> Estimate | None:
    """The largest slope of the outputs along one coordinate; None if it is not finite for one of them.

    Some of the outputs that change are fitted one by one: a sum would hide which of them has an infinite slope.
    """
    problem = context.problem
    u = context.column(column)
    change = context.wide_difference(u)
    if not float(change.displacement[column]):
        # Next to the smallest number of a format rounding takes the step away: move by the whole length.
        u = u / change.step
        change = context.wide_difference(u)
    changed = namespace(u).nonzero((change.even != 0.0) | (change.odd != 0.0))[0]
    units = [Cotangent(unit(problem.zeros(problem.codomain.size), int(row)), u) for row in changed[:ROWS_OF_COLUMN]]
    fits = [fit_slope(step_sweep) for step_sweep in context.sweep_steps(u, units, lambda *_: 0.0)]
    if any(fit.is_steep or fit.jumps or not math.isfinite(fit.error.error) for fit in fits):
        return None
    largest = max((fit.error for fit in fits), key=lambda error: abs(error.value), default=Estimate(0.0, 0.0))
    size = float(u[column]) or 1.0
    return replace(largest, value=largest.value / size, error=largest.error / size)


MAX_NONFINITE = 4
"""Number of columns without a finite derivative that are tested."""


def nonfinite_derivative(context: Context, mode: Mode, columns: Array) -> Decision:
    """Some columns in which the derivative is not finite: FAIL where the function has a slope. Calls both."""
    missing = False
    limit = 1 if context.is_generated else MAX_NONFINITE
    for column in [int(place) for place in namespace(columns).nonzero(columns)[0][:limit]]:
        if mode.is_finite_at(context, column):
            continue
        missing = True
        where = context.problem.domain.locate(column)
        slope = slope_of_column(context, column)
        if slope is not None and abs(slope.value) + slope.error > overflow_size(context.problem.eps):
            context.record.note(f"the derivative at {where} is too large for this precision: {slope.value:.3g}")
        elif slope is not None:
            entry = Entry(None, where, math.nan, slope.value, slope.error, column=column)
            return Decision(Verdict.FAIL, Reason.NOT_FINITE, entry)
        else:
            context.record.note(f"neither the derivative nor the slope of the function is finite at {where}")
    return Decision(Verdict.INCONCLUSIVE if missing else Verdict.PASS, Reason.NOT_FINITE)


def nonfinite_tangent(context: Context, mode: Mode) -> Decision | None:
    """A JVP that is not finite in an output with a finite slope.

    Needed by `test_tangent_that_is_not_finite_fails_and_is_named_by_its_output`, which is inconclusive without it.
    """
    slope, xp = context.slope_of(context.first), namespace(context.first.odd)
    residuals = mode.row_residuals(context, slope, context.first.displacement)
    if residuals is None or all_finite(residuals):
        return None
    bad = xp.isfinite(slope) & ~xp.isfinite(residuals)
    if not bool(xp.any(bad)):
        return None
    # Squares overflow inside the framework's own rules: `test_forward_mode_that_overflows_does_not_fail`.
    overflows = context.problem.rules.are_builtin and not context.is_double
    if context.scaling.excluded is not None or overflows:
        return Decision(Verdict.INCONCLUSIVE, Reason.NOT_FINITE)
    row = first_true(bad)
    output, place = context.problem.codomain.locate(row), Location(0, "the direction", "")
    entry = Entry(output, place, math.nan, float(slope[row]), math.nan)
    return Decision(Verdict.FAIL, Reason.NOT_FINITE, entry)


MAX_LEAVES = 8
"""Largest number of inputs, and of outputs, that are compared one by one after a failure."""


def leaf_verdicts(context: Context, mode: Mode) -> dict[str, Verdict]:
    """For each input and each output, by name, whether its derivatives are right, one pair of them at a time.

    An input moves alone, and a cotangent has one output alone. FAIL if one of the pairs disagrees, PASS if all agree at
    the resolution asked for; such an input is entered in the ledger. Calls the function and the VJP; for one pair, for
    many, in low precision and at generated points it does not.
    """
    problem, domain, codomain = context.problem, context.problem.domain, context.problem.codomain
    most = max(len(domain.leaves), len(codomain.leaves))
    if not 1 < most <= MAX_LEAVES or not context.is_double or context.is_generated:
        return {}
    found: dict[str, list[Verdict]] = {leaf.name: [] for leaf in (*domain.leaves, *codomain.leaves)}
    v, joint = problem.random(codomain.size, Distribution.NEAR_UNIT), context.joint_direction()
    cotangents = [context.cotangent(window(v, rows)) for rows in codomain.slices]
    for leaf, part in domain.sections:
        u = context.restricted(window(joint, part))
        if context.out_of_budget or not peak(u):
            continue
        pairs = _screened_pairs(context, mode, u, cotangents) or _swept_pairs(context, mode, u, cotangents)
        for output, (verdict, _) in zip(codomain.leaves, pairs, strict=True):
            found[leaf.name].append(verdict)
            found[output.name].append(verdict)
        if _combined(found[leaf.name]) is Verdict.PASS:
            context.record.compared(leaf.name, mode.name, context.precision, max(resolution for _, resolution in pairs))
    return {name: _combined(verdicts) for name, verdicts in found.items()}


Pairs = list[tuple[Verdict, float]]
"""For each cotangent, the verdict about v·J·u and its resolution."""


def _screened_pairs(context: Context, mode: Mode, u: Array, cotangents: Sequence[Cotangent]) -> Pairs:
    """Agreement with all cotangents by one difference; none where a sweep is needed for one of them."""
    pairs, difference = [], context.difference(u)
    if bent_rows(context, difference) is not None:
        return []
    for cotangent in cotangents:
        residual, allowed = screen(context, mode, cotangent, difference.displacement, difference.odd)
        typical = max(typical_contributions(context.problem, cotangent.vjp, u).values())
        if not (residual <= allowed <= context.options.resolution * typical):
            return []
        pairs.append((Verdict.PASS, allowed / typical if typical else 0.0))
    return pairs


def _swept_pairs(context: Context, mode: Mode, u: Array, cotangents: Sequence[Cotangent]) -> Pairs:
    pairs = []
    for cotangent, fit in zip(cotangents, sweep_line(context, mode, u, cotangents), strict=True):
        contributions = typical_contributions(context.problem, cotangent.vjp, u)
        scale = error_scale(context, u, cotangent, contributions)
        decision = decide_beyond_jitter(context, u, cotangent, fit, scale)
        pairs.append((decision.verdict, max(decision.bar, abs(decision.error)) / (scale.typical or math.inf)))
    return pairs


def _combined(verdicts: Sequence[Verdict]) -> Verdict:
    if Verdict.FAIL in verdicts:
        return Verdict.FAIL
    return Verdict.PASS if verdicts and all(one is Verdict.PASS for one in verdicts) else Verdict.INCONCLUSIVE
