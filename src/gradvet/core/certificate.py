"""Tolerance policy, slow mode: the certificate, a proof by random projections that no entry exceeds the tolerance.

If an entry were off by more than the absolute tolerance δ, the residuals of k random projections would all be below t
only with the probability that `miss_probability` gives. Projections are added until their residuals are small enough
compared with δ, or until the evaluations that the certificate may cost are spent. No model of the noise is needed:
noise makes residuals larger, and then the entries are compared one by one. The constants of this module decide how
many evaluations a certificate costs, and not which errors it misses.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from itertools import pairwise

from gradvet.core import thresholds
from gradvet.core.modes import Mode
from gradvet.core.probe_plans import FINEST, MOST, Plan, spent, stages
from gradvet.core.projections import NEAR_SCHEME, SCHEMES, SHORT, OutOfReachError, Projections
from gradvet.core.vectors import namespace, norm

FIRST_SHARE, LATER_SHARE = 0.85, 0.5
"""Share of the miss probability for the first scheme, and of the remainder for each later one."""

GROWTH = 2.0
"""Expected growth of the largest residual when probes are added; a plan is chosen with a margin of this factor."""

EXTRA_DIRECTIONS = 2
"""Directions beyond the fewest that are evaluated before another scheme is tried."""

MIN_COUPLED_INPUTS = 8
"""Inputs per output from which an output is assumed to depend on many inputs, so that curvature along a joint direction
is large."""

MAX_HELD_VECTORS, MAX_HELD_NUMBERS = 9, 6_250_000
"""Directions and cotangents that are held at a time: this number, or as many as have no more than these elements (50
MB)."""

MAX_OUTPUTS_BY_ROWS = 4
"""Outputs of which the first and the last row are compared by backward passes of their own."""

FEW_ROWS = 4
"""Up to this many rows, a comparison of all of them takes as few passes as one by random cotangents."""

FEW_COLUMNS = 8
"""Up to this many columns are compared one by one rather than by a second scheme."""


def reverse_residual(projections: Projections, plan: Plan) -> float:
    """The largest |v·D - (Jᵀv)·u| over all pairs of directions and cotangents of a plan."""
    directions = projections.probe_directions(plan.directions)
    return projections.largest_residual(projections.probe_cotangents(plan.cotangents), directions) / directions[0].step


def row_residual(projections: Projections) -> float:
    """The same for single rows, each by a backward pass of its own: a wrong derivative may be nonlinear in v.

    A backward that skips zero rows of grad_output and forgets where they were is right for one of these rows at most:
    needed by `sine_of_active_rows_not_scattered_back` and `squash_stops_at_first_empty_row`.
    """
    direction, worst = projections.probe_directions(1)[0], 0.0
    for index in _single_rows(projections):
        gap = float(direction.difference[index]) - float(projections.row(index) @ direction.displacement)
        worst = larger(worst, abs(gap) / direction.step)
    return worst


def _single_rows(projections: Projections) -> set[int]:
    """A random row; for rules that are not builtin, the first and the last one of each output instead.

    Of few rows the last one of each output, so that the passes are not more than those of all rows.
    """
    problem = projections.problem
    if not problem.is_plain or problem.rules.are_builtin:
        return {projections.options.seed % problem.codomain.size}
    outputs = [(first, end) for first, end in pairwise(problem.codomain.offsets) if end > first]
    last = {end - 1 for _, end in outputs[:MAX_OUTPUTS_BY_ROWS]}
    return last if problem.codomain.size <= FEW_ROWS else last | {first for first, _ in outputs[:MAX_OUTPUTS_BY_ROWS]}


def forward_residual(projections: Projections, plan: Plan) -> float:
    """|D - Ju| in its worst entry: forward mode shows every row, so no cotangent is needed."""
    worst = 0.0
    directions = projections.probe_directions(plan.directions)
    for direction, jvp in zip(directions, projections.probe_jvps(plan.directions), strict=True):
        xp = namespace(direction.difference)
        worst = larger(worst, float(xp.max(xp.abs(direction.difference - jvp))) / direction.step)
    return worst


def certify(
    projections: Projections, mode: Mode, evaluations: float = math.inf, in_doubt: float = math.inf
) -> float | None:
    """The miss probability of the certificate, or None if the projections cannot show that all entries agree.

    Calls the function and its derivative at most about as often as `evaluations` says, and at most as often as
    `in_doubt` says as long as no residual is within the detectable error.
    """
    problem, options = projections.problem, projections.options
    if options.exhaustive or not options.tolerance.absolute or not evaluations:
        return None
    if not problem.independent or not is_true_to_step(projections):
        return None
    search = CertificateSearch(projections, mode, evaluations, in_doubt)
    scheme = search.first_scheme()
    # A scheme takes up to four evaluations per direction; comparing few columns one by one takes fewer.
    ahead = [scheme, *range(len(SCHEMES))] if problem.domain.size > FEW_COLUMNS else [scheme]
    needs = []
    while ahead:
        scheme = ahead[0]
        needs.append((search.try_scheme(scheme, search.first_limit), scheme))
        if not needs[-1][0]:
            return search.miss
        ahead = search.narrowed(scheme, ahead)
    # No scheme certified with few directions: try more directions, beginning with the scheme that needs the fewest.
    most = min(MOST, max(FEW_COLUMNS, problem.domain.size))
    for need, scheme in sorted(needs):
        if need <= most and not search.try_scheme(scheme, most):
            return search.miss
    return None


class CertificateSearch:
    """One search for a scheme and a plan whose residuals certify."""

    def __init__(
        self, projections: Projections, mode: Mode, evaluations: float = math.inf, in_doubt: float = math.inf
    ) -> None:
        problem, options = projections.problem, projections.options
        self.projections, self.mode = projections, mode
        self.residual = reverse_residual if mode.by_rows else forward_residual
        self._unspent = 1.0
        self._left = math.inf
        self._last, self._last_in_doubt = spent(problem) + evaluations, spent(problem) + in_doubt
        """The cost of the problem at which the search ends, and that as long as it has shown no agreement."""
        # A number is off by more than δ only if one of its coordinates is off by more than δ/√parts.
        self.detectable = options.tolerance.absolute / math.sqrt(max(problem.domain.parts, problem.codomain.parts))
        self.columns_seen = projections.sees_all_columns
        self.rows_seen = not mode.by_rows or projections.sees_all_rows
        self.miss = 0.0 if self.columns_seen and self.rows_seen else options.miss

    @property
    def first_limit(self) -> int:
        """Directions that are evaluated before another scheme is tried."""
        stages = self._stages(FIRST_SHARE)
        return (stages[_first_with_ratio(stages, 0, FINEST)].directions or 1) + EXTRA_DIRECTIONS

    def try_scheme(self, scheme: int, limit: int) -> int:
        """Zero if directions evaluated by this scheme certify; else the number that seems to be needed."""
        self.projections.use_scheme(scheme)
        share = (FIRST_SHARE if self._unspent == 1.0 else LATER_SHARE) * self._unspent
        self._unspent -= share
        stages, number = self._stages(share), 0
        feasible = _first_with_ratio(stages, 0, FINEST)
        while self._is_affordable(scheme, stages[number], stages[max(number, feasible)]):
            try:
                left = self._left = self.residual(self.projections, stages[number]) / self.detectable
            except OutOfReachError:
                self._left = math.inf
                break
            if left <= stages[number].ratio and self._is_fine(scheme, stages[number].ratio):
                return 0 if self._rows_agree() else MOST + 1
            number = _first_with_ratio(stages, number + 1, left)
            likely = _first_with_ratio(stages, number, GROWTH * left)
            needed = stages[likely].directions or 0 if likely < len(stages) else MOST + 1
            if needed > limit:
                return needed
        return MOST + 1

    def _is_affordable(self, scheme: int, plan: Plan, certifying: Plan) -> bool:
        """Whether a plan, and the one that may certify, are within the limits on memory and on evaluations."""
        problem = self.projections.problem
        held = (certifying.directions or 1) + (certifying.cotangents or 1)
        if held > MAX_HELD_VECTORS and held * (problem.domain.size + problem.codomain.size) > MAX_HELD_NUMBERS:
            return False
        limit = self._last if self._left <= 1.0 else self._last_in_doubt
        return self._cost(scheme, certifying) <= self._last and self._cost(scheme, plan) <= limit

    def _cost(self, scheme: int, plan: Plan) -> int:
        """The cost of the problem after the probes of a plan."""
        problem = self.projections.problem
        missing = max(0, (plan.directions or problem.domain.size) - self.projections.evaluated)
        per_direction = sum(map(bool, SCHEMES[scheme][0][0])) + (not self.mode.by_rows)
        known = self.projections.known_vjps
        cotangents = 0 if self.rows_seen else max(0, (plan.cotangents or 0) - known)
        # The first cotangent takes a pass for each output.
        first = 0 if known or not cotangents else len(problem.codomain.leaves) - 1
        return spent(problem) + missing * per_direction + cotangents + first

    def _is_fine(self, scheme: int, ratio: float) -> bool:
        return is_fine_enough(self.projections, SCHEMES[scheme][1], ratio)

    def first_scheme(self) -> int:
        """The scheme to begin with: curvature along a joint direction is large where outputs depend on many inputs."""
        rows, columns = self.projections.problem.codomain.size, self.projections.problem.domain.size
        return NEAR_SCHEME if columns > MIN_COUPLED_INPUTS * rows else SHORT

    def narrowed(self, scheme: int, ahead: Sequence[int]) -> list[int]:
        """The schemes ahead without those that make worse what made this one fail.

        After a failure by curvature these are the longer ones, after one by roundoff the shorter ones.
        """
        problem, length = self.projections.problem, SCHEMES[scheme][1]
        # Roundoff of v·f; of a residual it leaves this over the length of the step.
        roundoff = sys.float_info.epsilon * norm(problem.value[: problem.codomain.size])
        is_bent = not self._left * length * self.projections.options.step * self.detectable <= roundoff
        promising = [
            other
            for other in ahead
            if other != scheme and (SCHEMES[other][1] <= 2.0 * length if is_bent else SCHEMES[other][1] >= length)
        ]
        return sorted(promising, key=lambda other: (other < scheme, other))

    def _stages(self, share: float) -> tuple[Plan, ...]:
        if self.columns_seen and self.rows_seen:
            return (Plan(None, None, thresholds.TOLERANCE_PART),)
        return stages(share * self.miss, columns_seen=self.columns_seen, rows_seen=self.rows_seen)

    def _rows_agree(self) -> bool:
        """Whether the backward pass of a single row agrees too, as it must if the derivative is linear."""
        projections = self.projections
        if self.mode.by_rows and projections.is_strict:
            projections.linear = row_residual(projections) <= thresholds.TOLERANCE_PART * self.detectable
        return projections.linear


def _first_with_ratio(stages: Sequence[Plan], start: int, left: float) -> int:
    """Number of the first stage from `start` on whose ratio is at least `left`; one past the last if there is none."""
    while start < len(stages) and not left <= stages[start].ratio:
        start += 1
    return start


def is_fine_enough(projections: Projections, width: float, ratio: float) -> bool:
    """Whether the inputs' format is fine compared with the step.

    On a coarse grid, small residuals are more frequent than for continuous directions.
    """
    if projections.sees_all_columns:
        return True
    step = width * projections.options.step
    return ratio > 0.0 and projections.problem.step_rounding(step) <= thresholds.TOLERANCE_PART * ratio


def is_true_to_step(projections: Projections) -> bool:
    """Whether the step survives rounding; false for NaN inputs.

    Single entries are divided by the nominal step, so only then do projections show the same slopes.
    """
    tolerance = projections.options.tolerance
    allowed = thresholds.TOLERANCE_PART * (tolerance.relative + tolerance.absolute)
    return projections.problem.step_rounding(projections.options.step) <= allowed


def larger(a: float, b: float) -> float:
    """The larger of two, or NaN if either is NaN: NaN never counts as small."""
    return a if a != a or b <= a else b
