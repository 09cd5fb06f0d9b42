"""How much of a slope or a gradient may be noise: what is left where terms cancel, what roundoffs of the inputs do."""

from __future__ import annotations

import math

from gradvet.core.arithmetic import dot, finite_part, namespace, norm, peak
from gradvet.core.spaces import Array
from gradvet.core.trial import Trial

INHERITED = 3e-12
"""This part of the largest slope is left of it in others where terms cancel: a few roundoffs, and those of a few
operators in a row."""

JITTERS, MORE_JITTERS = 3, 10
"""So many pairs of inputs next to the point show how noisy the derivative is, or more where it is: few may agree by
chance."""

NOTICED = 32.0
"""Noise of less than this part of an error does not explain it."""


def inherited(trial: Trial, v: Array) -> float:
    """The roundoff of v·J·u that rows of small slope inherit from those of large slope."""
    share, slope = INHERITED if trial.is_fine else 2.0 * trial.subject.epsilon, trial.first.slope
    # A row of no slope at all inherits nothing.
    return share * peak(slope) * norm(v, namespace(v).astype(slope != 0.0, v.dtype))


def grain(trial: Trial, v: Array, part: slice) -> float:
    """The slope that a roundoff of the outputs would be, over a step of the size of these inputs."""
    xp = namespace(v)
    product, sizes = finite_part(v * trial.subject.value[: v.shape[0]]), trial.sizes[part]
    size = math.sqrt(float(xp.mean(sizes * sizes))) if sizes.shape[0] else 0.0
    return trial.subject.epsilon * math.sqrt(dot(product, product)) / (size or 1.0)


def roundoffs(trial: Trial) -> Array:
    """A displacement of every input by about a roundoff of its own, however narrow the steps are."""
    subject, xp = trial.subject, namespace(trial.sizes)
    sizes = xp.maximum(xp.abs(subject.point), trial.sizes)
    return subject.epsilon * sizes * xp.sign(subject.signed(subject.domain.size))


def jitter(trial: Trial, v: Array, u: Array, error: float) -> float:
    """By how much (Jᵀv)·u changes when the inputs change by about two roundoffs, to explain an error."""
    subject, xp = trial.subject, namespace(v)
    if not trial.reversible:
        return 0.0
    found: list[float] = []
    for number in range(MORE_JITTERS):
        if number >= JITTERS and (max(found) - min(found)) * NOTICED < abs(error):
            break
        tiny = 2.0 * roundoffs(trial)
        if trial.zeros_are_exact:
            tiny = xp.where(subject.point == 0.0, xp.zeros_like(tiny), tiny)
        found += [float(xp.sum(subject.pulled_at(sign * tiny, v) * u)) for sign in (1.0, -1.0)]
    return max(found) - min(found)
