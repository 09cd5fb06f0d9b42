"""A short look at one more point: is there anything that calls for the whole scrutiny?"""

from __future__ import annotations

from dataclasses import dataclass

from gradvet.core.arithmetic import dot, namespace, norm, peak
from gradvet.core.lines import NEAR
from gradvet.core.modes import Mode
from gradvet.core.scrutiny import ROUNDOFFS
from gradvet.core.spaces import Array
from gradvet.core.subject import Displaced
from gradvet.core.trial import Look, Trial

COARSE = 1e-2
"""Outputs with smaller slopes than this part of the largest matter less at points that nobody asked for."""

AGREEMENT = 1e-4
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


def is_quiet(trial: Trial, mode: Mode) -> bool:
    """Whether a walk along all inputs at once finds the derivative where it should be.

    One evaluation and one backward pass where the function is smooth, a few more where it bends.
    """
    subject, u = trial.subject, trial.direction_of_all()
    ahead = subject.displaced(NEAR * u)
    f0 = subject.value[: subject.codomain.size]
    one_side = _Walk(ahead.displacement / NEAR, (ahead.values[: f0.shape[0]] - f0) / NEAR, f0 * 0.0)
    look = trial.looks_for(one_side.slope, 1)[0]
    xp = namespace(f0)
    if bool(xp.any(look.broken)):
        return False
    return _agrees(trial, mode, one_side, look) or _is_quiet_on_both_sides(trial, mode, look, ahead)


def _is_quiet_on_both_sides(trial: Trial, mode: Mode, look: Look, ahead: Displaced) -> bool:
    """Smooth outputs together, and some of those with a kink each by itself."""
    subject = trial.subject
    xp = namespace(look.v)
    f0 = subject.value[: subject.codomain.size]
    behind = subject.displaced(-ahead.displacement)
    plus, minus = (side.values[: f0.shape[0]] - f0 for side in (ahead, behind))
    moved = (ahead.displacement - behind.displacement) / (2.0 * NEAR)
    walk = _Walk(moved, (plus - minus) / (2.0 * NEAR), (plus + minus) / (2.0 * NEAR))
    bent = _bent_rows(trial, walk) & (look.v != 0.0)
    if not bool(xp.any(bent)):
        return _agrees(trial, mode, walk, look)
    smooth = xp.where(bent, xp.zeros_like(look.v), look.v)
    looks = [trial.look(smooth)] if bool(xp.any(smooth != 0.0)) else []
    for row in xp.nonzero(bent)[0][:BENT_ROWS]:
        unit = xp.zeros_like(look.v)
        unit[int(row)] = 1.0
        looks.append(trial.look(unit))
    return all(not bool(xp.any(look.broken)) and _agrees(trial, mode, walk, look) for look in looks)


def _bent_rows(trial: Trial, walk: _Walk) -> Array:
    xp = namespace(walk.bend)
    bend, slope = xp.abs(walk.bend), xp.abs(walk.slope)
    top = peak(slope)
    return (bend > BENT * slope + BENT_BESIDE * top) & (bend > CLEAR_OF_NOISE * trial.coarse_noise / NEAR)


def _agrees(trial: Trial, mode: Mode, walk: _Walk, look: Look) -> bool:
    """Whether the claim is the slope; where v looks at one output with a kink, between the slopes on its two sides."""
    xp = namespace(look.v)
    claim = mode.claims(trial, walk.moved, [look])[0]
    error = dot(look.v, walk.slope) - claim.predicted(walk.moved, 1.0)
    allowed = AGREEMENT * max(norm(look.w, walk.moved), norm(look.v, walk.slope))
    allowed += ROUNDOFFS * norm(look.v, trial.noise / NEAR) + trial.immaterial * norm(look.v, look.v * 0.0 + 1.0)
    alone = int(xp.count_nonzero(look.v)) == 1
    return abs(error) <= allowed + (abs(dot(look.v, walk.bend)) * (1.0 + EDGE) if alone else 0.0)
