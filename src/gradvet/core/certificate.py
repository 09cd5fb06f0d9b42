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
from gradvet.core.probes import MOST, Plan, plans, resolving_ratio

PREMISE = 0.1
"""A certificate speaks about what the entrywise comparison would say. That comparison divides by the nominal step, so
the step must survive rounding to within this part of the relative tolerance; otherwise the entries are compared."""

EXACT = 1e-9
"""A step that is this true is good enough under any relative tolerance."""

LOOKS = 4
"""How often the residuals may be judged; the limit on the miss probability is shared among the looks."""

PATIENCE = 4
"""If more directions than this are called for, another way to walk is tried first."""

WALKS = 8
"""Up to so many columns are compared one by one rather than looked at along more directions."""

SEEN = 0.5
"""Where every entry is seen, agreement to this part of the absolute tolerance needs no second look."""

Residual = Callable[[Experiment, Plan], float]
"""The largest disagreement that the probes of a plan show."""


def reverse_residual(experiment: Experiment, plan: Plan) -> float:
    """|v·D - (Jᵀv)·u| over all pairs of directions and codirections."""
    directions = experiment.directions(plan.directions)
    codirections = experiment.codirections(plan.codirections)
    step = directions[0].step
    if len(directions) == len(codirections) == 1:
        right, left = directions[0], codirections[0]
        return abs(float(left.v @ right.difference) - float(left.pulled @ right.displacement)) / step
    xp = array_api_compat.array_namespace(directions[0].difference)
    V, W = xp.stack([probe.v for probe in codirections]), xp.stack([probe.pulled for probe in codirections])
    D, U = xp.stack([probe.difference for probe in directions]), xp.stack([probe.displacement for probe in directions])
    return float(xp.max(xp.abs(V @ D.T - W @ U.T))) / step


def forward_residual(experiment: Experiment, plan: Plan) -> float:
    """|D - Ju| in its worst entry: forward mode shows every row, so no codirection is needed."""
    worst = 0.0
    directions = experiment.directions(plan.directions)
    for direction, pushed in zip(directions, experiment.pushes(plan.directions), strict=True):
        xp = array_api_compat.array_namespace(direction.difference)
        worst = _larger(worst, float(xp.max(xp.abs(direction.difference - pushed))) / direction.step)
    return worst


def certify(experiment: Experiment, residual: Residual) -> float | None:
    """The miss probability of the certificate, or None if the projections cannot show that all entries agree."""
    options, problem = experiment.options, experiment.problem
    # A number is off by more than δ only if one of its coordinates is off by more than δ/√parts.
    detectable = options.tolerance.absolute / math.sqrt(max(problem.domain.parts, problem.codomain.parts))
    if not detectable or not problem.independent or not _true_to_step(experiment):
        return None
    rows_seen = residual is forward_residual or experiment.sees_all_rows
    ladder = plans(columns_seen=experiment.sees_all_columns, rows_seen=rows_seen)
    miss = options.miss / LOOKS

    def wanted(plan: Plan) -> Plan | None:
        """The cheapest plan that resolves what this one leaves."""
        ratio = residual(experiment, plan) / detectable
        return next((other for other in ladder if ratio <= _resolved(miss, other)), None)

    plan, enough = ladder[0], wanted(ladder[0])
    # Another walk costs four evaluations a direction; few columns are sooner compared one by one.
    while _directions(enough) > PATIENCE and problem.domain.size > WALKS and experiment.restride():
        enough = wanted(plan)
    for _ in range(LOOKS - 1):
        if enough is None or _directions(enough) > max(WALKS, problem.domain.size):
            return None
        if ladder.index(enough) <= ladder.index(plan):
            return options.miss if enough != Plan(None, None) else 0.0
        plan, enough = enough, wanted(enough)
    return None


def _resolved(miss: float, plan: Plan) -> float:
    return SEEN if plan == Plan(None, None) else resolving_ratio(miss, plan)


def _directions(plan: Plan | None) -> int:
    """How many directions a plan walks; without a plan, too many."""
    return MOST + 1 if plan is None else plan.directions or 0


def _true_to_step(experiment: Experiment) -> bool:
    options = experiment.options
    # NaN (an input that is not a number) is not true to anything.
    return experiment.problem.coarseness(options.step) <= max(PREMISE * options.tolerance.relative, EXACT)


def _larger(a: float, b: float) -> float:
    """The larger of two, or NaN if either is NaN: what is not a number never counts as small."""
    return b if not b <= a else a
