"""One scalar along one direction, at steps in ratio two: is the slope under test the slope, and how sure is that?

φ(t) = v·f(x + t u) less what the derivative under test predicts is, with t > 0,

    odd part   O(t) = e t + c₃ t³ + ...      e: the error of the derivative along u
    even part  E(t) = a t + c₂ t² + ...      a: half the jump of the slope, zero where φ is smooth

plus noise, whose size the values themselves show. Extrapolations of several orders at every step give many estimates
of e and a. Choosing the one with the smallest standard error would choose the luckiest. Instead, from the noisiest
on, each must overlap all before it (Lepski's rule); the last one that does has the error bar.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Any

from gradvet.core.finite_differences import StepSweep

WIDTH = 4.0
"""Half an interval of confidence, in standard errors."""

PLATEAU = 3
"""So many steps in a row must show the same error before it counts."""

WILD = 1e3
"""Noise of so many times the least is not roundoff."""

WAVES = 0.02
"""And noise of so large a part of all that the values ever vary by may be waves between the steps."""

CLEARLY = 16.0
"""An error of so many roundoffs over a step cannot hide there."""

STAIR = 2.0**-18
"""Values that stand still over steps this wide are hardly rounded, even by a format of 24 bits."""

ROUNDED = 320.0
"""So many times the least noise is no rounding: 64 roundoffs."""

ODD_FILTER, SIDE_FILTER, EVEN_FILTER = (1.0, -10.0, 16.0), (1.0, -6.0, 8.0), (-0.125, 0.875, -1.75, 1.0)
"""Combinations of values at t, t/2, t/4, t/8 from which (t, t³), (t, t²) and (1, t, t²) drop out: noise is left."""

ODD_ORDERS = ((1.0,), (-1.0 / 3.0, 4.0 / 3.0), (1.0 / 45.0, -20.0 / 45.0, 64.0 / 45.0))
"""Weights of the slopes at t, t/2, t/4 that leave no t², no t⁴."""

SIDE_ORDERS = ((-1.0, 2.0), (1.0 / 3.0, -2.0, 8.0 / 3.0))
"""Weights of the slopes at t, t/2, t/4 that leave no t, no t²."""

EVEN_ORDERS = ((-2.0, 5.0, -2.0),)
"""Weights of the slopes at t, t/2, t/4 that leave neither t nor 1/t: the noise of f(x) itself is a constant in E."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number and how far from the truth it may be."""

    value: float
    error: float
    step: float = 0.0
    """The step that it rests on, where there is one."""


@dataclass(frozen=True, slots=True)
class SlopeFit:
    """What the ladder shows."""

    error: Estimate
    """e: by how much the derivative under test is off."""
    kink: Estimate
    """a: half the difference of the one-sided slopes; infinitely uncertain where only one side exists."""
    plateau: bool
    """Whether the error is the same over several steps."""
    bent: bool = False
    """Whether the kink is the same over several steps."""
    one_sided: bool = False
    jump: bool = False
    still: bool = False
    """Whether no value changed at any step that counts."""
    steep: bool = False
    """Whether the slopes grow without limit towards the point."""
    wild: float = 0.0
    """Where the values vary from step to step by far more than roundoff: by how much, over the smallest step."""
    unevenness: float = 0.0
    """By how many roundoffs the values vary from step to step beyond what is smooth."""
    denied: bool = False
    """Whether the narrowest steps at which an error of this size could not hide in roundoff show none."""
    stairs: bool = False
    """Whether the values stand still over steps that are too wide for rounding, and move over wider ones."""


NOTHING = SlopeFit(Estimate(0.0, math.inf), Estimate(0.0, math.inf), plateau=False)


def fit_slope(step_sweep: StepSweep) -> SlopeFit:
    """Both sides where both are finite, else the one that is."""
    both = _usable(
        step_sweep,
        [math.isfinite(p) and math.isfinite(m) for p, m in zip(step_sweep.plus, step_sweep.minus, strict=True)],
    )
    if len(both) >= PLATEAU + 1:
        return replace(_two_sided(step_sweep, both), stairs=_stairs(step_sweep))
    for values in (step_sweep.plus, [-value for value in step_sweep.minus]):
        kept = _usable(step_sweep, [math.isfinite(value) for value in values])
        if len(kept) >= PLATEAU + 1:
            return _one_sided(step_sweep, kept, values)
    return NOTHING


