"""One subject on trial: the sizes of its inputs, the lines along which it is walked, the codirections through which it
is looked at. All modes share them."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property

from gradvet.core.decision import FINE
from gradvet.core.finite_differences import (
    NEAR,
    DirectionalDifference,
    Prediction,
    StepSweep,
    few_steps_for,
    near,
    steps_for,
    sweep_steps,
)
from gradvet.core.problem import Problem
from gradvet.core.projections import AtZero, Projections
from gradvet.core.spaces import Array
from gradvet.core.variants import FreshGradient
from gradvet.core.vectors import all_finite, finite_part, namespace, peak
from gradvet.options import Options

NARROWER = 2.0**-10
"""By so much all steps are narrowed where wider ones leave doubt."""

PUSHES = 4
"""So many results of forward mode are kept."""

CONSTANT = 0.75
"""The number of which a constant codirection is made."""

EVEN_OUT = 1e-6
"""A column is never moved by less than this part of its full step, however large its slope is."""


@dataclass(frozen=True, slots=True, eq=False)
class Cotangent:
    """A codirection v and the gradient Jᵀv; entries of the gradient that are not finite are zero and marked."""

    v: Array
    w: Array
    broken: Array


@dataclass
class Record:
    """What is known about how sharp the comparison was, and what is worth a word."""

    resolution: dict[str, float] = field(default_factory=dict)
    """The smallest relative error that could have been seen, by name of the input."""
    faint: set[str] = field(default_factory=set)
    """Inputs whose influence is below the roundoff of the outputs: nothing can be resolved there."""
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def sharpen(self, name: str, resolution: float) -> None:
        self.resolution[name] = min(resolution, self.resolution.get(name, math.inf))


LEAST_SIZE = 0.25
"""A coordinate moves by at least this part of what is usual in its tensor."""

DROWNING = 1e4
"""An output whose slope is not so many roundoffs over a near step is looked at less closely."""


class Context:
    """A subject with the probes that all its checks share."""

    def __init__(self, problem: Problem, options: Options) -> None:
        self.problem, self.options = problem, options
        self.record = Record()
        self.captured: bool | None = None
        """Whether the function reads captured tensors instead of its arguments; None while nobody looked."""
        self.narrowed = False
        """Whether all steps were narrowed because wider ones left doubt."""
        self._pushed: list[tuple[Array, Array]] = []
        self.reversible = True
        """Whether there is a reverse mode; without it nothing is known of the size of single entries."""
        self.zeros_are_exact = False
        """Whether an input that is zero was made so, and is not what rounding left of something else."""
        self.immaterial = 0.0
        """Slopes below this are nothing, where it is known what slopes the function has elsewhere."""
        self.deadline = math.inf if options.seconds is None else time.monotonic() + options.seconds

    @cached_property
    def nothing(self) -> Array:
        """No column at all."""
        return self.problem.zeros(self.problem.domain.size) != 0.0

    @cached_property
    def excluded(self) -> Array:
        """Columns that walks of many leave out: at a kink, or without a finite derivative."""
        return self.nothing

    @cached_property
    def coarse(self) -> float:
        """Outputs whose slope is below this part of the largest are looked at less closely than their size allows."""
        return 1e-9 if self.is_double else 1e-2

    @cached_property
    def random_vjp(self) -> tuple[Array, Array]:
        """A random codirection with its gradient, which the exact checks share."""
        return self._vjp_pair(self.problem.signed(self.problem.codomain.size))

    @cached_property
    def constant_vjp(self) -> tuple[Array, Array]:
        """A constant one with its gradient."""
        return self._vjp_pair(self.problem.zeros(self.problem.codomain.size) + CONSTANT)

    def _vjp_pair(self, v: Array) -> tuple[Array, Array]:
        v = self.problem.representable(v)
        return v, self.problem.vjp(v)

    @cached_property
    def at_zero(self) -> AtZero:
        """Rules of the framework's own give nothing for nothing, and gradients of the same kinds for any cotangent."""
        if hasattr(self.problem, "variants") and self.problem.variants.is_builtin() and self.random_vjp:
            return AtZero(None, self.problem.gradient_misfits())
        return self.projections.at_zero

    @cached_property
    def projections(self) -> Projections:
        """The probes of the tolerance policy."""
        return Projections(self.problem, self.options)

    @cached_property
    def shifted(self) -> FreshGradient | None:
        """The gradient for the random one through a fresh call, with inputs that begin elsewhere in memory and another
        forward pass in between; None unless both change nothing."""
        v, expected = self.random_vjp
        with suppress(Exception):
            found = self.problem.variants.shifted_after_other_forward(v)
            if found is not None and not found.changed and self.problem.equal(found.gradient, expected):
                return found
        return None

    @cached_property
    def interleaved(self) -> FreshGradient:
        """The same with the inputs where they are; where that changes nothing, they need not be."""
        return self.shifted or self.problem.variants.after_other_forward(self.random_vjp[0])

    @cached_property
    def fresh_gradient(self) -> FreshGradient:
        """The same without another forward pass; where that changes nothing, it need not be left out."""
        v, expected = self.random_vjp
        with suppress(Exception):
            if not self.interleaved.changed and self.problem.equal(self.interleaved.gradient, expected):
                return self.interleaved
        return self.problem.variants.fresh_gradient(v)

    def cached_jvp(self, u: Array) -> Array:
        """J u by forward mode, once for each of the directions that all checks share."""
        for known, found in self._pushed:
            if known is u:
                return found
        self._pushed.append((u, self.problem.jvp(u)))
        del self._pushed[:-PUSHES]
        return self._pushed[-1][1]

    @property
    def out_of_time(self) -> bool:
        """Whether the time that was given is spent."""
        return time.monotonic() > self.deadline

    @property
    def is_double(self) -> bool:
        """Whether a walk near the point is sharp enough by itself."""
        return self.problem.eps <= FINE

    @property
    def computes_in_io_dtype(self) -> bool:
        """Whether the numbers inside the function have the format of its inputs and outputs."""
        return self.problem.internal_eps() <= self.problem.eps

    @cached_property
    def lengths(self) -> Array:
        """By how much a step of one moves each coordinate: max(|x|, ¼ rms of its tensor)."""
        xp = namespace(self.problem.point)
        parts = []
        for number, leaf in enumerate(self.problem.domain.leaves):
            x = self.problem.point[self.problem.domain.slice(number)]
            if leaf.coordinates.parts == 1:
                size = xp.abs(x)
            else:
                numbers = xp.reshape(x, (-1, leaf.coordinates.parts))
                size = xp.sqrt(xp.sum(numbers * numbers, axis=-1))
            top, found = peak(size), finite_part(size)
            typical_contributions = found / (top or 1.0)
            rms = (
                top * math.sqrt(float(typical_contributions @ typical_contributions) / typical_contributions.shape[0])
                if top
                else 4.0
            )
            moved = xp.clip(found, LEAST_SIZE * rms)
            # What is infinite or not a number cannot be moved.
            size = moved if found is size else xp.where(xp.isfinite(size), moved, xp.zeros_like(moved))
            parts.append(xp.repeat(size, leaf.coordinates.parts) if leaf.coordinates.parts > 1 else size)
        return xp.concat(parts)

    @cached_property
    def first(self) -> DirectionalDifference:
        """The walk along all inputs at once."""
        return self.near(self.joint_direction())

    @cached_property
    def is_steady(self) -> bool:
        """Whether two evaluations at the point give the same."""
        return not bool(namespace(self.repeat_noise).any(self.repeat_noise))

    @cached_property
    def largest(self) -> float:
        """The size of the largest finite value of the codomain."""
        return peak(self.problem.value[: self.problem.codomain.size])

    @cached_property
    def steepest(self) -> float:
        """The largest slope along the first walk; zero where there was none yet."""
        if "first" not in self.__dict__ or not self.first.slope.shape[0]:
            return 0.0
        return peak(self.first.slope)

    @cached_property
    def cotangents(self) -> list[Cotangent]:
        """Codirections that suit the first walk."""
        return self.cotangents_for(self.first.slope)

    @cached_property
    def second(self) -> DirectionalDifference:
        """A walk along which all inputs count about the same, given the gradient that the first look shows."""
        return self.near(self.restricted(self.even_direction(self.cotangents[0].w)))

    def redraw(self) -> None:
        """Walk all inputs anew, without those that were set aside."""
        self.first = self.near(self.restricted(self.first.u))
        self.__dict__.pop("second", None)
        self.cotangents = self.cotangents_for(self.first.slope)

    def coarsen(self) -> bool:
        """Take the function for one of the coarsest format that its numbers pass inside; False if it is one already."""
        rough = self.problem.internal_eps()
        if not rough > 4.0 * self.problem.eps:
            return False
        self.problem.settle_for(rough)
        for name in ("sizes", "first", "second", "looks", "noise", "coarse_noise", "wobble"):
            self.__dict__.pop(name, None)
        self.record.note(f"numbers inside the function are rounded to {rough:.1g}: its slopes are judged as such")
        return True

    def restricted(self, u: Array) -> Array:
        """A direction without the columns that were set aside."""
        if self.excluded is self.nothing:
            return u
        return namespace(u).where(self.excluded, namespace(u).zeros_like(u), u)

    def refine(self) -> bool:
        """Let every coordinate that is not zero move in proportion to itself alone, then by no more than about one, and
        then by much less than that.

        False if all were done before.
        """
        xp = namespace(self.lengths)
        own = xp.abs(self.problem.point)
        finer = xp.where((own > 0.0) & (own < self.lengths), own, self.lengths)
        if not bool(xp.any(finer < self.lengths)):
            finer = xp.minimum(self.lengths, xp.ones_like(self.lengths))
        if not bool(xp.any(finer < self.lengths)):
            if self.narrowed or not self.is_double or not self.computes_in_io_dtype:
                return False
            finer, self.narrowed = NARROWER * self.lengths, True
        self.lengths = finer
        self.first = self.near(self.restricted(self.joint_direction()))
        self.__dict__.pop("second", None)
        self.cotangents = self.cotangents_for(self.first.slope)
        return True

    def joint_direction(self) -> Array:
        """A fresh random direction in which every coordinate moves in proportion to its size."""
        return self.lengths * self.problem.signed(self.problem.domain.size)

    def even_direction(self, w: Array) -> Array:
        """A direction along which every coordinate adds about the same to the slope: the steep ones move less."""
        xp = namespace(w)
        share = xp.abs(w) * self.lengths
        u, some = self.joint_direction(), int(xp.count_nonzero(share))
        if not some:
            return u
        middle = float(xp.sort(share)[share.shape[0] - some + (some - 1) // 2])
        # What adds nothing moves in full: a number over nothing is clipped as well.
        return u * xp.clip(middle / share, EVEN_OUT, 1.0)

    def near(self, u: Array) -> DirectionalDifference:
        """The walk next to the point, at the step that suits the format."""
        if self.is_double:
            return near(self.problem, u)
        return near(self.problem, u, self.problem.eps ** (1.0 / 3.0)).extrapolated()

    def sweep_steps(self, u: Array, predictions: Sequence[Prediction], *, few: bool = False) -> list[StepSweep]:
        """The ladder along u, all of it or only its middle."""
        steps = few_steps_for(self.problem.eps) if few else steps_for(self.problem.eps)
        return sweep_steps(self.problem, u, predictions, self.repeat_noise, steps)

    @cached_property
    def repeat_noise(self) -> Array:
        """By how much each output of the codomain differs between two evaluations at the point."""
        xp = namespace(self.problem.value)
        rows = self.problem.codomain.size
        again = self.problem.evaluate_at(self.problem.zeros(self.problem.domain.size)).values
        if self.problem.equal(again, self.problem.value):
            return self.problem.zeros(rows)
        gap = xp.abs(again - self.problem.value)[:rows]
        return xp.where(gap > 0.0, gap, xp.zeros_like(gap))

    @cached_property
    def noise(self) -> Array:
        """The roundoff of each output of the codomain, or what two evaluations at the point differ by."""
        xp = namespace(self.problem.value)
        rows = self.problem.value[: self.problem.codomain.size]
        return self.problem.eps * xp.abs(rows) + self.repeat_noise

    @cached_property
    def peak_noise(self) -> Array:
        """The roundoff of each output if it is that of the largest number beside it, as in linear algebra."""
        problem = self.problem
        xp = namespace(problem.value)
        parts = []
        for number in range(len(problem.codomain.leaves)):
            values = problem.value[problem.codomain.slice(number)]
            parts.append(xp.full_like(values, peak(values)))
        return problem.eps * xp.concat(parts) + self.repeat_noise

    def cotangents_for(self, slope: Array, number: int = 2) -> list[Cotangent]:
        """Codirections in which every output weighs about the same, given its slope along some direction."""
        problem = self.problem
        xp = namespace(slope)
        value = problem.value[: problem.codomain.size]
        seen = None if all_finite(slope) and all_finite(value) else xp.isfinite(slope) & xp.isfinite(value)

        def of_those(array: Array) -> Array:
            return array if seen is None else xp.where(seen, array, xp.zeros_like(array))

        size, noise = of_those(xp.abs(slope)), of_those(self.noise)
        top = peak(size)
        # An output whose slope drowns in its roundoff is looked at less closely, lest it drown the others.
        weight = size + noise * (DROWNING / NEAR if self.is_double else 1.0) + (self.coarse * top or 1.0)
        even = of_those(float(xp.min(weight)) / weight)
        rows = slope.shape[0]
        return [self.cotangent(problem.signed(rows) * even) for _ in range(min(number, max(1, rows)))]

    def cotangent(self, v: Array) -> Cotangent:
        """A codirection with its gradient."""
        xp = namespace(v)
        v = self.problem.representable(v)
        w = self.problem.vjp(v) if self.reversible else self.problem.zeros(self.problem.domain.size)
        if all_finite(w):
            return Cotangent(v, w, self.nothing)
        return Cotangent(v, finite_part(w), ~xp.isfinite(w))
