"""Do two gradients that should be the same differ by more than roundoff? Other kernels may round otherwise."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gradvet.core.context import Context
from gradvet.core.spaces import Array, Location
from gradvet.core.vectors import all_finite, dot, finite_part, namespace, norm, peak

SHARE = 0.6
"""Roundoff to this power, relative to the largest entry of the input's gradient, is always forgiven."""

COARSE_SHARE = 0.4
"""In low precision, where other kernels round much otherwise, to this power."""

FORGIVEN = 1e-6
"""So is this part of it: a function may be less precise inside than outside."""

CANCELLED = 0.75
"""And roundoff to this power, relative to what the most influential input adds to the slope: where terms cancel, their
roundoff is left."""

RESPONSES = 32.0
"""Beyond that, so many times what the gradient changes by when the inputs change by two roundoffs."""


@dataclass(frozen=True, slots=True)
class GradientMismatch:
    """The worst difference between two gradients."""

    place: Location
    found: float
    expected: float

    def __str__(self) -> str:
        return f"at {self.place}: {self.found:.10g} instead of {self.expected:.10g}"


def gradient_mismatch(context: Context, v: Array, found: Array, expected: Array) -> GradientMismatch | None:
    """Where two gradients for the codirection v differ most, or None if they are alike."""
    if context.problem.equal(found, expected):
        return None
    xp = namespace(expected)
    domain = context.problem.domain
    difference = xp.abs(found - expected)
    if not all_finite(difference):
        # Where the reference is not finite there is nothing to hold the other to.
        agree = (found == expected) | ~xp.isfinite(expected)
        difference = xp.where(agree, xp.zeros_like(difference), difference)
        difference = xp.where(xp.isnan(difference), xp.full_like(difference, float("inf")), difference)
    response: Array | None = None
    share = max(FORGIVEN, context.problem.eps ** (SHARE if context.is_double else COARSE_SHARE))
    for number in range(len(domain.leaves)):
        part = domain.slice(number)
        gap = float(xp.max(difference[part])) if part.stop > part.start else 0.0
        if not gap:
            continue
        top = peak(expected[part])
        if gap <= top * share or gap <= 64.0 * grain(context, v, part):
            continue
        index = part.start + int(xp.argmax(difference[part]))
        if gap * float(context.lengths[index]) <= context.problem.eps**CANCELLED * _influence(context, expected):
            continue
        response = _response(context, v) if response is None else response
        if gap <= RESPONSES * float(xp.max(response[part])):
            continue
        if gap <= top * context.problem.internal_eps() ** COARSE_SHARE and not context.computes_in_io_dtype:
            continue
        return GradientMismatch(domain.locate(index), float(found[index]), float(expected[index]))
    return None


def _influence(context: Context, gradient: Array) -> float:
    """The most that one input of its own size adds to the slope."""
    return peak(gradient * context.lengths)


def _response(context: Context, v: Array) -> Array:
    """By how much the gradient changes when the inputs change by two roundoffs."""
    problem = context.problem
    xp = namespace(v)
    tiny = 2.0 * roundoffs(context)
    return finite_part(xp.abs(problem.vjp_at(tiny, v) - problem.vjp_at(-tiny, v)))


INHERITED = 3e-12
"""This part of the largest slope is left of it in others where terms cancel: a few roundoffs, and those of a few
operators in a row."""

JITTERS, MORE_JITTERS = 3, 10
"""So many pairs of inputs next to the point show how noisy the derivative is, or more where it is: few may agree by
chance."""

NOTICED = 32.0
"""Noise of less than this part of an error does not explain it."""


def inherited(context: Context, v: Array) -> float:
    """The roundoff of v·J·u that rows of small slope inherit from those of large slope."""
    share, slope = INHERITED if context.is_double else 2.0 * context.problem.eps, context.first.slope
    # A row of no slope at all inherits nothing.
    return share * peak(slope) * norm(v, namespace(v).astype(slope != 0.0, v.dtype))


def grain(context: Context, v: Array, part: slice) -> float:
    """The slope that a roundoff of the outputs would be, over a step of the size of these inputs."""
    xp = namespace(v)
    product, lengths = finite_part(v * context.problem.value[: v.shape[0]]), context.lengths[part]
    size = math.sqrt(float(xp.mean(lengths * lengths))) if lengths.shape[0] else 0.0
    return context.problem.eps * math.sqrt(dot(product, product)) / (size or 1.0)


def roundoffs(context: Context) -> Array:
    """A displacement of every input by about a roundoff of its own, however narrow the steps are."""
    problem, xp = context.problem, namespace(context.lengths)
    lengths = xp.maximum(xp.abs(problem.point), context.lengths)
    return problem.eps * lengths * xp.sign(problem.signed(problem.domain.size))


def jitter(context: Context, v: Array, u: Array, error: float) -> float:
    """By how much (Jᵀv)·u changes when the inputs change by about two roundoffs, to explain an error."""
    problem, xp = context.problem, namespace(v)
    if not context.reversible:
        return 0.0
    found: list[float] = []
    for number in range(MORE_JITTERS):
        if number >= JITTERS and (max(found) - min(found)) * NOTICED < abs(error):
            break
        tiny = 2.0 * roundoffs(context)
        if context.zeros_are_exact:
            tiny = xp.where(problem.point == 0.0, xp.zeros_like(tiny), tiny)
        found += [float(xp.sum(problem.vjp_at(sign * tiny, v) * u)) for sign in (1.0, -1.0)]
    return max(found) - min(found)
