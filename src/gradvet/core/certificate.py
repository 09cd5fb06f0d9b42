"""Slow mode's promise at fast mode's price: no entry outside the tolerance, shown by a few random projections.

If an entry were off by more than the absolute tolerance δ, then k random projections of the difference would all stay
below t only with the probability that `probes` gives. So: add projections until what they leave is small enough
compared with δ, or give up. No model of the noise is needed. Noise can only make the residuals larger, and then the
entries are compared one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import array_api_compat

from gradvet.core.experiment import Experiment
from gradvet.core.probes import MOST, resolving_ratio

PREMISE = 0.1
"""A certificate speaks about what the entrywise comparison would say. That comparison divides by the nominal step, so
the step must survive rounding to within this part of the relative tolerance; otherwise the entries are compared."""

EXACT = 1e-9
"""A step that is this true is good enough under any relative tolerance."""

WALKS = 8
"""Up to so many columns are compared one by one rather than looked at along more directions."""

SEEN = 0.5
"""Where every entry is seen, agreement to this part of the absolute tolerance needs no second look."""

Residual = Callable[[Experiment, int], float]
"""The largest disagreement that so many probes show."""


def reverse_residual(experiment: Experiment, number: int) -> float:
    """|v·D - (Jᵀv)·u| over all pairs of so many directions and codirections."""
    directions = experiment.directions(number)
    codirections = experiment.codirections(number)
    step = directions[0].step
    if len(directions) == len(codirections) == 1:
        right, left = directions[0], codirections[0]
        return abs(float(left.v @ right.difference) - float(left.pulled @ right.displacement)) / step
    xp = array_api_compat.array_namespace(directions[0].difference)
    V, W = xp.stack([probe.v for probe in codirections]), xp.stack([probe.pulled for probe in codirections])
    D, U = xp.stack([probe.difference for probe in directions]), xp.stack([probe.displacement for probe in directions])
    return float(xp.max(xp.abs(V @ D.T - W @ U.T))) / step


def forward_residual(experiment: Experiment, number: int) -> float:
    """|D - Ju| in its worst entry: forward mode shows every row, so no codirection is needed."""
    worst = 0.0
    for direction, pushed in zip(experiment.directions(number), experiment.pushes(number), strict=True):
        xp = array_api_compat.array_namespace(direction.difference)
        worst = _larger(worst, float(xp.max(xp.abs(direction.difference - pushed))) / direction.step)
    return worst


def certify(experiment: Experiment, residual: Residual) -> float | None:
    """The miss probability of the certificate, or None if the projections cannot show that all entries agree."""
    if not experiment.problem.independent or not _true_to_step(experiment):
        return None
    sampled = (not experiment.sees_all_columns) + (residual is reverse_residual and not experiment.sees_all_rows)
    found = _attempt(experiment, residual, sampled)
    # Another walk costs four evaluations a direction; few columns are sooner compared one by one.
    while found is None and experiment.problem.domain.size > WALKS and experiment.restride():
        found = _attempt(experiment, residual, sampled)
    return found


def _attempt(experiment: Experiment, residual: Residual, sampled: int) -> float | None:
    """Probes are added in the number that the residual so far calls for, until they suffice or are too many.

    `sampled` is how many sides of the Jacobian, of two, are seen through random combinations only.
    """
    options = experiment.options
    # A complex number is off by more than δ only if one of its two coordinates is off by more than δ/√2.
    detectable = options.tolerance.absolute / math.sqrt(2.0)
    if not detectable:
        return None
    number = 1
    while True:
        ratio = residual(experiment, number) / detectable
        if not sampled:
            return 0.0 if ratio <= SEEN else None
        enough = _number(options.miss, ratio, sampled == 2)
        if enough is not None and enough > max(WALKS, experiment.problem.domain.size):
            return None
        if enough is None or enough <= number:
            return enough and options.miss
        number = enough


def _number(miss: float, ratio: float, sampled_both_sides: bool) -> int | None:
    """How many probes resolve this ratio. They are asked several times; the shares ½ + ¼ + ... keep the sum of all ways
    to miss below the limit."""
    for number in range(1, MOST + 1):
        if ratio <= resolving_ratio(miss / 2**number, number, sampled_both_sides=sampled_both_sides):
            return number
    return None


def _true_to_step(experiment: Experiment) -> bool:
    options = experiment.options
    # NaN (an input that is not a number) is not true to anything.
    return experiment.problem.coarseness(options.step) <= max(PREMISE * options.tolerance.relative, EXACT)


def _larger(a: float, b: float) -> float:
    """The larger of two, or NaN if either is NaN: what is not a number never counts as small."""
    return b if not b <= a else a
