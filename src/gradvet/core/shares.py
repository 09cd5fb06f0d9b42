"""How much each input, or each row, adds to a slope."""

from __future__ import annotations

import math
from collections.abc import Iterator

from gradvet.core.arithmetic import namespace
from gradvet.core.spaces import Array
from gradvet.core.trial import Trial


def shares(trial: Trial, w: Array, u: Array, *, moved_only: bool = False) -> Iterator[tuple[str, float]]:
    """What one typical entry of each input adds to the slope along u, for the inputs that u moves."""
    xp, domain, products = namespace(w), trial.subject.domain, w * u
    for number, leaf in enumerate(domain.leaves):
        part = domain.slice(number)
        product = products[part]
        square = 0.0 if moved_only else float(product @ product)
        if square:
            yield leaf.name, math.sqrt(square / int(xp.count_nonzero(product)))
        elif int(xp.count_nonzero(u[part])):
            yield leaf.name, 0.0


def only(u: Array, part: slice) -> Array:
    xp = namespace(u)
    return xp.concat([xp.zeros_like(u[: part.start]), u[part], xp.zeros_like(u[part.stop :])])
