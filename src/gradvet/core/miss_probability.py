"""Probability that random projections miss an error, and plans: numbers of directions and cotangents. Formulas only.

A direction u has independent entries, uniform in [-1½, 1½): two errors of equal size do not cancel, as they do with ±1,
and no distribution of that density adds less noise. In fast mode the entries keep a distance of ¼ from zero, so that a
single wrong entry always shows. Let Δ be the difference of two Jacobians with |Δ_ij| = δ somewhere. The density of an
entry is 1/2L with L = 1½, so for any a, b

    P(|u_j a + b| ≤ t) ≤ t / L|a|.

If a whole row of Δ is compared, k directions leave it below t with probability (t/Lδ)^k at most. If rows are compared
only through c cotangents, v·Δ_j takes the place of the row, and the largest of c such numbers is below s with
probability (s/Lδ)^c. Together, for k directions, c cotangents, all k·c products v·Δu below t, and κ = t/L²δ:

    c > k:  P(miss) ≤ c/(c - k) κ^k + κ^c,      c = k:  P(miss) ≤ κ^k (1 + k ln 1/κ),

and the same with the sides exchanged. This assumes that the derivative is linear in its cotangent, as torch's
fast mode does; slow mode compares one row by its own backward pass as well.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

MOST = 12
"""Largest number of directions; what they cannot resolve is compared entry by entry."""

SPREAD = 1.5
"""Length L of the interval in which the magnitudes of a direction's entries lie."""

FINEST = 1e-8
"""Residual that roundoff leaves of equal numbers, as a part of the usual tolerance 1e-5."""

PLAN_SHARE = 0.9
"""Share of the miss probability given to the first feasible plan; each later plan gets the same share of the remainder.
Most checks end with the first, and a plan of k directions resolves the k-th root of its share."""

EARLY_SHARE = 0.55
"""Part of that share for the first plan, if there is a second one with one more cotangent."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Numbers of directions and cotangents; None on a side whose coordinates are all seen one by one."""

    directions: int | None
    cotangents: int | None
    ratio: float = 0.0
    """Largest residual at which the plan certifies, as a part of the detectable error; 0 if it does not certify."""


def miss_probability(ratio: float, plan: Plan, spread: float = SPREAD) -> float:
    """Probability, at most, that an error δ leaves all products below `ratio · δ`."""
    if ratio <= 0.0:
        return 0.0
    sampled = sorted(number for number in (plan.directions, plan.cotangents) if number is not None)
    kappa = ratio / spread ** len(sampled)
    if not kappa < 1.0:
        return 1.0
    if not sampled:
        return 0.0
    if len(sampled) == 1:
        return float(kappa ** sampled[0])
    few, many = sampled
    alike = kappa**few * (1.0 - few * math.log(kappa))  # as if there were no more on one side than on the other
    return min(1.0, alike if few == many else min(alike, many / (many - few) * kappa**few + kappa**many))


@lru_cache(maxsize=256)
def resolving_ratio(miss: float, plan: Plan) -> float:
    """The largest ratio t/δ at which the plan keeps the miss probability below `miss`."""
    low, high = -80.0, 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if miss_probability(math.exp(middle), plan) <= miss else (low, middle)
    return math.exp(low)


@lru_cache(maxsize=4)
def plans(*, columns_seen: bool, rows_seen: bool) -> tuple[Plan, ...]:
    """Plans from the cheapest up."""
    numbers = range(1, MOST + 1)
    if columns_seen and rows_seen:
        return (Plan(None, None),)
    if columns_seen:
        return tuple(Plan(None, number) for number in numbers)
    if rows_seen:
        return tuple(Plan(number, None) for number in numbers)
    return tuple(Plan(number, number) for number in numbers)


@lru_cache(maxsize=64)
def stages(miss: float, *, columns_seen: bool, rows_seen: bool) -> tuple[Plan, ...]:
    """Plans from the cheapest up, which together miss an error with probability `miss` at most.

    Each has a share of the probability, so that the sum is within the limit whichever of them are used. A plan that
    even exact numbers could not satisfy gets none: its residual only tells which plan to try next. The first feasible
    plan is tried with one more cotangent before another direction: a backward pass instead of several evaluations.
    """
    found: list[Plan] = []
    share = PLAN_SHARE * miss
    for plan in plans(columns_seen=columns_seen, rows_seen=rows_seen):
        if resolving_ratio(share, plan) < FINEST:
            found.append(plan)
            continue
        is_first = not found or not found[-1].ratio
        if is_first and plan.directions is not None and plan.cotangents is not None:
            more = Plan(plan.directions, plan.cotangents + 1)
            tried = {plan: EARLY_SHARE * share, more: (1.0 - EARLY_SHARE) * share}
        else:
            tried = {plan: share}
        found += [replace(each, ratio=resolving_ratio(part, each)) for each, part in tried.items()]
        share *= 1.0 - PLAN_SHARE
    return tuple(found)
