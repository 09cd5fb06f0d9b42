"""Finite differences: step lengths, stencils, difference quotients, sweeps over steps; cotangents that they meet."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from gradvet.core import thresholds
from gradvet.core.problem import Problem
from gradvet.core.vectors import Array, all_finite, dot, finite_part, namespace, norm, peak


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
    is_steep: bool = False
    """Whether the derivative gave the lengths."""


def step_lengths(problem: Problem) -> Array:
    """max(|x|, ¼ rms of its tensor) for each coordinate; 0 for what is infinite or not a number."""
    point = problem.point
    xp, lengths = namespace(point), problem.zeros(problem.domain.size)
    for leaf, part in problem.domain.sections:
        x = point[part]
        if leaf.coordinates.parts == 1:
            size = xp.abs(x)
        else:
            numbers = xp.reshape(x, (-1, leaf.coordinates.parts))
            size = xp.sqrt(xp.sum(numbers * numbers, axis=-1))
        top, found = peak(size), finite_part(size)
        if top < sys.float_info.min:  # subnormal numbers count as zero: steps relative to them would underflow
            top, found = 0.0, xp.zeros_like(found)
        relative = found / (top or 1.0)
        rms = top * math.sqrt(float(relative @ relative) / relative.shape[0]) if top else 1.0 / thresholds.MIN_LENGTH
        length = xp.clip(found, thresholds.MIN_LENGTH * rms)
        length = length if found is size else xp.where(xp.isfinite(size), length, xp.zeros_like(length))
        lengths[part] = xp.repeat(length, leaf.coordinates.parts) if leaf.coordinates.parts > 1 else length
    return lengths


Stencil = tuple[tuple[float, ...], tuple[float, ...]]
"""Values of s and weights: Σ weight · f(x + s d) ≈ J d. Where s is 0, the value is known."""

CENTRAL: Stencil = (1.0, -1.0), (1.0 / 2.0, -1.0 / 2.0)
"""Two evaluations; error h²/6 · f'''."""

SKEWED: Stencil = (1.0, -1.0, 3.0, 0.0), (3.0 / 4.0, -3.0 / 8.0, -1.0 / 24.0, -1.0 / 3.0)
"""Three evaluations and the value at the point; error h³/8 · f''''."""

EXTRAPOLATED: Stencil = (1.0, -1.0, 3.0, -3.0), (9.0 / 16.0, -9.0 / 16.0, -1.0 / 48.0, 1.0 / 48.0)
"""Four evaluations; Richardson's step removes the h² term and leaves an error of 3h⁴/40 · f'''''."""


LEAST_STEP = 1e-3
"""Rounding is taken to leave at least this part of a step."""


def entry_error(problem: Problem, place: tuple[int, int], step: float, slope: float) -> float:
    """The error bar of an entry of the Jacobian, whose slope is a central difference at this step. Two evaluations.

    It is the truncation error seen against twice the step, and roundoff.
    """
    row, column = place
    try:
        (perturbation,) = problem.unit_steps(column, column + 1)
        ahead, behind = problem.evaluate(perturbation, (2.0 * step, -2.0 * step))
    except Exception:  # the function ends between one step and two: nothing is known about the error
        return math.inf
    # D(2h) - D(h) = 3 · h²/6 · f''' + ..., so a third of it is D(h)'s own truncation error.
    truncation = abs(float(ahead[row] - behind[row]) / (4.0 * step) - slope) / 3.0
    roundoff = 2.0 * sys.float_info.epsilon * abs(float(problem.value[row])) / step
    # The step itself is rounded to the inputs' precision, so that the slope is its value / (1 ± step_rounding).
    step_rounding = problem.step_rounding(step)
    rounding = step_rounding / max(1.0 - step_rounding, LEAST_STEP)
    return truncation + roundoff + rounding * abs(slope)


SWEEPS = ((2.0**-40, -4, 24), (2.0**-20, -3, 18), (2.0**-9, -2, 12), (1.0, -1, 9))
"""Step sweeps: largest spacing of the format, exponent of the largest step, number of steps."""