def _usable(step_sweep: StepSweep, finite: Sequence[bool]) -> list[int]:
    """Steps below the last one that is not finite, and above those at which the values stand still.

    Values that stand still over wide steps are flat; over narrow ones they are rounded, and show nothing.
    """
    first = max((i + 1 for i, good in enumerate(finite) if not good), default=0)
    still = next((i for i in range(first, len(finite)) if not any(step_sweep.moved[i:])), len(finite))
    if still < len(finite) and step_sweep.steps[still] >= step_sweep.flat:
        return list(range(still, len(finite)))
    most = max(step_sweep.moved[first:], default=0)
    return [i for i in range(first, len(finite)) if 2 * step_sweep.moved[i] >= most]


def _stairs(step_sweep: StepSweep) -> bool:
    return any(
        _stands(step_sweep, side, still)
        for side, still in zip((step_sweep.plus, step_sweep.minus), zip(*step_sweep.still, strict=True), strict=False)
    )


def _stands(step_sweep: StepSweep, side: Sequence[float], still: Sequence[bool]) -> bool:
    """Whether one side stands still over wide steps, and moves over wider ones."""
    least = ROUNDED * step_sweep.floor
    slopes = [
        abs(value) / step for value, step in zip(side, step_sweep.steps, strict=True) if least < abs(value) < math.inf
    ]
    steepest = max(slopes, default=0.0)
    return any(
        rests and step >= STAIR and steepest * step > least for step, rests in zip(step_sweep.steps, still, strict=True)
    )


def _two_sided(step_sweep: StepSweep, kept: Sequence[int]) -> SlopeFit:
    steps = [step_sweep.steps[i] for i in kept]
    plus, minus = ([side[i] for i in kept] for side in (step_sweep.plus, step_sweep.minus))
    odd, even = ([(p + sign * m) / 2.0 for p, m in zip(plus, minus, strict=True)] for sign in (-1.0, 1.0))
    noise = max(_noise(odd, ODD_FILTER), step_sweep.floor, step_sweep.grain)
    error = _lepski(steps, odd, noise, ODD_ORDERS)
    doubt = max(_noise(even, EVEN_FILTER), noise)
    kink = _lepski(steps, even, doubt, EVEN_ORDERS)
    jump = _constant(odd, step_sweep.floor) or _constant(even, step_sweep.floor)
    return SlopeFit(
        error,
        kink,
        plateau=_plateau(steps, odd, noise, error),
        bent=_plateau(steps, _without_constant(even), 7.0 * doubt, kink),
        still=not any(step_sweep.moved[i] for i in kept),
        jump=jump,
        steep=_steep(steps, odd) or _steep(steps, even),
        denied=any(_denied(steps, side, step_sweep.floor, error) for side in (odd, plus, minus)),
        unevenness=noise / step_sweep.floor if step_sweep.floor else 0.0,
        wild=noise / steps[-1] if noise > max(WILD * step_sweep.floor, WAVES * step_sweep.rise) else 0.0,
    )


def _one_sided(step_sweep: StepSweep, kept: Sequence[int], values: Sequence[float]) -> SlopeFit:
    steps, side = [step_sweep.steps[i] for i in kept], [values[i] for i in kept]
    noise = max(_noise(side, SIDE_FILTER), step_sweep.floor, step_sweep.grain)
    error = _lepski(steps, side, noise, SIDE_ORDERS)
    found = _plateau(steps, side, noise, error)
    jump, denied = _constant(side, step_sweep.floor), _denied(steps, side, step_sweep.floor, error)
    return SlopeFit(
        error,
        Estimate(0.0, math.inf),
        found,
        one_sided=True,
        jump=jump,
        steep=_steep(steps, side),
        denied=denied,
        unevenness=noise / step_sweep.floor if step_sweep.floor else 0.0,
    )


