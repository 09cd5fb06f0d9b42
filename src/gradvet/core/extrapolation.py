"""From a step sweep to a slope with an error bar.

φ(t) = v·f(x + t u) minus the prediction of the derivative under test is, for t > 0,

    odd part   O(t) = e t + c₃ t³ + ...      e: the error of the derivative along u
    even part  E(t) = a t + c₂ t² + ...      a: half the jump of the slope, zero where φ is smooth

plus noise, whose size the values show themselves. Extrapolations of several orders at every step give many estimates
of e and a. The one with the smallest standard error would be too optimistic. Instead, from the noisiest estimate on,
each must overlap all before it (Lepski's rule); the last one that does gives the value and the error bar.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Any

from gradvet.core import thresholds
from gradvet.core.finite_differences import StepSweep

ODD_FILTER, SIDE_FILTER, EVEN_FILTER = (1.0, -10.0, 16.0), (1.0, -6.0, 8.0), (-0.125, 0.875, -1.75, 1.0)
"""Weights of values at t, t/2, t/4, t/8 that cancel (t, t³), (t, t²) and (1, t, t²), so that noise remains."""

ODD_ORDERS = ((1.0,), (-1.0 / 3.0, 4.0 / 3.0), (1.0 / 45.0, -20.0 / 45.0, 64.0 / 45.0))
"""Weights of the slopes at t, t/2, t/4 that cancel t² and t⁴."""

SIDE_ORDERS = ((-1.0, 2.0), (1.0 / 3.0, -2.0, 8.0 / 3.0))
"""Weights of the slopes at t, t/2, t/4 that cancel t and t²; the odd part has a t where the curvature changes at the
point. Needed by `square_of_clamp_at_both_edges`."""

EVEN_ORDER = (-2.0, 5.0, -2.0)
"""Weights of the slopes at t, t/2, t/4 that cancel t and 1/t: the noise of f(x) itself is a constant in E."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its error bar."""

    value: float
    error: float
    step: float = 0.0
    """The step that it rests on; 0 where there is none."""


@dataclass(frozen=True, slots=True)
class SlopeFit:
    """Error, kink and structure of the values that were fitted to a step sweep, with error bars."""

    error: Estimate
    """e: error of the derivative under test along u."""
    kink: Estimate
    """a: half the difference of the one-sided slopes; infinite error bar where only one side exists."""
    has_plateau: bool
    """Whether the error is the same over several steps."""
    has_kink_plateau: bool = False
    """Whether the kink is the same over several steps."""
    one_sided: bool = False
    jumps: bool = False
    is_steep: bool = False
    """Whether the slopes grow without limit towards the point."""
    is_denied: bool = False
    """Whether the smallest steps that would show an error of this size show none."""
    is_unfollowed: bool = False
    """Whether the smallest steps that would show the slope do not show it."""
    rise: float = 0.0
    """Largest change of v·f at any step; 0 where it may be roundoff."""
    change: float = 0.0
    """Largest change of v·f at any step, roundoff included."""
    is_quantised: bool = False
    """Whether the values stay exactly equal over some steps: they are multiples of a number coarser than their spacing.
    """
    quantum: float = 0.0
    """Standard deviation of such values, by their smallest change; 0 where they do not change at all."""
    has_stairs: bool = False
    """Whether the values are constant over steps too wide for rounding, and change over wider ones."""
    within_stair: Estimate = Estimate(0.0, math.inf)
    """e by the widest such step at which neither side changes; infinite error bar where there is none."""


NO_FIT = SlopeFit(Estimate(0.0, math.inf), Estimate(0.0, math.inf), has_plateau=False)


def fit_slope(sweep: StepSweep) -> SlopeFit:
    """Both sides where both are finite, otherwise the side that is."""
    is_quantised = any(not any(counts) for counts in sweep.changed)
    finite = [math.isfinite(p) and math.isfinite(m) for p, m in zip(sweep.plus, sweep.minus, strict=True)]
    both = _usable(sweep, finite)
    if len(both) >= thresholds.PLATEAU_STEPS + 1:
        fit = _two_sided(sweep, both)
        is_flat = not fit.error.value and _begins_slowly(sweep)
        has_stairs = not is_flat and _has_stairs(sweep)
        within = _within_stair(sweep) if has_stairs else fit.within_stair
        return replace(fit, has_stairs=has_stairs, within_stair=within, is_quantised=is_quantised)
    for values in (sweep.plus, [-value for value in sweep.minus]):
        kept = _usable(sweep, [math.isfinite(value) for value in values])
        if len(kept) >= thresholds.PLATEAU_STEPS + 1:
            steps, side = [sweep.steps[i] for i in kept], [values[i] for i in kept]
            fit, _ = _fit(sweep, steps, side, SIDE_FILTER, SIDE_ORDERS)
            return replace(fit, one_sided=True, is_quantised=is_quantised)
    return replace(NO_FIT, is_quantised=is_quantised and all(finite))


