"""A short look at one more point: is there anything that calls for the whole scrutiny?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from gradvet.core.context import Context, Cotangent
from gradvet.core.finite_differences import NEAR
from gradvet.core.modes import Mode
from gradvet.core.problem import Evaluation
from gradvet.core.spaces import Array
from gradvet.core.vectors import dot, namespace, norm, peak

COARSE = 1e-2
"""Outputs with smaller slopes than this part of the largest matter less at points that nobody asked for."""

ROUNDOFFS = 8.0
"""The near walk's allowance for roundoff, in standard deviations."""

POINT_AGREEMENT = 1e-4
"""Slopes that agree to this part of their scale agree: what is wrong at a special point is wrong by much."""

BENT, BENT_BESIDE = 1e-3, 1e-4
"""A change of slope by this part of the slope, and of the largest slope beside it, is a kink's."""

CLEAR_OF_NOISE = 64.0
"""And so many roundoffs."""

BENT_ROWS = 2
"""So many outputs with a kink are held to their slopes on both sides, each by itself."""

EDGE = 1e-4
"""A value that is outside the slopes on both sides by less than this part of their difference is on their edge."""


@dataclass(frozen=True, slots=True)
class _Walk:
    """One side of the point, or both, along one line, for every output."""

    moved: Array
    slope: Array
    bend: Array
    """Half the difference of the slopes on the two sides."""


def screen_point(context: Context, mode: Mode) -> bool:
    """Whether a walk along all inputs at once finds the derivative where it should be.

    One evaluation and one backward pass where the function is smooth, a few more where it bends.
    """
    problem, u = context.problem, context.joint_direction()
    ahead = problem.evaluate_at(NEAR * u)
    f0 = problem.value[: problem.codomain.size]
    one_side = _Walk(ahead.displacement / NEAR, (ahead.values[: f0.shape[0]] - f0) / NEAR, f0 * 0.0)
    cotangent = context.cotangents_for(one_side.slope, 1)[0]
    xp = namespace(f0)
    if bool(xp.any(cotangent.broken)):
        return False
    return _point_agrees(context, mode, one_side, cotangent) or _is_quiet_on_both_sides(context, mode, cotangent, ahead)


def _is_quiet_on_both_sides(context: Context, mode: Mode, cotangent: Cotangent, ahead: Evaluation) -> bool:
    """Smooth outputs together, and some of those with a kink each by itself."""
    problem = context.problem
    xp = namespace(cotangent.v)
    f0 = problem.value[: problem.codomain.size]
    behind = problem.evaluate_at(-ahead.displacement)
    plus, minus = (side.values[: f0.shape[0]] - f0 for side in (ahead, behind))
    moved = (ahead.displacement - behind.displacement) / (2.0 * NEAR)
    difference = _Walk(moved, (plus - minus) / (2.0 * NEAR), (plus + minus) / (2.0 * NEAR))
    bent = _bent_rows(context, difference) & (cotangent.v != 0.0)
    if not bool(xp.any(bent)):
        return _point_agrees(context, mode, difference, cotangent)
    smooth = xp.where(bent, xp.zeros_like(cotangent.v), cotangent.v)
    cotangents = [context.cotangent(smooth)] if bool(xp.any(smooth != 0.0)) else []
    for row in xp.nonzero(bent)[0][:BENT_ROWS]:
        unit = xp.zeros_like(cotangent.v)
        unit[int(row)] = 1.0
        cotangents.append(context.cotangent(unit))
    return all(
        not bool(xp.any(cotangent.broken)) and _point_agrees(context, mode, difference, cotangent)
        for cotangent in cotangents
    )


def _bent_rows(context: Context, difference: _Walk) -> Array:
    xp = namespace(difference.bend)
    bend, slope = xp.abs(difference.bend), xp.abs(difference.slope)
    top = peak(slope)
    return (bend > BENT * slope + BENT_BESIDE * top) & (bend > CLEAR_OF_NOISE * context.peak_noise / NEAR)


def _point_agrees(context: Context, mode: Mode, difference: _Walk, cotangent: Cotangent) -> bool:
    """Whether the claim is the slope; where v looks at one output with a kink, between the slopes on its two sides."""
    xp = namespace(cotangent.v)
    prediction = mode.predictions(context, difference.moved, [cotangent])[0]
    error = dot(cotangent.v, difference.slope) - prediction.predicted(difference.moved, 1.0)
    allowed = POINT_AGREEMENT * max(norm(cotangent.w, difference.moved), norm(cotangent.v, difference.slope))
    allowed += ROUNDOFFS * norm(cotangent.v, context.noise / NEAR) + context.immaterial * norm(
        cotangent.v, cotangent.v * 0.0 + 1.0
    )
    alone = int(xp.count_nonzero(cotangent.v)) == 1
    return abs(error) <= allowed + (abs(dot(cotangent.v, difference.bend)) * (1.0 + EDGE) if alone else 0.0)


def typical_contributions(
    context: Context, w: Array, u: Array, *, moved_only: bool = False
) -> Iterator[tuple[str, float]]:
    """What one typical entry of each input adds to the slope along u, for the inputs that u moves."""
    xp, domain, products = namespace(w), context.problem.domain, w * u
    for number, leaf in enumerate(domain.leaves):
        part = domain.slice(number)
        product = products[part]
        square = 0.0 if moved_only else float(product @ product)
        if square:
            yield leaf.name, math.sqrt(square / int(xp.count_nonzero(product)))
        elif int(xp.count_nonzero(u[part])):
            yield leaf.name, 0.0