def _noise(values: Sequence[float], weights: Sequence[float]) -> float:
    """The spread of what the filter leaves over the smaller half of the steps, as a standard deviation."""
    width = len(weights)
    left = [abs(sum(w * values[i + k] for k, w in enumerate(weights))) for i in range(len(values) - width + 1)]
    return 1.4826 * median(left[len(left) // 2 :]) / math.sqrt(sum(w * w for w in weights))


def _lepski(
    steps: Sequence[float], values: Sequence[float], noise: float, orders: Sequence[Sequence[float]]
) -> Estimate:
    found = [_consistent(steps, values, noise, order) for order in orders]
    return min(found, key=lambda estimate: estimate.error)


def _consistent(steps: Sequence[float], values: Sequence[float], noise: float, weights: Sequence[float]) -> Estimate:
    """From the smallest step up, the last extrapolation that overlaps all before it."""
    low, high, best = -math.inf, math.inf, Estimate(0.0, math.inf)
    slopes = [value / step for value, step in zip(values, steps, strict=True)]
    for start in range(len(steps) - len(weights), -1, -1):
        value = sum(w * slopes[start + k] for k, w in enumerate(weights))
        spread = math.sqrt(sum((w / steps[start + k]) ** 2 for k, w in enumerate(weights)))
        reach = WIDTH * noise * spread
        if max(low, value - reach) > min(high, value + reach):
            break
        low, high = max(low, value - reach), min(high, value + reach)
        best = Estimate(value, reach, steps[start])
    return best


def _plateau(steps: Sequence[float], values: Sequence[float], noise: float, error: Estimate) -> bool:
    """Whether several steps in a row show this very error, clear of the noise."""
    run = 0
    for step, value in zip(steps, values, strict=False):
        slope, spread = value / step, WIDTH * noise / step
        run = run + 1 if abs(slope - error.value) <= 0.1 * abs(error.value) + error.error and abs(slope) > spread else 0
        if run >= PLATEAU:
            return True
    return False


def _denied(steps: Sequence[float], values: Sequence[float], floor: float, error: Estimate) -> bool:
    """A derivative is about narrow steps: what wide ones show against it counts only if those do not speak for it.

    Teeth, waves and jumps between the wide steps look like another slope there. One side is enough.
    """
    clear = [
        value / step for step, value in zip(steps, values, strict=True) if CLEARLY * floor <= abs(error.value) * step
    ]
    narrowest = clear[-max(1, len(steps) // 8) :]
    return bool(narrowest) and all(abs(slope) <= abs(error.value) / 4.0 for slope in narrowest)


def _without_constant(even: Sequence[float]) -> list[float]:
    """The part of E that is proportional to t, at each step that has two smaller ones."""
    return [-2.0 * a + 10.0 * b - 8.0 * c for a, b, c in zip(even, even[1:], even[2:], strict=False)]


def _constant(values: Sequence[float], floor: float) -> bool:
    """Whether the smallest steps all leave the same difference: the function jumps at the point."""
    tail = values[-PLATEAU - 1 :]
    middle = median(tail)
    return abs(middle) > 64.0 * floor and all(abs(value - middle) <= 0.1 * abs(middle) for value in tail)


def _steep(steps: Sequence[float], values: Sequence[float]) -> bool:
    """Whether the slopes grow like a negative power of the step, as at the start of a square root."""
    lengths = [abs(value) / step for value, step in zip(values, steps, strict=True)]
    growth = [math.log2(b / a) if a > 0.0 and b > 0.0 else 0.0 for a, b in pairwise(lengths)]
    tail = growth[-max(PLATEAU + 3, len(growth) // 2) :]
    return len(tail) > PLATEAU and min(tail) > 0.15 and max(tail) < 0.85 and max(tail) - min(tail) < 0.2


def sweep_figure(step_sweep: StepSweep, fit: SlopeFit, size: float) -> dict[str, Any]:
    """How far the difference at each step is from the slope that was settled on; a step of 1 has the length `size`."""
    found = fit.error
    odd = [(plus - minus) / 2.0 for plus, minus in zip(step_sweep.plus, step_sweep.minus, strict=True)]
    return {
        "steps": [step * size for step in step_sweep.steps],
        "errors": [abs(value / step - found.value) / size for value, step in zip(odd, step_sweep.steps, strict=True)],
        "floor": [step_sweep.floor / (step * size) for step in step_sweep.steps],
        "chosen": found.step * size,
        "gap": abs(found.value) / size,
    }
