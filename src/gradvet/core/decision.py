"""From what the ladder shows to a verdict, by the rules of the error bar."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from gradvet.core.extrapolation import SlopeFit
from gradvet.core.results import Verdict
from gradvet.core.spaces import Location

CLEAR = 1.5
"""A disagreement counts from so many error bars on."""

MATERIAL = 64.0
"""A disagreement below so many roundoffs of the derivative's scale is roundoff."""

ROUGH = 2.0**-12
"""Formats coarser than this have a ladder of few steps."""

UNEVEN = 16.0
"""In those, values that vary from step to step by more than so many roundoffs may have teeth between the steps."""

LEAST = 1e-9
"""And so is one below this part of it: no formula is wrong by so little, but the roundoff of a large number inside the
derivative, such as the phase of a complex number, leaves as much."""

COARSE = 0.05
"""In coarse formats, this part of the scale instead."""

FINE = 2.0**-40
"""Formats at least this fine, double precision that is, show the slope much more sharply than it must be seen."""

SMALL = 0.01
"""In those, a disagreement that is neither clear nor larger than this part of what must be seen is no disagreement; in
the others, one that is not larger than what must be seen."""

BEYOND = 1e-4
"""A value that is outside the slopes on both sides by less than this part of their difference is on their edge."""

BEND = 1e-6
"""A change of slope below this part of the slope's scale is not called a kink."""


FLAT = 1e-3
"""A slope below this part of the staircase's is that of a stair."""


class Reason(str, Enum):
    """Why a verdict is what it is."""

    AGREES = "agrees"
    DISAGREES = "disagrees"
    KINK = "kink at the point"
    OUTSIDE = "wrong even as a subgradient"
    JUMP = "jump"
    STAIRS = "stairs"
    STEEP = "vertical tangent"
    NOT_FINITE = "not finite"
    DOMAIN = "out of domain"
    RANDOM = "non-deterministic"
    PRECISION = "precision exhausted"
    NO_SIGNAL = "no signal"
    BUDGET = "budget spent"


@dataclass(frozen=True, slots=True)
class SlopeDecision:
    """A verdict about one scalar along one direction."""

    verdict: Verdict
    reason: Reason
    error: float = 0.0
    bar: float = 0.0


@dataclass(frozen=True, slots=True)
class ErrorScale:
    """What a reading is measured against."""

    scale: float
    """The size of the slope if nothing in it cancelled."""
    typical: float
    """What one typical entry of the gradient adds to the slope."""
    eps: float
    unsure: float = 0.0
    """The noise of the derivative under test itself."""


def decide(fit: SlopeFit, scale_of_error: ErrorScale, power: float) -> SlopeDecision:
    """FAIL needs a clear, material and constant error; PASS needs agreement that could have seen one."""
    e, bar = fit.error.value, fit.error.error + scale_of_error.unsure
    a, slack = abs(fit.kink.value), fit.kink.error
    material = max(min(MATERIAL * scale_of_error.eps, COARSE), LEAST) * scale_of_error.scale
    if not math.isfinite(bar) or math.isnan(e):
        return SlopeDecision(Verdict.INCONCLUSIVE, Reason.NOT_FINITE, e, bar)
    if fit.still and 0.0 < scale_of_error.scale < scale_of_error.eps:
        # Both are nothing as far as numbers of size one go, and the function offers no other scale.
        return SlopeDecision(Verdict.INCONCLUSIVE, Reason.PRECISION, e, bar)
    if scale_of_error.eps > ROUGH and not a + slack < abs(e) and abs(e) > CLEAR * bar + material:
        # With few steps, kinks next to the point look like a slope.
        return SlopeDecision(Verdict.INCONCLUSIVE, Reason.PRECISION, e, bar)
    if fit.stairs and scale_of_error.scale <= FLAT * abs(e):
        # Zero is the slope of the stair, the other value that of the staircase: both are derivatives that people mean.
        return SlopeDecision(Verdict.INCONCLUSIVE, Reason.STAIRS, e, bar)
    if fit.jump:
        return SlopeDecision(Verdict.INCONCLUSIVE, Reason.JUMP, e, bar)
    if fit.bent and a > CLEAR * slack and a > BEND * scale_of_error.scale:
        if abs(e) <= a * (1.0 + BEYOND) + bar + slack:
            return SlopeDecision(Verdict.PASS, Reason.KINK, e, bar)
        if abs(e) - a > CLEAR * (bar + slack) and fit.plateau and abs(e) - a > material:
            return SlopeDecision(Verdict.FAIL, Reason.OUTSIDE, e, bar)
    if not abs(e) <= max(bar, material / 4.0):
        clear = abs(e) > CLEAR * bar and abs(e) > material and math.isfinite(bar)
        # The derivative says that the function varies more over the smallest step than it does over any: perhaps it
        # does so in between.
        hidden = 0.0 < fit.wild < scale_of_error.scale and abs(e) <= 2.0 * scale_of_error.scale
        doubtful = hidden or fit.denied or (scale_of_error.eps > ROUGH and fit.unevenness > UNEVEN)
        if clear and fit.plateau and not fit.steep and not doubtful:
            return SlopeDecision(Verdict.FAIL, Reason.DISAGREES, e, bar)
        if clear and doubtful:
            return SlopeDecision(Verdict.INCONCLUSIVE, Reason.PRECISION, e, bar)
        small = power * scale_of_error.typical * (SMALL if scale_of_error.eps <= FINE else 1.0)
        if not fit.steep and abs(e) + bar <= small:
            return SlopeDecision(Verdict.PASS, Reason.AGREES, e, abs(e) + bar)
        return SlopeDecision(Verdict.INCONCLUSIVE, Reason.STEEP if fit.steep else Reason.PRECISION, e, bar)
    if bar <= power * scale_of_error.typical or not scale_of_error.scale:
        return SlopeDecision(Verdict.PASS, Reason.AGREES, e, bar)
    return SlopeDecision(Verdict.INCONCLUSIVE, Reason.STEEP if fit.steep else Reason.PRECISION, e, bar)


UNKNOWN = SlopeDecision(Verdict.FAIL, Reason.NOT_FINITE)


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the Jacobian as the derivative under test and the differences give it; no row: some combination."""

    output: Location | None
    input: Location
    derivative: float
    numerical: float
    error: float
    decision: SlopeDecision = UNKNOWN
    row: int = -1
    column: int = -1
    sweep: Mapping[str, Any] = field(default_factory=dict)
    """Its error at every step."""

    @property
    def verdict(self) -> Verdict:
        return self.decision.verdict

    @property
    def reason(self) -> Reason:
        return self.decision.reason


@dataclass(frozen=True, slots=True)
class Decision:
    """What the scrutiny of one mode came to."""

    verdict: Verdict
    reason: Reason
    entry: Entry | None = None
    error: float = 0.0
    bar: float = 0.0
