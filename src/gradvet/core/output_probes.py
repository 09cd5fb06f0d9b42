"""What every output of a function in half precision does along a few directions: slopes, kinks and roundoff."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gradvet.core import thresholds
from gradvet.core.context import Context
from gradvet.core.finite_differences import DirectionalDifference, steps_for
from gradvet.core.modes import Mode
from gradvet.core.spaces import Array
from gradvet.core.vectors import dot, finite_part, namespace, norm, peak, window

PROBES = 8
"""Number of directions."""


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
    stairs: Array
    """Spacing of outputs that change by few spacings over a wide step, wider than those of the format; 0 for others."""

    @property
    def weights(self) -> Array:
        """Weights with which every output counts about the same."""
        weight = 1.0 / (self.slope + (thresholds.COARSE_ROW_FLOOR * peak(self.slope) or 1.0))
        return weight / peak(weight)

    def stair_bias(self, step: float) -> tuple[Array, Array]:
        """Slopes of outputs, and by how much rounding at a step may change their averages over many directions.

        Rounding errors average out where an output moves by at least its spacing q: of a normal distribution of width
        s, exp(-2 π² s²/q²) is left.
        """
        xp = namespace(self.slope)
        spacing = xp.where(self.noise > 0.0, self.noise, xp.ones_like(self.noise))
        left = xp.exp(-2.0 * (math.pi * step * self.motion / spacing) ** 2)
        return self.motion, left * self.noise / (2.0 * step)

    @classmethod
    def along(cls, context: Context, part: slice) -> OutputProbes | None:
        """Four evaluations a direction; None if an output is not finite."""
        problem, (_, wide, _, narrow, *_) = context.problem, steps_for(context.eps)
        value = problem.value[: problem.codomain.size]
        xp = namespace(value)
        directions = [input_direction(context, part) for _ in range(PROBES)]
        at = [[DirectionalDifference.along(problem, u, step) for u in directions] for step in (wide, narrow)]
        if not all(found.is_finite for found in at[0]):
            return None
        slope, other = (xp.sqrt(sum(found.odd * found.odd for found in some) / PROBES) for some in at)
        # The roundoff of the values on both sides: where the value at the point is near zero, they are larger.
        noise = xp.maximum(context.eps * (xp.abs(value) + wide * slope), _observed_spacing(value, at[1]))
        if not peak(noise):
            # Values of size one cancel inside, and zero is left: `test_right_kernel_of_one_dtype_does_not_fail`.
            noise = xp.full_like(value, context.eps)
        noise = noise + context.repeat_noise
        # Kinks and curvature bend an output in the same direction whatever the sign of u, and roundoff does not. Over
        # narrower steps the mean change of slope stays the same at a kink, and shrinks with curvature.
        far, near = (sum(found.even for found in some) / PROBES for some in at)
        excess = xp.abs(near - far * (narrow / wide))
        growth = (thresholds.KINK_SHRINKAGE / 2.0) ** 2  # from a step to four times the step
        bent = (xp.abs(far) < growth * xp.abs(near)) & (excess * narrow > noise)
        far, near = (sum(xp.abs(found.even) for found in some) / PROBES for some in at)  # of either sign, as at ties
        bent = bent | ((far < growth * near) & (near * narrow > thresholds.INTERVAL_WIDTH * noise))
        stairs = _stairs(context.eps, value, at, slope)
        return cls(at[0], noise, slope + noise / narrow, bent, xp.minimum(slope, finite_part(other)), stairs)

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
            predicted = mode.predictions(context, found.u, [cotangent])[0].predicted(found.displacement, 1.0)
            between = dot(xp.abs(cotangent.v), xp.abs(found.even)) * (1.0 + thresholds.MATERIAL_MAX)
            if not abs(dot(cotangent.v, found.odd) - predicted) <= between + noise:
                return False
        return True


def _stairs(eps: float, value: Array, at: Sequence[Sequence[DirectionalDifference]], slope: Array) -> Array:
    """The spacing of outputs that a wide step changes by few spacings, which are wider than those of the format.

    Numbers of another size are rounded inside the function, and the rounding errors do not average. Needed by the
    square root of `test_right_kernel_of_one_dtype_does_not_fail`.
    """
    xp = namespace(value)
    narrow, wide = _observed_spacing(value, at[1]), _observed_spacing(value, at[0])
    spacing = xp.where(narrow > 0.0, narrow, wide)
    few = at[0][0].step * slope < thresholds.INTERVAL_WIDTH * spacing
    wider = spacing > thresholds.INTERVAL_WIDTH * eps * xp.abs(value)
    return xp.where(few & wider, spacing, xp.zeros_like(spacing))


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
