"""State shared by the checks of one problem: step lengths, directional differences, cotangents, ledger and notes.

A context is never changed from outside. Other step lengths, other excluded columns or another problem give another
context (`rescaled`, `excluding`, `for_problem`) that shares the record and the deadline.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from gradvet.core import thresholds
from gradvet.core.finite_differences import (
    Change,
    Cotangent,
    DirectionalDifference,
    Scaling,
    StepSweep,
    few_steps_for,
    middle_step,
    step_lengths,
    steps_for,
    sweep_steps,
)
from gradvet.core.ledger import GIVEN, Record
from gradvet.core.problem import Distribution, FreshGradient, Gradient, Problem
from gradvet.core.projections import Projections
from gradvet.core.vectors import LARGE, Array, all_finite, equal, finite_part, namespace, nonzero_median, peak, unit
from gradvet.options import Options

MAX_CACHED_JVPS = 4
"""Number of JVPs that are kept: those of the directions that several checks share."""

CONSTANT = 0.75
"""Value of the constant cotangent; exact in every floating-point format."""


@dataclass(frozen=True, eq=False)
class Context:
    """A problem with the probes and the record that its checks share."""

    problem: Problem
    options: Options
    record: Record = field(default_factory=Record)
    deadline: float = math.inf
    """Value of `time.monotonic` at which the budget is spent."""
    last_call: float = math.inf
    """Number of forward calls at which it is spent."""
    precision: str = GIVEN
    has_reverse: bool = True
    """Whether there is a reverse mode; without it the size of single entries is unknown."""
    is_generated: bool = False
    """Whether gradvet chose the point."""
    is_known_deterministic: bool = False
    """Whether evaluations repeat exactly, as seen at another point."""
    immaterial_slope: float = 0.0
    """Slopes below this count as zero."""
    given_scaling: Scaling | None = None
    given_direction: Array | None = None
    """Direction of the first difference; None: a fresh random one."""
    inner_roundoff: Array | None = None
    """Roundoff of each output that values inside the function cause; None: not measured."""
    _jvps: list[tuple[Array, Array]] = field(default_factory=list)

    @classmethod
    def of(cls, problem: Problem, options: Options, record: Record | None = None) -> Context:
        """A context whose budget begins now."""
        deadline = math.inf if options.seconds is None else time.monotonic() + options.seconds
        return cls(problem, options, record or Record(), deadline)

    def for_problem(self, problem: Problem, **changes: object) -> Context:
        """Another problem of the same report: it shares record, options and deadline."""
        changes = {"given_scaling": None, "given_direction": None, "inner_roundoff": None, "_jvps": [], **changes}
        other: Context = replace(self, problem=problem, **changes)  # type: ignore[arg-type]
        other.__dict__.update({name: own for name, own in self.__dict__.items() if name == "reads_captured"})
        return other

    @cached_property
    def is_large(self) -> bool:
        """Whether vectors of the size of the inputs cost less to compute again than to keep."""
        return self.problem.domain.size > LARGE

    def release(self) -> None:
        """Delete what is cached, except for booleans: most of it are vectors of the size of the inputs."""
        for name, value in list(self.__dict__.items()):
            if isinstance(getattr(type(self), name, None), cached_property) and not isinstance(value, bool):
                del self.__dict__[name]
        self._jvps.clear()
        self.problem.release()

    @cached_property
    def xp(self) -> Any:
        """The functions of the array API standard for the vectors of the problem."""
        return namespace(self.problem.value)

    @property
    def value(self) -> Array:
        """The differentiable outputs at the point."""
        return self.problem.value[: self.problem.codomain.size]

    # Precision and budget

    @property
    def out_of_budget(self) -> bool:
        """Whether the budget is spent."""
        return time.monotonic() > self.deadline or self.problem.cost.forwards >= self.last_call

    def limited(self, calls: float) -> Context:
        """The same with at most about this number of further forward calls."""
        return replace(self, last_call=min(self.last_call, self.problem.cost.forwards + calls))

    @property
    def eps(self) -> float:
        """That of the scaling, whose lengths are vectors of the size of the inputs and not needed for it."""
        return (self.given_scaling or self.problem).eps

    @cached_property
    def asked_resolution(self) -> float:
        """The resolution asked for: `Options.resolution`, or a few spacings of the format if that is larger."""
        return max(self.options.resolution, thresholds.OPERATION_EPS * self.problem.eps)

    @cached_property
    def is_double(self) -> bool:
        """Whether one small step resolves a slope."""
        return self.eps <= thresholds.DOUBLE_EPS

    @property
    def computes_in_io_dtype(self) -> bool:
        """Whether no value inside the function has a coarser format than inputs and outputs."""
        return self.problem.internal_eps() <= self.problem.eps

    # Scaling

    @cached_property
    def scaling(self) -> Scaling:
        return self.given_scaling or Scaling(step_lengths(self.problem), self.problem.eps)

    @cached_property
    def lengths(self) -> Array:
        return self.scaling.lengths

    def excluding(self, columns: Array) -> Context:
        """Joint directions without these columns."""
        known = self.scaling.excluded
        scaling = replace(self.scaling, excluded=columns if known is None else known | columns)
        return self.rescaled(scaling, self.first.u)

    def in_internal_format(self) -> Context | None:
        """The problem as one of the coarsest format inside the function; None if that is the format in use.

        Needed by `sine_in_float32_inside`.
        """
        eps = self.problem.internal_eps()
        if not eps > self.eps:
            return None
        self.record.note(
            f"values inside the function are rounded to {eps:.1g}: its slopes are compared in that precision"
        )
        return self.rescaled(Scaling(step_lengths(self.problem), eps))

    def rescaled(self, scaling: Scaling, direction: Array | None = None) -> Context:
        """The same with another scaling."""
        other = replace(self, given_scaling=scaling, given_direction=direction)
        if "repeat_noise" in self.__dict__:
            other.__dict__["repeat_noise"] = self.repeat_noise
        return other

    def is_excluded(self, columns: Array) -> bool:
        """Whether all of these columns are excluded already."""
        known = self.scaling.excluded
        return known is not None and not bool(self.xp.any(columns & ~known))

    # Directions and differences

    def joint_direction(self) -> Array:
        """A fresh random direction in which every coordinate moves in proportion to its step length."""
        return self.lengths * self.problem.random(self.problem.domain.size, Distribution.NEAR_UNIT)

    def restricted(self, u: Array) -> Array:
        """A direction without the excluded columns."""
        excluded, xp = self.scaling.excluded, self.xp
        return u if excluded is None else xp.where(excluded, xp.zeros_like(u), u)

    def balanced_direction(self, w: Array) -> Array:
        """A direction along which every coordinate adds about the same to the slope, given the gradient w."""
        xp = self.xp
        contribution = xp.abs(w) * self.lengths
        u, middle = self.joint_direction(), nonzero_median(contribution)
        # Coordinates that add nothing move in full: the quotient is infinite and clipped.
        return u * xp.clip(middle / contribution, 0.0, 1.0) if middle else u

    def difference(self, u: Array) -> DirectionalDifference:
        """The directional difference at the step that suits the format. Two evaluations."""
        step = thresholds.SCREEN_STEP if self.is_double else self.eps ** (1.0 / 3.0)
        return DirectionalDifference.along(self.problem, u, step)

    def wide_difference(self, u: Array, part: float = 1.0) -> DirectionalDifference:
        """The same at a step, or a part of it, at which neither roundoff nor curvature dominates."""
        return DirectionalDifference.along(self.problem, u, part * middle_step(self.eps))

    def slope_of(self, difference: DirectionalDifference) -> Array:
        """The slope of every output; below double precision without its h² term."""
        return difference.odd if self.is_double else difference.extrapolated

    @cached_property
    def first(self) -> DirectionalDifference:
        """The difference along all inputs at once."""
        u = self.joint_direction() if self.given_direction is None else self.given_direction
        return self.difference(self.restricted(u))

    @cached_property
    def second(self) -> DirectionalDifference:
        """A difference along which all inputs add about the same, by the gradient of the first cotangent."""
        return self.difference(self.restricted(self.balanced_direction(self.cotangents[0].vjp)))

    def sweep_steps(
        self, u: Array, cotangents: Sequence[Cotangent], change_of: Change, *, few: bool = False
    ) -> list[StepSweep]:
        """A step sweep along u for each cotangent, over all steps or over the middle half."""
        steps = few_steps_for(self.eps) if few else steps_for(self.eps)
        return sweep_steps(self.problem, u, cotangents, change_of, self._further_noise, steps, self.eps)

    # Noise

    @cached_property
    def repeat_noise(self) -> Array:
        """Difference of two evaluations at the point, for each differentiable output. One evaluation."""
        problem, rows = self.problem, self.problem.codomain.size
        if self.is_known_deterministic:
            return problem.zeros(rows)
        again = problem.evaluate_at(problem.zeros(problem.domain.size)).values
        if equal(again, problem.value):
            return problem.zeros(rows)
        gap = self.xp.abs(again - problem.value)[:rows]
        return self.xp.where(gap > 0.0, gap, self.xp.zeros_like(gap))

    @cached_property
    def value_noise(self) -> Array:
        """Roundoff of each differentiable output, plus its repeat noise and what values inside add."""
        return self.eps * self.xp.abs(self.value) + self._further_noise

    @property
    def _further_noise(self) -> Array:
        return self.repeat_noise if self.inner_roundoff is None else self.repeat_noise + self.inner_roundoff

    @cached_property
    def peak_noise(self) -> Array:
        """Roundoff of the largest number of each output tensor, as in linear algebra, plus repeat noise."""
        problem, xp = self.problem, self.xp
        parts = [problem.value[rows] for rows in problem.codomain.slices]
        return self.eps * xp.concat([xp.full_like(part, peak(part)) for part in parts]) + self.repeat_noise

    # Cotangents and single entries

    def column(self, index: int) -> Array:
        """The direction in which one coordinate moves by its step length."""
        return unit(self.problem.zeros(self.problem.domain.size), index, float(self.lengths[index]))

    def row(self, index: int) -> Cotangent:
        """The cotangent of one output alone. One VJP."""
        return self.cotangent(unit(self.problem.zeros(self.problem.codomain.size), index))

    @cached_property
    def cotangents(self) -> tuple[Cotangent, ...]:
        """Two cotangents in which every output weighs about the same along the first difference."""
        return self.cotangents_for(self.slope_of(self.first))

    def cotangents_for(self, slope: Array, number: int = 2) -> tuple[Cotangent, ...]:
        """Random cotangents in which every output weighs about the same, given the slopes. One VJP each.

        An output whose slope is below its roundoff weighs less.
        """
        problem, xp, value = self.problem, self.xp, self.value
        finite = None if all_finite(slope + value) else xp.isfinite(slope) & xp.isfinite(value)

        def finite_rows(array: Array) -> Array:
            return array if finite is None else xp.where(finite, array, xp.zeros_like(array))

        size, noise = finite_rows(xp.abs(slope)), finite_rows(self.value_noise)
        if self.is_double:  # an output weighs less where its roundoff over the step exceeds the resolution asked for
            noise = noise * (thresholds.ROUNDOFFS / (self.options.resolution * thresholds.SCREEN_STEP))
        # Part of the largest slope below which slopes are roundoff, or do not count.
        floor = self.eps**thresholds.HALF_THE_DIGITS if self.is_double else thresholds.MATERIAL_MAX
        floor = thresholds.GENERATED_PEAK_RTOL if self.is_generated else floor
        weight = size + noise + (floor * peak(size) or 1.0)
        even = finite_rows(1.0 / (weight / float(xp.min(weight))))  # the reciprocal of a subnormal weight is infinite
        rows = slope.shape[0]
        drawn = (problem.random(rows, Distribution.NEAR_UNIT) * even for _ in range(min(number, max(1, rows))))
        return tuple(map(self.cotangent, drawn))

    def cotangent(self, v: Array) -> Cotangent:
        """A cotangent, rounded to the outputs' formats, with its VJP."""
        problem = self.problem
        v = problem.representable(v)
        w = problem.vjp(v) if self.has_reverse else problem.zeros(problem.domain.size)
        if all_finite(w):
            return Cotangent(v, w)
        return Cotangent(v, finite_part(w), ~self.xp.isfinite(w))

    def cached_jvp(self, u: Array) -> Array:
        """J u by forward mode, computed once for each direction that several checks share."""
        for known, found in self._jvps:
            if known is u:
                return found
        self._jvps.append((u, self.problem.jvp(u)))
        del self._jvps[:-MAX_CACHED_JVPS]
        return self._jvps[-1][1]

    # Probes of the exact checks

    @cached_property
    def random_vjp(self) -> tuple[Array, Array]:
        """A random cotangent and its VJP."""
        v, gradient = self._random_gradient
        return v, gradient.vector

    @cached_property
    def _random_gradient(self) -> tuple[Array, Gradient]:
        v = self.problem.representable(self.problem.random(self.problem.codomain.size, Distribution.NEAR_UNIT))
        return v, self.problem.gradient(v)

    @cached_property
    def repeated_vjp(self) -> Array:
        """The VJP of the random cotangent once more, through the same graph unless passes are isolated."""
        return self.problem.variants.repeated(self.random_vjp[0])

    @cached_property
    def constant_vjp(self) -> tuple[Array, Array]:
        """A constant cotangent and its VJP."""
        v = self.problem.representable(self.problem.zeros(self.problem.codomain.size) + CONSTANT)
        return v, self.problem.vjp(v)

    @cached_property
    def projections(self) -> Projections:
        """The probes of the tolerance policy."""
        return Projections(self.problem, self.options)

    @cached_property
    def at_zero(self) -> Gradient:
        """The VJP of a zero cotangent; builtin rules are known to give zero."""
        if self.problem.rules.are_builtin:
            return Gradient(None, self._random_gradient[1].mismatches)
        return self.projections.at_zero

    @cached_property
    def shifted(self) -> FreshGradient | None:
        """The VJP of the random cotangent with inputs at another memory offset and another forward pass in between.

        None unless it equals the plain VJP and nothing was written to.
        """
        v, expected = self.random_vjp
        with suppress(Exception):
            found = self.problem.variants.fresh_gradient(v, interleaved=True, shifted=True)
            if not found.changed and equal(found.gradient, expected):
                return found
        return None

    @cached_property
    def interleaved(self) -> FreshGradient:
        """The VJP of the random cotangent with another forward pass in between."""
        return self.shifted or self.problem.variants.fresh_gradient(self.random_vjp[0], interleaved=True)

    @cached_property
    def fresh(self) -> FreshGradient:
        """The VJP of the random cotangent through a fresh call; the interleaved one where that changes nothing."""
        v, expected = self.random_vjp
        with suppress(Exception):
            if not self.interleaved.changed and equal(self.interleaved.gradient, expected):
                return self.interleaved
        return self.problem.variants.fresh_gradient(v)

    @cached_property
    def reads_captured(self) -> bool:
        """Whether the function reads tensors that it captured instead of its arguments. Calls the function."""
        with suppress(Exception):
            if self.interleaved.reads_arguments:
                return False
        with suppress(Exception):  # the function refuses the other arguments
            return bool(self.problem.codomain.size) and self.problem.variants.reads_captured()
        return False
