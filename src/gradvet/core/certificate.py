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

Residual = Callable[[Experiment, int], float]
"""The largest disagreement that probe number k adds to those before it."""


def reverse_residual(experiment: Experiment, number: int) -> float:
    """|v·D - (Jᵀv)·u| over the pairs in which either u or v is new."""
    directions = [experiment.direction(i) for i in range(number + 1)]
    codirections = experiment.codirections(number + 1)
    worst = 0.0
    for i, right in enumerate(directions):
        for j, left in enumerate(codirections):
            if i == number or j == number:
                gap = float(left.v @ right.difference) - float(left.pulled @ right.displacement)
                worst = _larger(worst, abs(gap) / right.step)
    return worst


def forward_residual(experiment: Experiment, number: int) -> float:
    """|D - Ju| in its worst entry: forward mode shows every row, so no codirection is needed."""
    direction = experiment.direction(number)
    xp = array_api_compat.array_namespace(direction.difference)
    gap = direction.difference - experiment.problem.forward.push(direction.displacement)
    return float(xp.max(xp.abs(gap))) / direction.step


def certify(experiment: Experiment, residual: Residual) -> float | None:
    """The miss probability of the certificate, or None if the projections cannot show that all entries agree."""
    sampled_both_sides = residual is reverse_residual and not experiment.sees_all_rows
    if not experiment.problem.independent or not _true_to_step(experiment):
        return None
    found = _attempt(experiment, residual, sampled_both_sides)
    if found is None and experiment.sharpen():
        found = _attempt(experiment, residual, sampled_both_sides)
    return found


def _attempt(experiment: Experiment, residual: Residual, sampled_both_sides: bool) -> float | None:
    options = experiment.options
    # A complex number is off by more than δ only if one of its two coordinates is off by more than δ/√2.
    detectable = options.tolerance.absolute / math.sqrt(2.0)
    hopeless = resolving_ratio(options.miss / 2**MOST, MOST, sampled_both_sides=sampled_both_sides)
    ratio = 0.0
    if not detectable:
        return None
    for number in range(MOST):
        ratio = _larger(ratio, residual(experiment, number) / detectable)
        if not ratio <= hopeless:
            return None
        # The search may stop at any number; the shares ½ + ¼ + ... keep the sum of all ways to miss below the limit.
        share = options.miss / 2 ** (number + 1)
        if ratio <= resolving_ratio(share, number + 1, sampled_both_sides=sampled_both_sides):
            return options.miss
    return None


def _true_to_step(experiment: Experiment) -> bool:
    options = experiment.options
    # NaN (an input that is not a number) is not true to anything.
    return experiment.problem.coarseness(options.step) <= max(PREMISE * options.tolerance.relative, EXACT)


def _larger(a: float, b: float) -> float:
    """The larger of two, or NaN if either is NaN: what is not a number never counts as small."""
    return b if not b <= a else a
