"""How far each coordinate of the inputs moves in a directional difference."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gradvet.core import thresholds
from gradvet.core.problem import Problem
from gradvet.core.spaces import Array
from gradvet.core.vectors import finite_part, namespace, peak


@dataclass(frozen=True, slots=True, eq=False)
class Scaling:
    """How far each coordinate moves, and which do not move in joint directions."""

    lengths: Array
    """Step length of each coordinate at relative step 1: max(|x|, ¼ rms of its tensor), or smaller after refinement."""
    eps: float
    """Spacing of the coarsest format that the values pass through, as far as known."""
    excluded: Array | None = None
    """Columns left out of joint directions: at a kink, or without a finite derivative."""
    is_narrow: bool = False
    """Whether the lengths are so small that noise may look like a slope."""


def step_lengths(problem: Problem) -> Array:
    """max(|x|, ¼ rms of its tensor) for each coordinate; 0 for what is infinite or not a number."""
    xp = namespace(problem.point)
    parts = []
    for number, leaf in enumerate(problem.domain.leaves):
        x = problem.point[problem.domain.slice(number)]
        if leaf.coordinates.parts == 1:
            size = xp.abs(x)
        else:
            numbers = xp.reshape(x, (-1, leaf.coordinates.parts))
            size = xp.sqrt(xp.sum(numbers * numbers, axis=-1))
        top, found = peak(size), finite_part(size)
        relative = found / (top or 1.0)
        rms = top * math.sqrt(float(relative @ relative) / relative.shape[0]) if top else 1.0 / thresholds.MIN_LENGTH
        length = xp.clip(found, thresholds.MIN_LENGTH * rms)
        length = length if found is size else xp.where(xp.isfinite(size), length, xp.zeros_like(length))
        parts.append(xp.repeat(length, leaf.coordinates.parts) if leaf.coordinates.parts > 1 else length)
    return xp.concat(parts)
