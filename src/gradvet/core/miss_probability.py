"""Random directions, and how sure a few of them make us.

A direction u has independent entries, spread evenly over [-1½, 1½): no two errors of equal size cancel, as they do with
±1, and nothing of that density adds less noise. Where one or two directions are to do, the entries keep a distance of ¼
from zero: single wrong entries cannot hide then at all. What it proves is a matter of arithmetic. Let Δ be the
difference of two Jacobians with |Δ_ij| = δ somewhere. The density of an entry is 1/2L with L = 1½, so for any a, b

    P(|u_j a + b| ≤ t) ≤ t / L|a|.

With a whole row of Δ in sight, k directions leave it below t with probability (t/Lδ)^k at most. If rows are seen only
through c codirections, the row's place is taken by v·Δ_j, and the largest of c such numbers is below s with
probability (s/Lδ)^c. Together, for k directions, c codirections, all k·c products v·Δu below t, and κ = t/L²δ:

    c > k:  P(miss) ≤ c/(c - k) κ^k + κ^c,      c = k:  P(miss) ≤ κ^k (1 + k ln 1/κ),

and the same with the sides exchanged. All this takes for granted that a derivative is linear in its codirection, as
torch's own fast mode does; where the limit is strict, one row is also pulled alone and compared.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

MOST = 12
"""More directions than this are not drawn: a ratio that these cannot resolve is compared entry by entry."""

SPREAD = 1.5
"""The length L of the interval over which the magnitudes of a direction's entries are spread."""

FINEST = 1e-8
"""The part of a usual tolerance, 1e-5, that the arithmetic itself leaves of numbers that agree."""

FIRST = 0.9
"""The part of the probability that the fewest directions get that can satisfy anyone; of the rest one more, and so on:
most checks end with them, and a plan of k directions resolves the k-th root of its part."""


EARLY = 0.55
"""The part of that which the first of two such plans gets, if there is one with a codirection more."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How many directions and codirections to look along; None on a side whose coordinates are all seen one by one."""

    directions: int | None
    cotangents: int | None


def miss_probability(ratio: float, plan: Plan, spread: float = SPREAD) -> float:
    """How probable it is at most that an error δ leaves all products below `ratio · δ`."""
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


@dataclass(frozen=True, slots=True)
class Stage:
    """A plan, and how small what its probes leave must be, as a part of the error to be seen."""

    plan: Plan
    ratio: float


@lru_cache(maxsize=64)
def stages(miss: float, *, columns_seen: bool, rows_seen: bool) -> tuple[Stage, ...]:
    """Plans from the cheapest up, which together miss an error with probability `miss` at most.

    Each has a part of the probability, so that the sum is within the limit whichever of them are looked at. A plan that
    even exact numbers could not satisfy gets nothing: what it leaves only tells which plan to try next. The first that
    can be satisfied is tried with a codirection more before another direction is walked: a backward pass instead of
    several evaluations.
    """
    found: list[Stage] = []
    share = FIRST * miss
    for plan in plans(columns_seen=columns_seen, rows_seen=rows_seen):
        if resolving_ratio(share, plan) < FINEST:
            found.append(Stage(plan, 0.0))
            continue
        is_first = not found or not found[-1].ratio
        if is_first and plan.directions is not None and plan.cotangents is not None:
            more = Plan(plan.directions, plan.cotangents + 1)
            tried = {plan: EARLY * share, more: (1.0 - EARLY) * share}
        else:
            tried = {plan: share}
        found += [Stage(each, resolving_ratio(part, each)) for each, part in tried.items()]
        share *= 1.0 - FIRST
    return tuple(found)