@dataclass(frozen=True, eq=False)
class DirectionalDifference:
    """Difference quotients of every differentiable output along u, split into the odd and the even part."""

    problem: Problem
    u: Array
    step: float
    displacement: Array
    """What rounding left of u, per unit of the step."""
    odd: Array
    even: Array

    @classmethod
    def along(cls, problem: Problem, u: Array, step: float) -> DirectionalDifference:
        """Odd part [f(x+hu) - f(x-hu)]/2h and even part [f(x+hu) + f(x-hu) - 2f(x)]/2h. Two evaluations."""
        f0 = problem.value[: problem.codomain.size]
        plus, minus = problem.evaluate_at(step * u), problem.evaluate_at(-step * u)
        rise, fall = (side.values[: f0.shape[0]] - f0 for side in (plus, minus))
        displacement = plus.displacement  # written in place: it may be as large as a model
        displacement -= minus.displacement
        displacement /= 2.0 * step
        return cls(problem, u, step, displacement, (rise - fall) / (2.0 * step), (rise + fall) / (2.0 * step))

    @cached_property
    def at_twice_the_step(self) -> DirectionalDifference:
        """Two more evaluations. The displacement, a large vector, is that of the smaller step."""
        problem, h, rows = self.problem, 2.0 * self.step, self.problem.codomain.size
        rise, fall = (problem.evaluate_at(t * self.u).values[:rows] - problem.value[:rows] for t in (h, -h))
        odd, even = (rise - fall) / (2.0 * h), (rise + fall) / (2.0 * h)
        return DirectionalDifference(problem, self.u, h, self.displacement, odd, even)

    @cached_property
    def extrapolated(self) -> Array:
        """The slope without its h² term (Richardson), by the evaluations at twice the step."""
        slope: Array = (4.0 * self.odd - self.at_twice_the_step.odd) / 3.0
        return slope

    @cached_property
    def is_finite(self) -> bool:
        return all_finite(self.odd)


class Cotangent(NamedTuple):
    """A cotangent v and the derivative under test along it, Jᵀv; or several, one in each row of both."""

    v: Array
    vjp: Array
    nonfinite: Array | None = None
    """With error bars: columns in which Jᵀv is not finite, and zero here; None if there is none."""


Change = Callable[[Cotangent, Array, Array, float], float | Array]
"""By how much the derivative under test says v·f changes: from a cotangent, u, and a displacement of about t u."""


@dataclass(frozen=True, slots=True)
class StepSweep:
    """Residuals v·[f(x ± d) - f(x)] - w·(±d) on both sides, from the largest step to the smallest."""

    steps: Sequence[float]
    plus: Sequence[float]
    minus: Sequence[float]
    changed: Sequence[tuple[int, int]]
    """Number of outputs that changed on each side at each step: unchanged values show nothing about a slope."""
    noise_floor: float
    """Smallest standard deviation of v·f."""
    quantum: float = 0.0
    """Standard deviation of v·f where the values are multiples of a number larger than the format's spacing."""
    rise: float = 0.0
    """Largest change of v·f at any step."""
    constant_step: float = math.inf
    """A function that is constant within steps this wide is constant; within smaller ones its values are rounded."""
    is_unfollowed: bool = False
    """Whether the smallest steps over which the prediction exceeds roundoff show next to no change."""


