"""From a fitted slope to a verdict with its reason."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from gradvet.core import thresholds
from gradvet.core.extrapolation import SlopeFit
from gradvet.core.results import Verdict
from gradvet.core.vectors import Location


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
    PRECISION = "precision exhausted"
    NO_SIGNAL = "no signal"
    BUDGET = "budget spent"


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the Jacobian by the derivative under test and by differences; no row: a combination of outputs."""

    output: Location | None
    input: Location
    derivative: float
    numerical: float
    error: float
    """Error bar of `numerical`."""
    verdict: Verdict = Verdict.FAIL
    reason: Reason = Reason.NOT_FINITE
    row: int = -1
    column: int = -1
    sweep: Mapping[str, Any] = field(default_factory=dict)
    """Its error at every step, for a plot."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A verdict about the slope along one direction, or about all directions of one mode."""

    verdict: Verdict
    reason: Reason
    entry: Entry | None = None
    error: float = 0.0
    bar: float = 0.0

    def weakened(self, reason: Reason = Reason.PRECISION) -> Decision:
        """The same as INCONCLUSIVE, for this reason."""
        return Decision(Verdict.INCONCLUSIVE, reason, self.entry, self.error, self.bar)


AGREES = Decision(Verdict.PASS, Reason.AGREES)


@dataclass(frozen=True, slots=True)
class ErrorScale:
    """The sizes with which an error along a direction is compared."""

    slope: float
    """Size of the slope if no terms cancelled."""
    typical: float
    """What one typical entry of the gradient adds to the slope."""
    eps: float
    derivative_noise: float = 0.0
    """Noise of the derivative under test. A disagreement must exceed it. The error bar of an agreement includes it only
    where the noise of the differences alone does not explain the error."""
    unit: float = 0.0
    """Size of v·f if the outputs were of size one: the scale of values inside a function that cancel in its outputs."""
    saturated: float = 0.0
    """Roundoff of v·f by values of size one inside the function; 0 if the outputs themselves are larger."""
    value_noise: float = 0.0
    """Roundoff of v·f in which a slope may be hidden."""

    @property
    def material(self) -> float:
        """The smallest error that counts."""
        return self.slope * max(min(thresholds.ROUNDOFFS * self.eps, thresholds.MATERIAL_MAX), thresholds.MATERIAL_MIN)

    @property
    def has_few_steps(self) -> bool:
        """Whether the format is so coarse that a sweep has few steps."""
        return self.eps > thresholds.HALF_PRECISION_EPS


def is_saturated(fit: SlopeFit, scale: ErrorScale) -> bool:
    """Whether the values are multiples of the roundoff of numbers of size one, and the derivative is below that.

    In low precision the smallest steps show no change of any function: there the values must be constant.
    """
    is_constant = fit.is_quantised and (scale.eps <= thresholds.DOUBLE_EPS or not fit.rise)
    return is_constant and max(scale.slope, fit.rise) < scale.saturated


def decide(fit: SlopeFit, scale: ErrorScale, resolution: float) -> Decision:
    """FAIL needs a clear, material and constant error; PASS needs agreement that could have shown one."""
    error, own = abs(fit.error.value), fit.error.error + scale.value_noise
    bar = own + scale.derivative_noise

    def decided(verdict: Verdict, reason: Reason, seen: float = bar) -> Decision:
        return Decision(verdict, reason, error=fit.error.value, bar=seen)

    if is_saturated(fit, scale) and not error >= scale.saturated:
        # Needed by the gallery cases `gelu_at_minus_nine`, `one_plus_erf_at_minus_six` and, in low precision,
        # `test_constant_loss_of_a_kernel_passes`: both slopes are below the roundoff of numbers of size one. There need
        # not be a fit: a bias before a batch norm may change no value at all (`test_bias_without_any_effect_passes`).
        return Decision(Verdict.PASS, Reason.AGREES, error=0.0, bar=scale.saturated)
    if (obstacle := _obstacle(fit, scale, bar)) is not None:
        return decided(Verdict.INCONCLUSIVE, obstacle)
    if (at_kink := _verdict_at_kink(fit, scale, bar)) is not None:
        return decided(at_kink, Reason.KINK if at_kink is Verdict.PASS else Reason.OUTSIDE)
    open_reason = Reason.STEEP if fit.is_steep else Reason.PRECISION
    asked = resolution * scale.typical
    if error <= max(bar, thresholds.NEGLIGIBLE_PART * scale.material):
        seen = own if error <= own else bar
        return (
            decided(Verdict.PASS, Reason.AGREES, seen) if seen <= asked else decided(Verdict.INCONCLUSIVE, open_reason)
        )
    if error > thresholds.CLEAR * bar and error > scale.material:
        if fit.is_denied or (scale.has_few_steps and fit.unevenness > thresholds.VISIBLE_NOISE):
            return decided(Verdict.INCONCLUSIVE, Reason.PRECISION)
        # Needed by `test_very_certain_loss_does_not_fail`: the value is exact, and the derivative a difference of equal
        # numbers of size one.
        is_cancelled = not scale.slope and max(error, fit.rise) < scale.saturated
        if fit.has_plateau and not fit.is_steep and not is_cancelled:
            return decided(Verdict.FAIL, Reason.DISAGREES)
    asked *= thresholds.UNCLEAR_AGREEMENT if scale.eps <= thresholds.DOUBLE_EPS else 1.0
    if not fit.is_steep and error + bar <= asked:
        return decided(Verdict.PASS, Reason.AGREES, error + bar)
    return decided(Verdict.INCONCLUSIVE, open_reason)


def _obstacle(fit: SlopeFit, scale: ErrorScale, bar: float) -> Reason | None:
    """Why the fit shows neither agreement nor disagreement, if it does not."""
    error = abs(fit.error.value)
    if not math.isfinite(bar) or math.isnan(error):
        return Reason.PRECISION if fit.is_quantised else Reason.NOT_FINITE
    may_be_kink = scale.has_few_steps and not abs(fit.kink.value) + fit.kink.error < error
    if may_be_kink and error > thresholds.CLEAR * bar + scale.material:
        # With few steps, a kink next to the point looks like a slope.
        return Reason.PRECISION
    if fit.has_stairs and not scale.slope:
        # Zero is the slope of one stair, the other value that of the staircase: both are used as derivatives.
        return Reason.STAIRS
    return Reason.JUMP if fit.jumps else None


def _verdict_at_kink(fit: SlopeFit, scale: ErrorScale, bar: float) -> Verdict | None:
    """Whether the derivative is between the one-sided slopes of a kink; None if there is none, or it is unclear."""
    error, kink, kink_bar = abs(fit.error.value), abs(fit.kink.value), fit.kink.error
    is_clear = kink > thresholds.CLEAR * kink_bar and kink > thresholds.KINK_RTOL * scale.slope
    if not (fit.has_kink_plateau and is_clear):
        return None
    if error <= kink * (1.0 + thresholds.KINK_RTOL) + bar + kink_bar:
        return Verdict.PASS
    beyond = error - kink
    is_wrong = beyond > thresholds.CLEAR * (bar + kink_bar) and fit.has_plateau and beyond > scale.material
    return Verdict.FAIL if is_wrong else None
