"""Evaluations in low precision along random directions, for the tests of `residuals`.

`OutputProbes` are slopes, kinks and roundoff of every output along a few directions; `ResidualSampling` gives residuals
of a derivative at several steps.

`at_boundary` gives values of a single output before rounding. A loss in half precision has few values: over a step it
moves by few spacings, and each value is rounded by up to half of one. But where the rounded value jumps from one number
to the next, which is called a boundary here, the value before rounding is half way between them. A boundary is found
next to any point by bisection, and the value there is known to a small part of a spacing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from gradvet.core import thresholds
from gradvet.core.context import Context
from gradvet.core.finite_differences import Cotangent, DirectionalDifference, steps_for
from gradvet.core.gradient_match import value_roundoff
from gradvet.core.modes import Mode
from gradvet.core.problem import Distribution, Evaluation, Problem
from gradvet.core.reference_errors import spacing_at_zero
from gradvet.core.residuals import Residuals
from gradvet.core.vectors import Array, all_finite, dot, dots, finite_part, namespace, norm, peak, rms, window

PROBES = 8
"""Number of directions along which the outputs are probed."""


@dataclass(frozen=True, eq=False)
class OutputProbes:
    """Slopes and changes of slope of every output along a few directions."""

    differences: Sequence[DirectionalDifference]
    noise: Array
    """Roundoff of the outputs at the step."""
    slope: Array
    """Root mean square of the slopes, at least what roundoff makes of them."""
    bent: Array
    """Outputs that have a kink at the point."""
    motion: Array
    """Root mean square of the slopes over wide or over narrow steps, whichever is less."""

    @property
    def weights(self) -> Array:
        """Weights with which every output counts about the same."""
        weight = 1.0 / (self.slope + (thresholds.MATERIAL_MAX * peak(self.slope) or 1.0))
        return weight / peak(weight)

    def stair_factor(self, v: Array, step: float, predicted: float) -> float:
        """Relative error of v·J·u, averaged over many directions, that rounding at a step explains.

        It is relative to the slope that wide steps show, or to `predicted` if the values do not change.

        Rounding errors average out where an output moves by at least its spacing q: of a normal distribution of width
        s, exp(-2 π² s²/q²) is left.
        """
        xp, size = namespace(self.slope), dot(abs(v), self.motion) or predicted
        spacing = xp.where(self.noise > 0.0, self.noise, xp.ones_like(self.noise))
        left = xp.exp(-2.0 * (math.pi * step * self.motion / spacing) ** 2)
        bias = left * self.noise / (2.0 * step)
        return thresholds.COHERENT * dot(abs(v), bias) / size if size else math.inf

    @classmethod
    def along(cls, context: Context, part: slice) -> OutputProbes | None:
        """Four evaluations a direction; None if an output is not finite."""
        problem, (_, wide, _, narrow, *_) = context.problem, steps_for(context.eps)
        value, xp = context.value, context.xp
        directions = [input_direction(context, part) for _ in range(PROBES)]
        at = [[DirectionalDifference.along(problem, u, step) for u in directions] for step in (wide, narrow)]
        if not all(found.is_finite for found in at[0]):
            return None
        slope, other = (xp.sqrt(sum(found.odd * found.odd for found in some) / PROBES) for some in at)
        # The roundoff of the values on both sides: where the value at the point is near zero, they are larger.
        noise = xp.maximum(context.eps * (xp.abs(value) + wide * slope), _observed_spacing(value, at[1]))
        # Needed by `test_product_with_the_smallest_numbers_does_not_fail`.
        noise = xp.clip(noise, spacing_at_zero(problem.eps)) + context.repeat_noise
        # Kinks and curvature bend an output in the same direction whatever the sign of u, and roundoff does not. Over
        # narrower steps the mean change of slope stays the same at a kink, and shrinks with curvature.
        far, near = (sum(found.even for found in some) / PROBES for some in at)
        excess = xp.abs(near - far * (narrow / wide))
        growth = (thresholds.KINK_SHRINKAGE / 2.0) ** 2  # from a step to four times the step
        bent = (xp.abs(far) < growth * xp.abs(near)) & (excess * narrow > noise)
        far, near = (sum(xp.abs(found.even) for found in some) / PROBES for some in at)  # of either sign, as at ties
        bent = bent | ((far < growth * near) & (near * narrow > thresholds.INTERVAL_WIDTH * noise))
        return cls(at[0], noise, slope + noise / narrow, bent, xp.minimum(slope, finite_part(other)))

    def lie_between(self, context: Context, mode: Mode) -> bool:
        """Whether the derivative of the outputs with a kink lies between their one-sided slopes.

        Cotangents have the signs of the slopes, so that derivatives outside add up: needed by
        `test_derivative_at_a_kink_must_lie_between_the_one_sided_slopes`. One VJP a direction.
        """
        xp = namespace(self.slope)
        zeros = xp.zeros_like(self.slope)
        for found in self.differences:
            cotangent = context.cotangent(xp.where(self.bent, self.weights * xp.sign(found.odd), zeros))
            noise = thresholds.PRECISION_SCALE_WIDTH * norm(cotangent.v, self.noise) / found.step
            predicted = float(mode.change(context, cotangent, found.u, found.displacement, 1.0))
            between = dot(xp.abs(cotangent.v), xp.abs(found.even)) * (1.0 + thresholds.MATERIAL_MAX)
            if not abs(dot(cotangent.v, found.odd) - predicted) <= between + noise:
                return False
        return True


def _observed_spacing(value: Array, around: Sequence[DirectionalDifference]) -> Array:
    """The smallest difference of two values of each output that differ; 0 where all are equal.

    It is larger than the spacing of the format where values of another size are rounded inside the function: see
    `test_right_kernel_of_one_dtype_does_not_fail`.
    """
    xp = namespace(value)
    sides = [found.step * (found.even + sign * found.odd) for found in around for sign in (1.0, -1.0)]
    ordered = xp.sort(xp.stack([xp.zeros_like(value), *sides]), axis=0)
    gaps = ordered[1:] - ordered[:-1]
    smallest = xp.min(xp.where(gaps > 0.0, gaps, xp.full_like(gaps, math.inf)), axis=0)
    return finite_part(smallest)


def input_direction(context: Context, part: slice) -> Array:
    """A random direction along one input."""
    return context.restricted(window(context.joint_direction(), part))


@dataclass(frozen=True, eq=False)
class ResidualSampling:
    """One input, which moves alone."""

    context: Context
    mode: Mode
    part: slice
    is_shifted: bool = False
    """Whether every direction starts at a point of its own, one roundoff away: rounding inside differs there."""
    is_plain: bool = False
    """Whether the value of a single output is taken as it is returned, at the displaced point itself."""

    def start(self) -> tuple[Array, Evaluation]:
        """Where a direction starts, and the outputs there. Zeros stay zero, equal values equal."""
        problem = self.context.problem
        if not self.is_shifted and self._shift is None:
            zeros = problem.zeros(problem.domain.size)
            return zeros, Evaluation(problem.value, zeros)
        begin = 2.0 * self.is_shifted * value_roundoff(self.context)
        return begin, self._evaluate(begin)

    def _evaluate(self, displacement: Array) -> Evaluation:
        """The outputs at a displaced point; a single output next to it, where its value before rounding is known."""
        problem = self.context.problem
        if self._shift is None:
            return problem.evaluate_at(displacement)
        return at_boundary(problem, displacement, self._shift)

    @property
    def finds_boundaries(self) -> bool:
        """Whether values are known to a small part of their spacing. May call the function."""
        return self._shift is not None

    @cached_property
    def _shift(self) -> Array | None:
        return None if self.is_plain else shift_by_a_spacing(self.context, self.part)

    def directions(self, count: int) -> list[Array]:
        return [input_direction(self.context, self.part) for _ in range(count)]

    def moved(
        self, cotangents: Cotangent, u: Array, step: float, start: tuple[Array, Evaluation]
    ) -> tuple[Array, Array, Array, Array]:
        """Of one step, for each cotangent v: the residual; the slope that the derivative predicts for the displacement
        that really happened; the change of slope, for each v and then for each |v|; what the derivative predicts for
        the mean of both displacements. An evaluation on each side, or several for a single output.
        """
        rows, (begin, middle), v = self.context.problem.codomain.size, start, cotangents.v
        plus, minus = (self._evaluate(begin + t * u) for t in (step, -step))
        odd, even = ((plus.values[:rows] + sign * minus.values[:rows]) / 2.0 for sign in (-1.0, 1.0))
        moved, centre = ((plus.displacement + sign * minus.displacement) / 2.0 for sign in (-1.0, 1.0))
        even, centre = even - middle.values[:rows], centre - middle.displacement
        realised = self.mode.change(self.context, cotangents, u, moved, step) / step
        centres = namespace(realised).zeros_like(realised)
        if self._shift is not None:
            centres = self.mode.change(self.context, cotangents, u, centre, 0.0) / step
        bends = [dots(weights, even) / step - centres for weights in (v, abs(v))]
        return dots(v, odd) / step - realised, realised, namespace(odd).concat(bends), centres

    def residuals(
        self,
        cotangents: Cotangent,
        probes: OutputProbes,
        directions: Sequence[Array],
        steps: Sequence[float],
    ) -> Residuals | None:
        """Two evaluations for each step of each direction; None where few steps are finite."""
        problem, count = self.context.problem, cotangents.v.shape[0]
        # Values that are equal at all steps are rounded, too: see `test_saturated_output_does_not_fail`.
        roundoff = roundoff_of(probes.noise, cotangents)
        samples: list[list[tuple[Array, ...]]] = [[] for _ in steps]
        predicted = []
        for u in directions:
            predicted.append(self.mode.slope(self.context, cotangents, u))
            start = self.start()
            for some, step in zip(samples, steps, strict=True):
                some.append(self.moved(cotangents, u, step, start))
        xp = namespace(problem.value)
        at, realised, bent, centres = (
            [xp.stack([sample[number] for sample in some]) for some in samples] for number in range(4)
        )
        bends = [math.hypot(rms(even[:, :count]), roundoff / step) for even, step in zip(bent, steps, strict=True)]
        first = max((number + 1 for number, some in enumerate(at) if not all_finite(some)), default=0)
        if len(at) - first < min(len(steps), thresholds.PLATEAU_STEPS):
            return None
        return Residuals(
            at=at[first:],
            evens=bent[first:],
            bend=bends[first:],
            realised=realised[first:],
            centres=centres[first:],
            predicted=xp.stack(predicted),
            directions=xp.stack([u[self.part] for u in directions]),
            vjps=finite_part(cotangents.vjp[:, self.part]),
            matched=matched_count(count),
        )


def matched_count(cotangents: int) -> int:
    """How many of the cotangents have the signs of a probe."""
    return min(PROBES, cotangents // 2)


def roundoff_of(noise: Array, cotangents: Cotangent) -> float:
    """Roundoff of v·f, root mean square, by that of the outputs."""
    noises = cotangents.v * finite_part(noise)
    return thresholds.NOISE_FLOOR * rms(noises) * math.sqrt(noises.shape[1])


BISECTIONS = 5
"""Each halves the error of the value, from half a spacing on."""

FARTHER = (1.0, -1.0, 2.0, -2.0)
"""Where another value is looked for, in displacements that change it by about one spacing."""


def shift_by_a_spacing(context: Context, part: slice) -> Array | None:
    """A displacement of one input that changes the single output by about one spacing; a few evaluations.

    None if there are several outputs, or if the input hardly changes it, or in single precision, which functions have
    inside as well. It has the signs of the gradient, and its length is measured: a wrong gradient must not decide which
    boundaries are found.
    """
    problem, own = context.problem, context.cotangents[0]
    if problem.codomain.size != 1 or context.eps <= thresholds.HALF_PRECISION_EPS:
        return None
    spacing = problem.eps * abs(float(problem.value[0]))
    if not 0.0 < spacing < math.inf:
        return None
    uphill = window(namespace(own.vjp).sign(own.vjp) * context.lengths, part)
    slope = abs(dot(own.vjp, uphill)) / (abs(float(own.v[0])) or 1.0)
    if not slope:
        return None
    # At most the middle one of the steps of the residuals: the way to a boundary is then not longer than the steps.
    # Needed by the curved loss of `test_right_kernel_of_one_dtype_does_not_fail`.
    farthest = steps_for(context.eps)[2]
    part_of_lengths = min(thresholds.MEASURED_SPACINGS * spacing / slope, farthest)
    while part_of_lengths <= farthest:
        sides = [float(problem.evaluate_at(sign * part_of_lengths * uphill).values[0]) for sign in (1.0, -1.0)]
        change = abs(sides[0] - sides[1]) / 2.0
        if change >= spacing * thresholds.MEASURED_SPACINGS / 2.0:
            return uphill * (part_of_lengths * spacing / change)
        part_of_lengths *= 2.0
    return None


def at_boundary(problem: Problem, displacement: Array, shift: Array) -> Evaluation:
    """The value half way between two numbers, and where the function has it, next to a displaced point.

    The search begins up to one shift before, at random, so that what it adds to the displacement is zero on average,
    whatever the value is. If no other value is near, the rounded one. Evaluates the function up to a dozen times.
    """
    begin = float(problem.random(1, Distribution.NEAR_UNIT)[0]) % 1.0 - 1.0
    here = problem.evaluate_at(displacement + begin * shift)
    for far in FARTHER:
        there = problem.evaluate_at(displacement + (begin + far) * shift)
        if not bool(there.values[0] == here.values[0]):
            break
    else:
        return here
    near = 0.0
    for _ in range(BISECTIONS):
        middle = (near + far) / 2.0
        between = problem.evaluate_at(displacement + (begin + middle) * shift)
        if bool(between.values[0] == here.values[0]):
            near, here = middle, between
        else:
            far, there = middle, between
    return Evaluation((here.values + there.values) / 2.0, (here.displacement + there.displacement) / 2.0)
