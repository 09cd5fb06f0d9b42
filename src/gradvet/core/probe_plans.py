"""The number of probes of the tolerance policy: how probable it is that they miss an error, and what they may cost.

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

The cost of a plan is compared with the evaluations (calls of the function or of one of its derivatives) of a
comparison of all entries, with those of torch, and with those that may be spent beside that comparison.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from gradvet.core.modes import Mode
from gradvet.core.problem import Problem

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


class Plan(NamedTuple):
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
        found += [Plan(*each[:2], resolving_ratio(part, each)) for each, part in tried.items()]
        share *= 1.0 - PLAN_SHARE
    return tuple(found)


MAX_AT_ONCE = 1024
"""All entries are compared without a search for wrong ones before if that takes at most this many evaluations."""

MAX_PRICE = 1.1
"""Evaluations of slow mode, as a multiple of torch's."""

MIN_SPARE = 6
"""Evaluations that a certificate may cost however few entries there are, beside the passes that the first direction
needs, one for each output in reverse mode: two directions in either mode."""

MAX_MORE = 5
"""Evaluations by which slow mode may exceed torch's however few these are."""

LATER_PASSES = 4
"""Backward passes for each output of the checks that follow: of a random cotangent, of the same again, of a zero and of
an undefined one."""

OTHER_REPEATS, MAX_REPEATS = 3, 50
"""Backward passes for each output that other checks of slow mode run beside the comparison of all entries, and the
most that custom rules are repeated: together with that comparison, they are about as many as torch's two per row."""


def spent(problem: Problem) -> int:
    """Evaluations until now."""
    return problem.cost.forwards + problem.cost.vjps + problem.cost.jvps


def price(problem: Problem, mode: Mode) -> int:
    """Evaluations and derivative passes that a comparison of all entries takes."""
    rows, columns = problem.codomain.size, problem.domain.size
    return 2 * columns + rows if mode.by_rows else 3 * columns


def torch_price(problem: Problem, mode: Mode) -> int:
    """The same for torch's slow mode, which runs each backward pass twice.

    It compares the imaginary parts of outputs before their real parts, as those of another function.
    """
    rows, columns = problem.codomain.size, problem.domain.size
    if not mode.by_rows:
        return 3 * columns + 1
    return 2 * columns * problem.codomain.parts + 2 * rows + 4 * len(problem.codomain.leaves)


def torch_refusal_price(problem: Problem, mode: Mode) -> int:
    """The same if torch refuses the first output: it compares one after the other, and runs no further checks."""
    if not mode.by_rows:
        return torch_price(problem, mode)
    parts = problem.codomain.leaves[0].coordinates.parts
    return 2 * problem.domain.size + 2 * problem.codomain.offsets[1] // parts + parts - 1


def torch_fast_price(problem: Problem, mode: Mode) -> int:
    """The same for torch's fast mode, at least: its projections are about one input or one output each."""
    parts = sum(leaf.coordinates.parts for leaf in problem.domain.leaves)
    return 2 * parts + 3 * len(problem.codomain.leaves) + 3 if mode.by_rows else 3 * parts + 3


def repetitions(problem: Problem) -> int:
    """How often slow mode repeats the backward pass of custom rules after the comparison, for each output."""
    if problem.is_plain and not problem.rules.has_custom:
        return 0
    return min(max(0, problem.codomain.size // len(problem.codomain.leaves) - OTHER_REPEATS), MAX_REPEATS)


def spare_evaluations(problem: Problem, mode: Mode) -> float:
    """Evaluations beside a comparison of all entries, so that the whole check takes at most a tenth more than torch."""
    later = (LATER_PASSES + repetitions(problem)) * len(problem.codomain.leaves)
    return MAX_PRICE * torch_price(problem, mode) - price(problem, mode) - spent(problem) - later


def spare_if_refused(problem: Problem, mode: Mode) -> float:
    """The same if the comparison ends at the first output, which torch refuses; a wrong row is computed once more."""
    refusal = 2 * problem.domain.size + (problem.codomain.offsets[1] + 1 if mode.by_rows else problem.domain.size)
    return math.floor(MAX_PRICE * (1 + torch_refusal_price(problem, mode))) - refusal - spent(problem)


def certificate_evaluations(problem: Problem, mode: Mode) -> tuple[float, float]:
    """Evaluations that a certificate may cost, and those where residuals suggest a wrong derivative.

    Half if a search follows; none where comparing all entries takes about as many. With few outputs the first direction
    is tried whatever a refusal costs: most derivatives are right.
    """
    if price(problem, mode) <= 2 * MIN_SPARE:
        return 0.0, 0.0
    share = 2.0 if price(problem, mode) > MAX_AT_ONCE else 1.0
    first = len(problem.codomain.leaves) if mode.by_rows else 1
    usual, refused = (spare(problem, mode) / share for spare in (spare_evaluations, spare_if_refused))
    return max(MIN_SPARE + first, usual), max(min(2 + first, MAX_MORE), refused)