def sweep_steps(
    problem: Problem,
    u: Array,
    cotangents: Sequence[Cotangent],
    change_of: Change,
    repeat_noise: Array,
    steps: Sequence[float],
    eps: float,
) -> list[StepSweep]:
    """One sweep along u for each cotangent; two evaluations a step for all of them together.

    Cotangents and `repeat_noise` are about the differentiable outputs, or about all of them.
    """
    rows, xp = repeat_noise.shape[0], namespace(u)
    f0 = problem.value[:rows]
    weights = [xp.astype(one.v != 0.0, one.v.dtype) for one in cotangents]
    seen: list[list[tuple[float, float, int]]] = [[] for _ in cotangents]
    moving = int(xp.count_nonzero(u))
    for level, t in enumerate(signed for step in steps for signed in (step, -step)):
        evaluation = problem.evaluate_at(t * u)
        change = evaluation.values[:rows] - f0
        is_still = 2 * int(xp.count_nonzero(evaluation.displacement)) < moving
        if is_still and eps <= thresholds.HALF_PRECISION_EPS and bool(xp.any(change == change)):
            # Next to its size a coordinate has no smaller steps: values that stay the same say nothing. Needed by
            # `test_steps_that_rounding_takes_away_show_nothing`.
            steps = steps[: level // 2]
            break
        for found, one, weight in zip(seen, cotangents, weights, strict=True):
            rise = dot(one.v, change)
            residual = rise - float(change_of(one, u, evaluation.displacement, t))
            found.append((rise, residual, int(xp.count_nonzero(change * weight))))
    floors = (thresholds.NOISE_FLOOR * eps * norm(one.v, f0) + norm(one.v, repeat_noise) for one in cotangents)
    # Values of size one may cancel inside: needed by
    # `test_right_function_passes_whose_steps_are_below_the_roundoff_inside`.
    inside = (thresholds.NOISE_FLOOR * eps * norm(one.v) for one in cotangents)
    return [_sweep(steps, *each, eps) for each in zip(seen, floors, inside, strict=True)]


def _sweep(
    steps: Sequence[float], seen: Sequence[tuple[float, float, int]], noise_floor: float, inside: float, eps: float
) -> StepSweep:
    """A sweep of the changes of v·f, residuals and numbers of changed outputs at each step, one side after the other.

    Values that stay equal over small steps are multiples of a number: half the smallest change is their noise.
    """
    rises, residuals, counts = zip(*seen[: 2 * len(steps)], strict=True) if steps else ((), (), ())
    changed = list(zip(counts[::2], counts[1::2], strict=True))
    sizes = [abs(rise) for rise in rises if rise and math.isfinite(rise)]
    rise = max(sizes, default=0.0)
    # Needed by `test_lost_gradient_of_values_that_vary_by_roundoff_inside_fails`: what changes by roundoff alone is
    # not constant, but rounded.
    least = thresholds.ROUNDOFFS * max(noise_floor, inside)
    constant = math.inf if 0.0 < rise <= thresholds.ROUNDOFFS * noise_floor else constant_step_for(eps)
    equal = [step for step, sides in zip(steps, changed, strict=True) if not any(sides)]
    quantum = min(sizes) / 2.0 if sizes and equal and max(equal) < constant else 0.0
    sweep = StepSweep(steps, residuals[::2], residuals[1::2], changed, noise_floor, quantum, rise, constant)
    return replace(sweep, is_unfollowed=_is_unfollowed(sweep, rises[::2], rises[1::2], least))


def _is_unfollowed(sweep: StepSweep, plus: Sequence[float], minus: Sequence[float], least: float) -> bool:
    """Whether next to nothing changes, or few outputs do, over the smallest steps that the derivative says are visible.

    Then the function has steps of its own, wider than rounding explains, and what wide steps show is the slope of its
    trend, with which a straight-through gradient agrees. Needed by
    `test_straight_through_gradient_of_fine_steps_does_not_pass`.
    """
    most = max(map(sum, sweep.changed), default=0)
    found = []
    for p, m, r, s, counts in zip(plus, minus, sweep.plus, sweep.minus, sweep.changed, strict=True):
        rise, residual = abs(p - m), abs(r - s)
        predicted = abs(p - m - (r - s))
        if 2.0 * least < predicted < math.inf:
            is_flat = 2 * sum(counts) < most or rise <= thresholds.NEGLIGIBLE_PART * predicted
            found.append(is_flat and residual >= thresholds.NEGLIGIBLE_PART * predicted)
    return len(found) >= thresholds.PLATEAU_STEPS and all(found[-thresholds.PLATEAU_STEPS :])


def steps_for(eps: float) -> list[float]:
    """The steps of a sweep, relative to the step lengths."""
    top, count = next((top, count) for limit, top, count in SWEEPS if eps <= limit)
    return [2.0 ** (top - level) for level in range(count)]


def few_steps_for(eps: float) -> list[float]:
    """The middle half of a sweep: enough for a single entry."""
    steps = steps_for(eps)
    quarter = len(steps) // 4 if len(steps) > 12 else 0
    return steps[quarter : len(steps) - quarter]


def middle_step(eps: float) -> float:
    """A step at which neither roundoff nor curvature dominates."""
    steps = steps_for(eps)
    return steps[len(steps) // 2]


def constant_step_for(eps: float) -> float:
    """The step within which values that stay equal are constant."""
    in_double, in_single = thresholds.CONSTANT_STEP
    if eps > thresholds.HALF_PRECISION_EPS:
        return math.inf
    return in_double if eps <= thresholds.DOUBLE_EPS else in_single


FIRST_CHANGE_STEPS = range(-20, 42, 2)
"""Powers of two by which a direction is scaled until an output changes."""

WIDE_RATIO = 2.0**4
WIDE_STEPS = [2.0**32 * WIDE_RATIO**level for level in range(3)]
"""Steps over which what is added to an input loses more than half of its digits."""


def first_change(problem: Problem, u: Array, v: Array) -> Array:
    """Size of the change of each output of v at the first step that changes any of them. Calls the function."""
    xp, value = namespace(v), problem.value[: v.shape[0]]
    change = xp.zeros_like(value)
    for power in FIRST_CHANGE_STEPS:
        change = xp.abs(finite_part(problem.evaluate_at(2.0**power * u).values[: v.shape[0]] - value))
        change = xp.where(v != 0.0, change, xp.zeros_like(change))
        if peak(change):
            break
    return change


def is_faint(problem: Problem, u: Array, v: Array, eps: float) -> bool:
    """Whether v·f may have a slope along u that the roundoff of f hides. Calls the function.

    It may if f changes by little more than roundoff over steps however wide, and with zeros in place of these inputs;
    or if from some step on it changes by a power of the step. Other functions are constant, or change abruptly because
    they are saturated, or at random because terms cancel. Zeros are tried for `test_saturated_norm_passes`: no step
    leads out of its saturated region.
    """
    xp, value, (wide, wider, widest) = namespace(v), problem.value[: v.shape[0]], WIDE_STEPS

    def change(displacement: Array) -> Array:
        return problem.evaluate_at(displacement).values[: v.shape[0]] - value

    try:
        near, far = change(wide * u), change(wider * u)
        sizes = norm(v, near), norm(v, far)
        if not math.isfinite(sum(sizes)) or not any(sizes):
            return False
        size = norm(v, xp.where((near != 0.0) | (far != 0.0), value, xp.zeros_like(value)))
        little: float = eps**thresholds.HALF_THE_DIGITS * size
        if max(sizes) <= little:
            zeros = xp.where(u != 0.0, -finite_part(problem.point), xp.zeros_like(u))
            return norm(v, change(zeros)) <= little
        power = round(math.log(sizes[1] / sizes[0], WIDE_RATIO)) if all(sizes) else 0
        growth, first = WIDE_RATIO**power, (small := steps_for(eps)[0]) ** power * sizes[0] / wide**power
        if power < 1 or norm(v, far - growth * near) > thresholds.PLATEAU_RTOL * sizes[1]:
            return False
        grows = norm(v, change(widest * u) - growth * far) <= thresholds.PLATEAU_RTOL * growth * sizes[1]
        known = norm(v, change(small * u)) + thresholds.ROUNDOFFS * eps * size
        return grows and first <= (1.0 + thresholds.PLATEAU_RTOL) * known
    except Exception:
        return False  # out of the function's domain
