"""How much each input, or each row, adds to a slope."""

from __future__ import annotations

import math
from collections.abc import Iterator

from gradvet.core.arithmetic import namespace
from gradvet.core.spaces import Array
from gradvet.core.trial import Trial


def shares(trial: Trial, w: Array, u: Array, *, moved_only: bool = False) -> Iterator[tuple[str, float]]:
    """What one typical entry of each input adds to the slope along u, for the inputs that u moves."""
    xp = namespace(w)
    domain = trial.subject.domain
    for number, leaf in enumerate(domain.leaves):
        part = domain.slice(number)
        if not bool(xp.any(u[part] != 0.0)):
            continue
        product = w[part] * u[part]
        count = int(xp.count_nonzero(product))
        yield leaf.name, math.sqrt(float(xp.sum(product * product)) / count) if count and not moved_only else 0.0


def only(u: Array, part: slice) -> Array:
    xp = namespace(u)
    return xp.concat([xp.zeros_like(u[: part.start]), u[part], xp.zeros_like(u[part.stop :])])
