"""Random directions, and how sure a few of them make us.

A direction u has independent entries of random sign and of magnitude between ½ and 1½. Single wrong entries cannot hide
from it, and no two errors of equal size cancel, as they do with ±1. What it proves is a matter of arithmetic. Let Δ be
the difference of two Jacobians with |Δ_ij| = δ somewhere. An entry's density is ½, so for any a and b

    P(|u_j a + b| ≤ t) ≤ t / |a|.

Used once for u_j and once for v_i, over k directions and k codirections whose k² products v·Δu all stay below t:

    P(miss) ≤ (t/δ)^k (1 + k ln(δ/t)),

and (t/δ)^k where one side of Δ is seen whole instead of through random codirections. `resolving_ratio` inverts that.
"""

from __future__ import annotations

import math
from functools import lru_cache

MOST = 12
"""More directions than this are not drawn: a ratio that these cannot resolve is compared entry by entry."""


def miss_probability(ratio: float, directions: int, *, sampled_both_sides: bool) -> float:
    """How probable it is at most that an error δ leaves all products below `ratio · δ`."""
    if ratio <= 0.0:
        return 0.0
    if ratio >= 1.0:
        return 1.0
    power = ratio**directions
    return min(1.0, power * (1.0 - directions * math.log(ratio)) if sampled_both_sides else power)


@lru_cache(maxsize=256)
def resolving_ratio(miss: float, directions: int, *, sampled_both_sides: bool) -> float:
    """The largest ratio t/δ at which `directions` probes keep the miss probability below `miss`."""
    low, high = -80.0, 0.0
    for _ in range(60):
        middle = (low + high) / 2
        found = miss_probability(math.exp(middle), directions, sampled_both_sides=sampled_both_sides)
        low, high = (middle, high) if found <= miss else (low, middle)
    return math.exp(low)
