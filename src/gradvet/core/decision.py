"""From a fitted slope to a verdict with its reason."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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
        return replace(self, verdict=Verdict.INCONCLUSIVE, reason=reason)


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
    """Noise of the derivative under test, which a disagreement must exceed. The error bar of an agreement includes it
    if the noise of the differences alone is below the error."""
    unit: float = 0.0
    """Size of v·f if the outputs were of size one: a function such as 1 - tanh(x) subtracts numbers of size one inside,
    however small its outputs are."""
    saturated: float = 0.0
    """Slope that the roundoff of numbers of size one inside the function hides (`saturated_slope`); 0 if the outputs
    are larger than that, or if wider steps would show more."""
    cancelled: float = 0.0
    """Roundoff of v·f by numbers of size one inside the function over the given step lengths (`saturated_roundoff`); 0
    if the outputs are larger than that. A derivative that subtracts such numbers has the same roundoff."""

    @property
    def roundoff_inside(self) -> float:
        """Roundoff of v·f by values of size one inside, over steps of length one, however large the outputs are."""
        return thresholds.ROUNDOFFS * self.eps * self.unit

    @property
    def is_double(self) -> bool:
        return self.eps <= thresholds.DOUBLE_EPS


def is_saturated(fit: SlopeFit, scale: ErrorScale) -> bool:
    """Whether roundoff of numbers of size one inside the function hides the slope, and the derivative is below it.

    The values are then multiples of that roundoff, or, in low precision, constant at all steps: the smallest steps
    change the values of no function there. If they change, the smallest change gives an error bar; an error clearly
    beyond it is not hidden. Needed by
    `test_halved_gradient_of_values_of_a_few_roundoffs_does_not_pass`.
    """
    is_constant = fit.is_quantised and (scale.is_double or not fit.rise)
    error = abs(fit.error.value)
    is_hidden = not fit.quantum or error <= thresholds.CLEAR * (fit.error.error + scale.derivative_noise)
    return is_constant and is_hidden and max(scale.slope, fit.change) < scale.saturated and not error >= scale.saturated


Rule = tuple[Verdict, Reason] | None
"""What one rule says about a fit; None where it does not apply."""


def decide(fit: SlopeFit, scale: ErrorScale, resolution: float) -> Decision:
    """The first rule that applies: saturated outputs, no slope at all, a kink, disagreement, agreement; else undecided.

    FAIL needs a clear, material and constant error; PASS needs agreement that could have shown one.
    """
    error, own = abs(fit.error.value), fit.error.error
    bar = own + scale.derivative_noise
    if is_saturated(fit, scale):
        # Needed by the gallery cases `gelu_at_minus_nine`, `one_plus_erf_at_minus_six` and, in low precision,
        # `test_constant_loss_of_a_kernel_passes`: both slopes are below the roundoff of numbers of size one. There need
        # not be a fit: a bias before a batch norm may change no value at all (`test_bias_without_any_effect_passes`).
        return Decision(Verdict.PASS, Reason.AGREES, bar=scale.saturated)
    least = max(thresholds.ROUNDOFFS * scale.eps, min(thresholds.SCREEN_RTOL, resolution))
    material = min(least, thresholds.MATERIAL_MAX) * scale.slope
    seen = own if error <= own else bar if error <= bar else error + bar
    # In double precision smaller steps resolve an error beyond its error bar, unless it is negligible.
    part = thresholds.NEGLIGIBLE_PART if error > bar and scale.is_double else 1.0
    agreement = Verdict.PASS, Reason.AGREES
    undecided = Verdict.INCONCLUSIVE, Reason.STEEP if fit.is_steep else Reason.PRECISION
    # Wide steps show the trend of a function that has steps of its own.
    agreement = (Verdict.INCONCLUSIVE, Reason.STAIRS) if fit.is_unfollowed else agreement
    verdict, reason = (
        _without_slope(fit, scale, bar)
        or _at_kink(fit, scale, bar, material)
        or _disagreement(fit, scale, bar, material)
        or (agreement if seen <= part * resolution * scale.typical else undecided)
    )
    return Decision(verdict, reason, error=fit.error.value, bar=seen if reason is Reason.AGREES else bar)


def _without_slope(fit: SlopeFit, scale: ErrorScale, bar: float) -> Rule:
    """INCONCLUSIVE where the values show neither a slope nor two one-sided ones."""
    if not math.isfinite(bar) or math.isnan(fit.error.value):
        return Verdict.INCONCLUSIVE, Reason.PRECISION if fit.is_quantised else Reason.NOT_FINITE
    if fit.has_stairs and not scale.slope:
        # Zero is the slope of one stair, the other value that of the staircase: both are used as derivatives.
        return Verdict.INCONCLUSIVE, Reason.STAIRS
    return (Verdict.INCONCLUSIVE, Reason.JUMP) if fit.jumps else None


def _at_kink(fit: SlopeFit, scale: ErrorScale, bar: float, material: float) -> Rule:
    """PASS between the one-sided slopes of a kink, FAIL clearly outside them."""
    error, kink, kink_bar = abs(fit.error.value), abs(fit.kink.value), fit.kink.error
    is_clear = kink > thresholds.CLEAR * kink_bar and kink > thresholds.KINK_RTOL * scale.slope
    if not (fit.has_kink_plateau and is_clear):
        return None
    if error <= kink * (1.0 + thresholds.KINK_RTOL) + bar + kink_bar:
        return Verdict.PASS, Reason.KINK
    is_outside = error - kink > max(thresholds.CLEAR * (bar + kink_bar), material)
    return (Verdict.FAIL, Reason.OUTSIDE) if is_outside and fit.has_plateau else None


def _disagreement(fit: SlopeFit, scale: ErrorScale, bar: float, material: float) -> Rule:
    """FAIL where a clear, material error is the same over several steps; undecided where the smallest ones deny it."""
    error = abs(fit.error.value)
    if error <= max(thresholds.CLEAR * bar, material):
        return None
    if fit.is_denied:
        return Verdict.INCONCLUSIVE, Reason.PRECISION
    # Needed by `test_very_certain_loss_does_not_fail` and `test_saturated_operators_of_the_framework_do_not_fail`: the
    # value is exact, and the derivative a difference of about equal numbers of size one.
    is_cancelled = max(error, fit.rise, scale.slope) < scale.cancelled
    # Needed by `test_right_function_passes_whose_steps_are_below_the_roundoff_inside`: roundoff of numbers of size one
    # inside the function hides a change as small as this error would be.
    is_unseen = scale.is_double and fit.is_quantised and not fit.quantum and error < scale.roundoff_inside
    return (Verdict.FAIL, Reason.DISAGREES) if fit.has_plateau and not (is_cancelled or is_unseen) else None