def _usable(sweep: StepSweep, finite: Sequence[bool]) -> list[int]:
    """Steps below the last one that is not finite, and above those at which the values no longer change.

    Values that are constant over wide steps are constant; over small ones they are rounded, and show nothing.
    """
    levels = range(len(finite))
    first = max((i + 1 for i in levels if not finite[i]), default=0)
    moved = [sum(counts) for counts in sweep.changed]
    constant_from = next((i for i in levels[first:] if not any(moved[i:])), len(finite))
    if constant_from < len(finite) and sweep.steps[constant_from] >= sweep.constant_step:
        return list(levels[constant_from:])
    most = max(moved[first:], default=0)
    return [i for i in levels[first:] if 2 * moved[i] >= most]


def _has_stairs(sweep: StepSweep) -> bool:
    """Whether one side is constant over wide steps and changes over wider ones."""
    least = thresholds.ROUNDOFFS / thresholds.NOISE_FLOOR * sweep.noise_floor
    for side, values in enumerate((sweep.plus, sweep.minus)):
        slopes = [abs(r) / t for r, t in zip(values, sweep.steps, strict=True) if least < abs(r) < math.inf]
        steepest = max(slopes, default=0.0)
        for step, counts in zip(sweep.steps, sweep.changed, strict=True):
            if not counts[side] and step >= thresholds.STAIR_STEP and steepest * step > least:
                return True
    return False


def _within_stair(sweep: StepSweep) -> Estimate:
    """The error of the derivative by the widest step, too wide for rounding, from which on no smaller one changes f."""
    width = 0.0
    for step, counts in zip(reversed(sweep.steps), reversed(sweep.changed), strict=True):
        if any(counts):
            break
        width = step
    if width < thresholds.STAIR_STEP:
        return Estimate(0.0, math.inf)
    level = list(sweep.steps).index(width)
    odd = (sweep.plus[level] - sweep.minus[level]) / 2.0
    return Estimate(odd / width, thresholds.INTERVAL_WIDTH * sweep.noise_floor / width, width)


def _begins_slowly(sweep: StepSweep) -> bool:
    """Whether values that are constant near the point change as those of an inactive ReLU do, and not by a jump.

    Beyond a kink between two steps t and 2t the change at 4t is at least three times that at 2t. Needed by
    `test_argument_that_no_minimum_selects_passes`.
    """
    for side, values in enumerate((sweep.plus, sweep.minus)):
        pairs = zip(values, sweep.changed, strict=True)
        changes = [abs(value) for value, counts in pairs if counts[side]][-2:]  # the largest step is the first
        if len(changes) == 2 and not changes[0] >= 3.0 * changes[1]:
            return False
    return True


def _two_sided(sweep: StepSweep, kept: Sequence[int]) -> SlopeFit:
    """The slope by the odd part, the kink by the even part; one side is enough to jump, or to deny an error."""
    steps = [sweep.steps[i] for i in kept]
    plus, minus = ([side[i] for i in kept] for side in (sweep.plus, sweep.minus))
    odd, even = ([(p + sign * m) / 2.0 for p, m in zip(plus, minus, strict=True)] for sign in (-1.0, 1.0))
    fit, noise = _fit(sweep, steps, odd, ODD_FILTER, (*ODD_ORDERS, *SIDE_ORDERS))
    even_noise = max(_noise(even, EVEN_FILTER), noise)
    bends = _extrapolations(steps, even, even_noise, EVEN_ORDER)
    kink = last_consistent(bends)
    return replace(
        fit,
        kink=kink,
        has_kink_plateau=_has_plateau(bends, kink),
        jumps=fit.jumps or _tends_to_constant(even, sweep.noise_floor),
        is_steep=fit.is_steep or _is_steep(steps, even),
        is_denied=fit.is_denied or any(_is_denied(steps, side, sweep.noise_floor, fit.error) for side in (plus, minus)),
    )


def _fit(
    sweep: StepSweep,
    steps: Sequence[float],
    values: Sequence[float],
    noise_filter: Sequence[float],
    orders: Sequence[Sequence[float]],
) -> tuple[SlopeFit, float]:
    """Slope and structure of the values at some steps, without a kink, and their noise."""
    noise = max(_noise(values, noise_filter), sweep.noise_floor, sweep.quantum)
    extrapolated = [_extrapolations(steps, values, noise, order) for order in orders]
    error, by_order = min(((last_consistent(found), found) for found in extrapolated), key=lambda pair: pair[0].error)
    fit = SlopeFit(
        error,
        Estimate(0.0, math.inf),
        # The order that was chosen: needed by `cutoff_at_its_end_too_steep`.
        has_plateau=any(_has_plateau(found, error) for found in (extrapolated[0], by_order)),
        jumps=_tends_to_constant(values, sweep.noise_floor),
        is_steep=_is_steep(steps, values),
        is_denied=_is_denied(steps, values, sweep.noise_floor, error),
        rise=sweep.rise if sweep.rise > thresholds.ROUNDOFFS * noise else 0.0,
        change=sweep.rise,
        quantum=sweep.quantum,
        is_unfollowed=sweep.is_unfollowed,
    )
    return fit, noise


