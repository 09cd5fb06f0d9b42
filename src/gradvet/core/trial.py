"""One subject on trial: the sizes of its inputs, the lines along which it is walked, the codirections through which it
is looked at. All modes share them."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import array_api_compat

from gradvet.core.experiment import Experiment
from gradvet.core.ladder import Rungs
from gradvet.core.lines import NEAR, Claim, Near, climb, few_steps_for, near, steps_for
from gradvet.core.spaces import Array
from gradvet.core.subject import Subject
from gradvet.options import Options

FINE = 2.0**-40
"""Formats at least this fine have a near walk that is sharp enough by itself."""

PUSHES = 4
"""So many results of forward mode are kept."""

EVEN_OUT = 1e-6
"""A column is never moved by less than this part of its full step, however large its slope is."""


@dataclass(frozen=True, slots=True)
class Look:
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


class Trial(Experiment):
    """A subject with the probes that all its checks share."""

    def __init__(self, subject: Subject, options: Options) -> None:
        super().__init__(subject, options)
        self.subject = subject
        self.record = Record()
        self.captured: bool | None = None
        """Whether the function reads captured tensors instead of its arguments; None while nobody looked."""
        self._pushed: list[tuple[Array, Array]] = []
        self.reversible = True
        """Whether there is a reverse mode; without it nothing is known of the size of single entries."""
        self.set_aside = subject.zeros(subject.domain.size) != 0.0
        """Columns that walks of many leave out: at a kink, or without a finite derivative."""
        self.coarse = 1e-9 if self.is_fine else 1e-2
        """Outputs whose slope is below this part of the largest are looked at less closely than their size allows."""
        self.immaterial = 0.0
        """Slopes below this are nothing, where it is known what slopes the function has elsewhere."""
        self.deadline = math.inf if options.seconds is None else time.monotonic() + options.seconds

    @cached_property
    def pulled(self) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        """Two random codirections with their gradients, which the exact checks share."""
        subject = self.subject
        first, second = (subject.representable(subject.signed(subject.codomain.size)) for _ in range(2))
        return (first, subject.reverse.pull(first)), (second, subject.reverse.pull(second))

    def pushed(self, u: Array) -> Array:
        """J u by forward mode, once for each of the directions that all checks share."""
        for known, found in self._pushed:
            if known is u:
                return found
        self._pushed.append((u, self.subject.forward.push(u)))
        del self._pushed[:-PUSHES]
        return self._pushed[-1][1]

    @property
    def late(self) -> bool:
        """Whether the time that was given is spent."""
        return time.monotonic() > self.deadline

    @property
    def is_fine(self) -> bool:
        return self.subject.epsilon <= FINE

    @cached_property
    def sizes(self) -> Array:
        """By how much a step of one moves each coordinate: max(|x|, ¼ rms of its tensor)."""
        xp = array_api_compat.array_namespace(self.subject.point)
        parts = []
        for number, leaf in enumerate(self.subject.domain.leaves):
            x = self.subject.point[self.subject.domain.slice(number)]
            numbers = xp.reshape(x, (-1, leaf.coordinates.parts))
            size = xp.sqrt(xp.sum(numbers * numbers, axis=-1))
            finite = xp.isfinite(size)
            known = xp.where(finite, size, xp.zeros_like(size))
            peak = float(xp.max(known)) if known.shape[0] else 0.0
            rms = peak * math.sqrt(float(xp.mean((known / peak) ** 2))) if peak else 4.0
            # What is infinite or not a number cannot be moved.
            size = xp.where(finite, xp.maximum(known, xp.full_like(known, 0.25 * rms)), xp.zeros_like(known))
            parts.append(xp.repeat(size, leaf.coordinates.parts) if leaf.coordinates.parts > 1 else size)
        return xp.concat(parts)

    @cached_property
    def first(self) -> Near:
        """The walk along all inputs at once."""
        return self.near(self.direction_of_all())

    @cached_property
    def is_steady(self) -> bool:
        """Whether two evaluations at the point give the same."""
        return not bool(array_api_compat.array_namespace(self.wobble).any(self.wobble))

    @cached_property
    def steepest(self) -> float:
        """The largest slope along the first walk; zero where there was none yet."""
        if "first" not in self.__dict__ or not self.first.slope.shape[0]:
            return 0.0
        xp = array_api_compat.array_namespace(self.first.slope)
        size = xp.abs(self.first.slope)
        return float(xp.max(xp.where(xp.isfinite(size), size, xp.zeros_like(size))))

    @cached_property
    def looks(self) -> list[Look]:
        """Codirections that suit the first walk."""
        return self.looks_for(self.first.slope)

    @cached_property
    def second(self) -> Near:
        """A walk along which all inputs count about the same, given the gradient that the first look shows."""
        return self.near(self.restricted(self.even_direction(self.looks[0].w)))

    def begin_again(self) -> None:
        """Walk all inputs anew, without those that were set aside."""
        self.first = self.near(self.restricted(self.first.u))
        self.__dict__.pop("second", None)
        self.looks = self.looks_for(self.first.slope)

    def restricted(self, u: Array) -> Array:
        """A direction without the columns that were set aside."""
        xp = array_api_compat.array_namespace(u)
        return xp.where(self.set_aside, xp.zeros_like(u), u)

    def refine(self) -> bool:
        """Let every coordinate that is not zero move in proportion to itself alone, and then by no more than about one.

        False if both were done before.
        """
        xp = array_api_compat.array_namespace(self.sizes)
        own = xp.abs(self.subject.point)
        finer = xp.where((own > 0.0) & (own < self.sizes), own, self.sizes)
        if not bool(xp.any(finer < self.sizes)):
            finer = xp.minimum(self.sizes, xp.ones_like(self.sizes))
        if not bool(xp.any(finer < self.sizes)):
            return False
        self.sizes = finer
        self.first = self.near(self.restricted(self.direction_of_all()))
        self.__dict__.pop("second", None)
        self.looks = self.looks_for(self.first.slope)
        return True

    def direction_of_all(self) -> Array:
        """A fresh random direction in which every coordinate moves in proportion to its size."""
        return self.sizes * self.subject.signed(self.subject.domain.size)

    def even_direction(self, w: Array) -> Array:
        """A direction along which every coordinate adds about the same to the slope: the steep ones move less."""
        xp = array_api_compat.array_namespace(w)
        share = xp.abs(w) * self.sizes
        some = share[share > 0.0]
        u = self.direction_of_all()
        if not some.shape[0]:
            return u
        middle = float(xp.sort(some)[(some.shape[0] - 1) // 2])
        shrink = xp.clip(middle / xp.where(share > 0.0, share, xp.full_like(share, middle)), EVEN_OUT, 1.0)
        return u * shrink

    def near(self, u: Array) -> Near:
        """The walk next to the point, at the step that suits the format."""
        return near(self.subject, u, NEAR if self.is_fine else self.subject.epsilon ** (1.0 / 3.0))

    def climb(self, u: Array, claims: Sequence[Claim], *, few: bool = False) -> list[Rungs]:
        """The ladder along u, all of it or only its middle."""
        steps = few_steps_for(self.subject.epsilon) if few else steps_for(self.subject.epsilon)
        return climb(self.subject, u, claims, self.wobble, steps)

    @cached_property
    def wobble(self) -> Array:
        """By how much each output of the codomain differs between two evaluations at the point."""
        xp = array_api_compat.array_namespace(self.subject.value)
        again = self.subject.displaced(self.subject.zeros(self.subject.domain.size)).values
        gap = xp.abs(again - self.subject.value)[: self.subject.codomain.size]
        return xp.where(gap > 0.0, gap, xp.zeros_like(gap))

    @cached_property
    def noise(self) -> Array:
        """The roundoff of each output of the codomain, or what two evaluations at the point differ by."""
        xp = array_api_compat.array_namespace(self.subject.value)
        rows = self.subject.value[: self.subject.codomain.size]
        return self.subject.epsilon * xp.abs(rows) + self.wobble

    @cached_property
    def coarse_noise(self) -> Array:
        """The roundoff of each output if it is that of the largest number beside it, as in linear algebra."""
        subject = self.subject
        xp = array_api_compat.array_namespace(subject.value)
        parts = []
        for number in range(len(subject.codomain.leaves)):
            size = xp.abs(subject.value[subject.codomain.slice(number)])
            known = xp.where(xp.isfinite(size), size, xp.zeros_like(size))
            parts.append(xp.zeros_like(size) + (float(xp.max(known)) if size.shape[0] else 0.0))
        return subject.epsilon * xp.concat(parts) + self.wobble

    def roundoff(self, v: Array) -> float:
        """The roundoff of v·J·u that rows of small slope inherit from those of large slope."""
        xp = array_api_compat.array_namespace(v)
        size = xp.abs(self.first.slope)
        top = float(xp.max(xp.where(xp.isfinite(size), size, xp.zeros_like(size))))
        return (16.0 if self.is_fine else 2.0) * self.subject.epsilon * top * math.sqrt(float(xp.sum(v * v)))

    def grain(self, v: Array, part: slice) -> float:
        """The slope that a roundoff of the outputs would be, over a step of the size of these inputs."""
        xp = array_api_compat.array_namespace(v)
        product = v * self.subject.value[: v.shape[0]]
        product = xp.where(xp.isfinite(product), product, xp.zeros_like(product))
        sizes = self.sizes[part]
        size = math.sqrt(float(xp.mean(sizes * sizes))) if sizes.shape[0] else 0.0
        return self.subject.epsilon * math.sqrt(float(xp.sum(product * product))) / (size or 1.0)

    def looks_for(self, slope: Array, number: int = 2) -> list[Look]:
        """Codirections in which every output weighs about the same, given its slope along some direction."""
        subject = self.subject
        xp = array_api_compat.array_namespace(slope)
        seen = xp.isfinite(slope) & xp.isfinite(subject.value[: subject.codomain.size])
        size = xp.where(seen, xp.abs(slope), xp.zeros_like(slope))
        top = float(xp.max(size)) if size.shape[0] else 0.0
        noise = xp.where(seen, self.noise, xp.zeros_like(slope))
        # An output whose slope drowns in its roundoff is looked at less closely, lest it drown the others.
        weight = size + noise * (1e4 / NEAR if self.is_fine else 1.0) + (self.coarse * top or 1.0)
        found = []
        for _ in range(min(number, max(1, slope.shape[0]))):
            v = subject.signed(slope.shape[0]) * (float(xp.min(weight)) / weight)
            found.append(self.look(xp.where(seen, v, xp.zeros_like(v))))
        return found

    def look(self, v: Array) -> Look:
        """A codirection with its gradient."""
        xp = array_api_compat.array_namespace(v)
        v = self.subject.representable(v)
        w = self.subject.reverse.pull(v) if self.reversible else self.subject.zeros(self.subject.domain.size)
        broken = ~xp.isfinite(w)
        return Look(v, xp.where(broken, xp.zeros_like(w), w), broken)

    def jitter(self, v: Array, u: Array) -> float:
        """By how much (Jᵀv)·u changes when the inputs change by about two roundoffs."""
        subject, xp = self.subject, array_api_compat.array_namespace(v)
        if not self.reversible:
            return 0.0
        tiny = 2.0 * subject.epsilon * self.sizes * xp.sign(subject.signed(subject.domain.size))
        found = [float(xp.sum(subject.pulled_at(sign * tiny, v) * u)) for sign in (1.0, -1.0)]
        return abs(found[0] - found[1])
