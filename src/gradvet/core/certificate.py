"""Slow mode's promise at fast mode's price: no entry outside the tolerance, shown by a few random projections.

If an entry were off by more than the absolute tolerance δ, then k random projections of the difference would all stay
below t only with the probability that `probes` gives. So: add projections until what they leave is small enough
compared with δ, or give up. No model of the noise is needed. Noise can only make the residuals larger, and then the
entries are compared one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property

from gradvet.core.miss_probability import FINEST, MOST, Plan, Stage, stages
from gradvet.core.projections import (
    FAR_SCHEME,
    LONG,
    LONGER,
    NARROW,
    NEAR_SCHEME,
    NEAREST,
    SCHEMES,
    SHORT,
    STRICT,
    WITHIN,
    OutOfReachError,
    Projections,
)
from gradvet.core.vectors import namespace

PREMISE = 0.1
"""A certificate speaks about what the entrywise comparison would say. That comparison divides by the nominal step, so
the step must survive rounding to within this part of the relative tolerance; otherwise the entries are compared."""

GRAIN = 0.1
"""A number that is moved comes to lie on a grid of its precision. Where that is no finer than such a part of what the
projections are to resolve, they would leave nothing more often than numbers without a grid."""

EXACT = 1e-9
"""A step that is this true is good enough under any relative tolerance."""

FIRST, REST = 0.85, 0.5
"""How the limit on the miss probability is shared: most for the first walk, then half of the rest for each."""

GROWTH = 2.0
"""More probes will show a larger residual than few; a plan is chosen with that in mind."""

PATIENCE = 2
"""If more directions than so many beyond the fewest are called for, another way to walk is tried first."""

FURTHER = (LONGER, FAR_SCHEME)
"""How to walk where roundoff would spoil a short walk."""

TINY = 16
"""With so few inputs to ask how best to walk takes as long as to walk."""

MANY = 2_000
"""From so many outputs on their roundoff together matters even if the limit is not strict."""

ROUNDOFF = 2.0**-53
"""Of a number in the precision of the vectors; if it was made in a coarser one, the first walk shows it."""

NOISY = 2.0
"""Noise that is expected may turn out so many times as large."""

HOPE = 30.0
"""Noise that is expected may turn out so many times smaller."""

COUPLED = 8
"""If there are so many inputs to an output, it will depend on many of them, and bend when all move together."""

BENDING = ((20_000, LONG), (200_000, NEAR_SCHEME), (math.inf, NEAREST))
"""How to walk first then, with up to so many inputs: the more there are the sooner it bends."""

BENDING_AT_EASE = ((20_000, WITHIN), (200_000, NEAR_SCHEME), (math.inf, NARROW))
"""The same where the limit on the miss probability is not strict: fewer evaluations do."""

WALKS = 8
"""Up to so many columns are compared one by one rather than looked at along more directions."""

SEEN = 0.5
"""Where every entry is seen, agreement to this part of the absolute tolerance needs no second look."""

SEEN_WHOLE = (Stage(Plan(None, None), SEEN),)

Residual = Callable[[Projections, Plan], float]
"""The largest disagreement that the probes of a plan show."""


def reverse_residual(projections: Projections, plan: Plan) -> float:
    """|v·D - (Jᵀv)·u| over all pairs of directions and codirections."""
    directions = projections.probe_directions(plan.directions)
    return projections.largest_residual(projections.probe_cotangents(plan.cotangents), directions) / directions[0].step


def row_residual(projections: Projections) -> float:
    """The same for a single row, pulled alone: a derivative need not be linear in its codirection if it is wrong."""
    index = projections.options.seed % projections.problem.codomain.size
    direction = projections.probe_directions(1)[0]
    gap = float(direction.difference[index]) - float(projections.row(index) @ direction.displacement)
    return abs(gap) / direction.step


def forward_residual(projections: Projections, plan: Plan) -> float:
    """|D - Ju| in its worst entry: forward mode shows every row, so no codirection is needed."""
    worst = 0.0
    directions = projections.probe_directions(plan.directions)
    for direction, jvp in zip(directions, projections.probe_jvps(plan.directions), strict=True):
        xp = namespace(direction.difference)
        worst = larger(worst, float(xp.max(xp.abs(direction.difference - jvp))) / direction.step)
    return worst


def certify(projections: Projections, residual: Residual) -> float | None:
    """The miss probability of the certificate, or None if the projections cannot show that all entries agree."""
    problem, options = projections.problem, projections.options
    if options.exhaustive or not options.tolerance.absolute:
        return None
    if not problem.independent or not _true_to_step(projections):
        return None
    search = CertificateSearch(projections, residual)
    scheme = search.first_scheme()
    # Another walk costs up to four evaluations a direction; few columns are sooner compared one by one.
    ahead = [scheme, *range(len(SCHEMES))] if problem.domain.size > WALKS else [scheme]
    needs = []
    while ahead:
        scheme = ahead[0]
        needs.append((search.try_scheme(scheme, search.patience), scheme))
        if not needs[-1][0]:
            return search.miss
        ahead = search.narrowed(scheme, ahead)
    # No way was good enough for a few directions: those that may be for more get as many as there are, the best first.
    most = min(MOST, max(WALKS, problem.domain.size))
    for need, scheme in sorted(needs):
        if need <= most and not search.try_scheme(scheme, most):
            return search.miss
    return None


class CertificateSearch:
    """One search for a plan that resolves what its own probes leave."""

    def __init__(self, projections: Projections, residual: Residual) -> None:
        problem, options = projections.problem, projections.options
        self.projections, self.residual = projections, residual
        self._unspent = 1.0
        self._left = math.inf
        # A number is off by more than δ only if one of its coordinates is off by more than δ/√parts.
        self.detectable = options.tolerance.absolute / math.sqrt(max(problem.domain.parts, problem.codomain.parts))
        self.columns_seen = projections.sees_all_columns
        self.rows_seen = residual is forward_residual or projections.sees_all_rows
        self.miss = 0.0 if self.columns_seen and self.rows_seen else options.miss

    @property
    def patience(self) -> int:
        """How many directions are worth walking before another way is tried."""
        stages = self._stages(FIRST)
        return (stages[_first_able(stages, 0, FINEST)].plan.directions or 1) + PATIENCE

    def try_scheme(self, scheme: int, limit: int) -> int:
        """Zero if the directions walked in this way show it; else how many seemed to be needed."""
        self.projections.use_scheme(scheme)
        share = (FIRST if self._unspent == 1.0 else REST) * self._unspent
        self._unspent -= share
        stages, number = self._stages(share), 0
        while True:
            try:
                left = self._left = self.residual(self.projections, stages[number].plan) / self.detectable
            except OutOfReachError:
                self._left = math.inf
                return MOST + 1
            if left <= stages[number].ratio and self._is_fine(scheme, stages[number].ratio):
                return 0 if self._rows_agree() else MOST + 1
            number = _first_able(stages, number + 1, left)
            likely = _first_able(stages, number, GROWTH * left)
            needed = stages[likely].plan.directions or 0 if likely < len(stages) else MOST + 1
            if needed > limit:
                return needed

    def _is_fine(self, scheme: int, ratio: float) -> bool:
        """Whether rounding leaves directions as random as it takes to leave so little by chance."""
        if self.columns_seen:
            return True
        projections = self.projections
        return ratio > 0.0 and projections.problem.keeps(SCHEMES[scheme][1] * projections.options.step, GRAIN * ratio)

    def first_scheme(self) -> int:
        """How to walk first: further than usual where roundoff or curvature will ask for it."""
        rows, columns = self.projections.problem.codomain.size, self.projections.problem.domain.size
        at_ease = self.projections.options.miss > STRICT
        if columns > COUPLED * rows:
            scheme = next(scheme for most, scheme in (BENDING_AT_EASE if at_ease else BENDING) if columns <= most)
            return scheme if scheme != WITHIN or self._is_above_noise(scheme, self._aims()[0]) else NEAR_SCHEME
        if columns <= TINY or (at_ease and rows < MANY):
            return SHORT
        aims = self._aims()
        # A codirection more makes up for some noise, and takes less than the longer walks.
        if self._is_above_noise(SHORT, aims[-1]) or not math.isfinite(self._noise):
            return SHORT
        for scheme in FURTHER:
            if self._is_above_noise(scheme, aims[0]):
                return scheme
        return SHORT if self._is_above_noise(SHORT, self._aims(1)[0]) else FAR_SCHEME

    def _aims(self, more: int = 0) -> list[float]:
        """How little the plans with the fewest directions that can succeed may leave, or those with more directions."""
        able = [stage for stage in self._stages(FIRST) if stage.ratio]
        fewest = (able[0].plan.directions or 0) + more
        return [stage.ratio for stage in able if (stage.plan.directions or fewest) == fewest]

    def _is_above_noise(self, scheme: int, aim: float) -> bool:
        return self._noise <= aim * SCHEMES[scheme][1]

    def narrowed(self, scheme: int, ahead: Sequence[int]) -> list[int]:
        """Of the ways ahead those that do not make worse what made this one fail.

        Where the function bent that is no longer one, where there was nothing but roundoff no shorter one.
        """
        length = SCHEMES[scheme][1]
        bent = not self._left * length <= self._noise
        shortest = self._noise / (HOPE * self._stages(FIRST)[-1].ratio)
        promising = [
            other
            for other in ahead
            if other != scheme
            and (SCHEMES[other][1] <= 2.0 * length if bent else SCHEMES[other][1] >= length)
            and SCHEMES[other][1] >= shortest
        ]
        return sorted(promising, key=lambda other: (other < scheme, other))

    @cached_property
    def _noise(self) -> float:
        """What roundoff will leave at most of a walk as long as the entrywise step, as a part of what is to be seen."""
        problem = self.projections.problem
        value = problem.value[: problem.codomain.size] if problem.nondifferentiable.size else problem.value
        resolved = self.projections.options.step * self.detectable
        return NOISY * ROUNDOFF * math.sqrt(float(value @ value)) / resolved if resolved else math.inf

    def _stages(self, share: float) -> tuple[Stage, ...]:
        if self.columns_seen and self.rows_seen:
            return SEEN_WHOLE
        return stages(share * self.miss, columns_seen=self.columns_seen, rows_seen=self.rows_seen)

    def _rows_agree(self) -> bool:
        """Whether a row that is pulled alone agrees too, as it must if the derivative is linear; asked if strict."""
        projections = self.projections
        strict = self.residual is reverse_residual and projections.options.miss <= STRICT
        if strict:
            projections.linear = row_residual(projections) <= SEEN * self.detectable
        return projections.linear


def _first_able(stages: Sequence[Stage], start: int, left: float) -> int:
    """The number of the first stage from there on that can bear what is left; one past the last if there is none."""
    while start < len(stages) and not left <= stages[start].ratio:
        start += 1
    return start


def _true_to_step(projections: Projections) -> bool:
    options = projections.options
    # NaN (an input that is not a number) is not true to anything.
    return projections.problem.keeps(options.step, max(PREMISE * options.tolerance.relative, EXACT))


def larger(a: float, b: float) -> float:
    """The larger of two, or NaN if either is NaN: what is not a number never counts as small."""
    return a if a != a or b <= a else b