def _noise(values: Sequence[float], weights: Sequence[float]) -> float:
    """Standard deviation of what the filter leaves over the smaller half of the steps, by the median."""
    width = len(weights)
    left = [abs(sum(w * values[i + k] for k, w in enumerate(weights))) for i in range(len(values) - width + 1)]
    return 1.4826 * median(left[len(left) // 2 :]) / math.sqrt(sum(w * w for w in weights))


def _extrapolations(
    steps: Sequence[float], values: Sequence[float], noise: float, weights: Sequence[float]
) -> list[Estimate]:
    """The weighted sum of the slopes at each step and at those that follow it, with its error bar."""
    slopes = [value / step for value, step in zip(values, steps, strict=True)]
    found = []
    for start in range(len(steps) - len(weights) + 1):
        value = sum(w * slopes[start + k] for k, w in enumerate(weights))
        spread = math.sqrt(sum((w / steps[start + k]) ** 2 for k, w in enumerate(weights)))
        found.append(Estimate(value, thresholds.INTERVAL_WIDTH * noise * spread, steps[start]))
    return found


def last_consistent(estimates: Sequence[Estimate]) -> Estimate:
    """From the smallest step up, the most precise estimate that overlaps all before it (Lepski's rule)."""
    low, high, best = -math.inf, math.inf, estimates[-1]
    for estimate in reversed(estimates):
        low, high = max(low, estimate.value - estimate.error), min(high, estimate.value + estimate.error)
        if low > high:
            break
        best = estimate if estimate.error <= best.error else best
    return best


def _has_plateau(slopes: Sequence[Estimate], error: Estimate) -> bool:
    """Whether several consecutive steps show this error, above the noise. Needed by `squash_kernel_in_float32`."""
    run = 0
    tolerance = thresholds.PLATEAU_RTOL * abs(error.value) + error.error
    for slope in slopes:
        run = run + 1 if abs(slope.value - error.value) <= tolerance and abs(slope.value) > slope.error else 0
        if run >= thresholds.PLATEAU_STEPS:
            return True
    return False


def _is_denied(steps: Sequence[float], values: Sequence[float], noise_floor: float, error: Estimate) -> bool:
    """Whether the smallest steps that could show the error agree with the derivative.

    Teeth, waves or jumps that are narrower than the wide steps look like another slope over these, and a right
    derivative would fail. One side of the point is enough. Needed by the fine teeth of
    `test_right_kernel_of_one_dtype_does_not_fail`.
    """
    size = abs(error.value)
    visible = [v / t for t, v in zip(steps, values, strict=True) if thresholds.VISIBLE_NOISE * noise_floor <= size * t]
    smallest = visible[-max(1, len(steps) // 8) :]
    return bool(smallest) and all(abs(slope) <= thresholds.NEGLIGIBLE_PART * size for slope in smallest)


def _tends_to_constant(values: Sequence[float], noise_floor: float) -> bool:
    """Whether the smallest steps all leave the same difference: the function jumps at the point.

    Needed by `test_other_value_at_the_point_itself_is_a_jump`, which passes without it.
    """
    tail = values[-thresholds.PLATEAU_STEPS - 1 :]
    middle = median(tail)
    same = all(abs(value - middle) <= thresholds.PLATEAU_RTOL * abs(middle) for value in tail)
    return abs(middle) > thresholds.ROUNDOFFS * noise_floor and same


def _is_steep(steps: Sequence[float], values: Sequence[float]) -> bool:
    """Whether the slopes grow like a negative power of the step, as at the start of a square root.

    Or by equal amounts, like its logarithm: needed by `test_entropy_at_zero_has_a_vertical_tangent`.
    """
    sizes = [abs(value) / step for value, step in zip(values, steps, strict=True)]
    growth = [math.log2(b / a) if a > 0.0 and b > 0.0 else 0.0 for a, b in pairwise(sizes)]
    start = -max(thresholds.PLATEAU_STEPS + 3, len(growth) // 2)
    tail, amounts = growth[start:], [b - a for a, b in pairwise(sizes)][start:]
    low, high, spread = thresholds.STEEP_GROWTH
    is_growth = low < min(tail, default=0.0) and max(tail, default=0.0) < high and max(tail) - min(tail) < spread
    is_logarithm = 0.0 < (1.0 - spread) * max(amounts, default=0.0) < min(amounts, default=0.0)
    return len(tail) > thresholds.PLATEAU_STEPS and (is_growth or is_logarithm)


def sweep_figure(sweep: StepSweep, fit: SlopeFit, length: float) -> dict[str, Any]:
    """Distance of the difference at each step from the fitted slope, for a plot; a step of 1 has this length."""
    odd = [(plus - minus) / 2.0 for plus, minus in zip(sweep.plus, sweep.minus, strict=True)]
    return {
        "steps": [step * length for step in sweep.steps],
        "errors": [abs(value / step - fit.error.value) / length for value, step in zip(odd, sweep.steps, strict=True)],
        "floor": [sweep.noise_floor / (step * length) for step in sweep.steps],
        "chosen": fit.error.step * length,
        "extrapolated": True,
        "gap": abs(fit.error.value) / length,
    }
