"""Entries of a derivative in low precision against their own roundoff, and all entries of an input by a common scale.

Nothing is evaluated here but the derivatives at a second point, where an entry is doubtful.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gradvet.core import thresholds
from gradvet.core.context import Context
from gradvet.core.float_format import overflow_size
from gradvet.core.gradient_match import explained_factor
from gradvet.core.spaces import Array, Location, Space
from gradvet.core.vectors import finite_part, namespace, nonzero_median, nonzero_rms, rms

JITTERS = 2
"""Number of random changes of the inputs by one roundoff, each with both signs, to see how the reference responds."""


PairNearby = Callable[[], tuple[Array, Array] | None]
"""The derivative in low precision and in the reference a few roundoffs away from the point; None where there is none.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One derivative in low precision, the reference's, and the roundoff of each entry."""

    found: Array
    expected: Array
    noise: Array
    natural: Array
    """Noise of a derivative that is zero, and of one that does not agree within its own noise."""
    inner: Callable[[], Array]
    """Further noise of a derivative that does not agree within its own noise."""
    responses: Sequence[Sequence[float]]
    """For each change of the inputs by one roundoff, by leaf: the change of the reference times the reference."""
    squares: Sequence[float]
    """By leaf: the square of the reference."""
    elsewhere: PairNearby
    """Both derivatives at another point."""


def distance(eps: float) -> float:
    """The distance of another point, in roundoffs."""
    return min(thresholds.ROUNDOFFS, thresholds.NEARBY_PART / eps)


@dataclass(frozen=True, slots=True, eq=False)
class LeafComparison:
    """What the entries of one leaf show."""

    place: Location
    found: float
    expected: float
    limit: float
    ratio: float
    """Largest error of an entry, in its own roundoffs."""
    scale: float
    """Relative error common to all entries."""
    scale_bar: float
    """Common error from which the comparison is doubtful."""
    resolution: float
    eps: float

    @property
    def severity(self) -> float:
        """1 from where the comparison is doubtful, 2 from where it is wrong."""
        by_scale = abs(self.scale) / self.scale_bar
        by_scale = by_scale if abs(self.scale) > self.eps**thresholds.PRECISION_SCALE_POWER else min(by_scale, 1.5)
        return max(self.severity_of_entries, by_scale)

    @property
    def severity_of_entries(self) -> float:
        """The same for single entries."""
        by_entry = self.ratio / _doubt(self.eps)
        if self.ratio > _limit(self.eps) and not abs(self.found - self.expected) <= self.limit:
            return max(2.0, by_entry)
        return min(by_entry, 1.5)


@dataclass(frozen=True, slots=True)
class CommonScale:
    """The relative error that all entries share.

    The rounding errors of one entry are the same in all samples, so only different entries count as independent.
    """

    value: float
    noise: float
    """What the noise of the entries makes of it."""
    width: float
    """Half-width of its interval by the spread of the errors."""

    @classmethod
    def of(cls, products: Array, squares: Array, noises: Array) -> CommonScale:
        """From error times expected entry, expected entry squared and noise squared, for each entry."""
        total = float(namespace(squares).sum(squares))
        value = float(namespace(products).sum(products)) / total
        spread = products - value * squares
        width = thresholds.PRECISION_SCALE_WIDTH * math.sqrt(float(spread @ spread)) / total
        return cls(value, math.sqrt(float(noises @ squares)) / total, width)


class PieceStatistics:
    """What the samples so far show about a piece of one leaf."""

    def __init__(self, leaf: int, part: slice) -> None:
        self.leaf, self.part = leaf, part
        self.worst = (-1.0, 0, 0.0, 0.0)
        """The largest ratio of an error to its roundoff, with its index, the entry found and the one expected."""
        self.sums: tuple[Array, Array, Array] | None = None
        """Sums over the samples: error times expected entry, expected entry squared, noise squared."""
        self.natural, self.count, self.responses, self.leaf_total = 0.0, 0, [0.0] * JITTERS, 0.0
        self.clearest = 0.0
        """Largest ratio, over the samples, of the squares of the entries to those of their noise."""
        self.is_zero = True
        """Whether the entries of no sample are clearly larger than the roundoff of inputs and outputs."""

    def add(self, context: Context, sample: Sample) -> None:
        found, expected, eps = sample.found[self.part], sample.expected[self.part], context.problem.eps
        xp = namespace(found)
        comparable = xp.isfinite(expected) & ~(~xp.isfinite(found) & (xp.abs(expected) > overflow_size(eps)))
        error = xp.where(comparable, found - expected, xp.zeros_like(expected))
        ratio, noise, outer = _beyond_noise(context, sample, self.part, error)
        index = int(xp.argmax(ratio))
        if float(ratio[index]) > self.worst[0]:
            self.worst = float(ratio[index]), index, float(found[index]), float(expected[index])
        expected = xp.where(comparable, expected, xp.zeros_like(expected))
        # Where the terms of an entry cancel, its roundoff is large beside it: such a sample weighs little. Needed by
        # the programs 31 and 123 of `benchmarks.random_functions` in bfloat16.
        weight, square = 1.0 / (float(outer @ outer) or 1.0), float(expected @ expected)
        self.clearest = max(self.clearest, square / (float(noise @ noise) or 1.0))
        self.is_zero = self.is_zero and not weight * square > _doubt(eps) ** 2
        own = [weight * response[self.leaf] for response in sample.responses]
        self.responses = [before + more for before, more in zip(self.responses, own, strict=True)]
        self.leaf_total += weight * sample.squares[self.leaf]
        sums = weight * finite_part(error) * expected, weight * expected**2, weight * noise**2
        self.sums = sums if self.sums is None else tuple(a + b for a, b in zip(self.sums, sums, strict=True))
        self.natural += weight * float(sample.natural[self.part] @ sample.natural[self.part])
        self.count += int(xp.count_nonzero(comparable))

    def comparison(self, context: Context, space: Space) -> LeafComparison:
        assert self.sums is not None
        eps, total = context.problem.eps, float(namespace(self.sums[1]).sum(self.sums[1]))
        is_clear = _doubt(eps) ** 2 < self.clearest
        # A slope below the roundoff of the outputs is zero, as far as this precision shows.
        is_zero = not total > self.natural or (self.is_zero and not total > thresholds.ROUNDOFFS**2 * self.natural)
        scale, noise, resolved = 0.0, 0.0, eps
        if not is_zero:
            common = CommonScale.of(*self.sums)
            scale, noise, resolved = common.value, common.noise, max(explained_factor(eps), common.noise, common.width)
        response = 0.0 if is_zero else max(map(abs, self.responses)) / self.leaf_total
        # A few entries have a common error by chance: see `chain_of_scalar_activations_in_bfloat16`.
        bar = max(resolved, _agreed(context), thresholds.INTERVAL_WIDTH * max(response, noise))
        # Single entries must be visible too: a lost one of typical size. A derivative of zero has none.
        resolution = max(resolved, response) if self.count and (is_zero or is_clear) else math.inf
        ratio, index, low, high = self.worst
        limit, place = eps**thresholds.LOW_PRECISION_POWER * abs(high), space.locate(self.part.start + index)
        return LeafComparison(place, low, high, limit, ratio, scale, bar, resolution, eps)


def _beyond_noise(context: Context, sample: Sample, part: slice, error: Array) -> tuple[Array, Array, Array]:
    """Errors of entries in their own roundoffs, these roundoffs, and those of inputs and outputs among them.

    As long as an entry is doubtful, more causes of roundoff are considered. A derivative that agrees without them is
    compared more sharply: see `minimum_with_a_tiny_number_in_float32`.
    """
    expected, noise, eps = sample.expected[part], sample.noise[part], context.problem.eps
    xp, doubt = namespace(error), _doubt(eps)
    ratio = _ratio(context, error, expected, noise)
    if float(xp.max(ratio)) > doubt:
        # Roundoff inside the function that a change of its inputs does not show.
        noise = xp.maximum(noise, sample.natural[part])
        ratio = _ratio(context, error, expected, noise)
    outer = noise
    if float(xp.max(ratio)) > doubt:
        noise = xp.maximum(noise, sample.inner()[part])
        ratio = _ratio(context, error, expected, noise)
    if float(xp.max(ratio)) > doubt and (other := sample.elsewhere()) is not None:
        # Roundoff inside the function puts elements on the other side of a kink, others at each point. An entry is
        # wrong if it is at both points, and by more than the reference itself jumps between them.
        found_there, expected_there = (vector[part] for vector in other)
        noise = xp.maximum(noise, _jumps(expected_there - expected, distance(eps) * noise))
        here, there = finite_part(error), finite_part(found_there - expected_there)
        if float(here @ here) > float(finite_part(expected) @ finite_part(expected)):
            # The terms of the gradient cancel. What differs from point to point is their roundoff.
            noise = xp.clip(noise, rms(there - here))
        again = _ratio(context, found_there - expected_there, expected_there, noise)
        ratio = xp.minimum(_ratio(context, error, expected, noise), again)
    # An error must be material beside a typical entry: of very many entries some are large by chance, and where equal
    # terms are summed their rounding errors are equal too.
    immaterial = (ratio > doubt) & (xp.abs(error) <= _agreed(context) * _typical(context, expected))
    return xp.where(immaterial, xp.full_like(ratio, doubt), ratio), noise, outer


def _ratio(context: Context, error: Array, expected: Array, noise: Array) -> Array:
    """Errors in their own roundoffs. What agrees far better than asked for agrees, however small its roundoff is."""
    xp = namespace(error)
    ratio = xp.abs(error) / (noise + 1e-300)
    ratio = xp.where(xp.isnan(ratio), xp.full_like(ratio, float("inf")), ratio)
    return xp.where(xp.abs(error) <= _agreed(context) * xp.abs(expected), xp.zeros_like(ratio), ratio)


def _jumps(change: Array, smooth: Array) -> Array:
    """By how much each entry of the reference jumps between two points, at least what more than half of them do.

    `smooth` is what an entry of a smooth function may change over the distance.
    """
    xp = namespace(change)
    size = finite_part(xp.abs(change))
    jumps = xp.where(size > thresholds.INTERVAL_WIDTH * smooth, size, xp.zeros_like(size))
    return xp.clip(jumps, float(xp.sort(jumps)[(jumps.shape[0] - 1) // 2]))


def _agreed(context: Context) -> float:
    """Relative error that is agreement however small the roundoff is."""
    part = 1.0 if is_framework(context) else thresholds.LOW_PRECISION_PART
    return part * context.options.resolution + context.options.accuracy


def is_framework(context: Context) -> bool:
    """Whether only the framework's own kernels round, inside them too.

    Needed by `test_batch_norm_of_two_rows_does_not_fail_in_float32`.
    """
    return context.problem.rules.are_builtin and context.computes_in_io_dtype


def _typical(context: Context, entries: Array) -> float:
    """The median size of the entries that are not zero, as a custom rule may lose all but the largest ones.

    The root mean square where the rules are the framework's own.
    """
    size = finite_part(abs(entries))
    return nonzero_rms(size) if is_framework(context) else nonzero_median(size)


def _limit(eps: float) -> float:
    """Error of an entry, in its own roundoffs, from which it is wrong."""
    return min(thresholds.PRECISION_FAIL, thresholds.LOW_PRECISION_PART / eps)


def _doubt(eps: float) -> float:
    """Error of an entry, in its own roundoffs, from which the comparison is doubtful."""
    return min(thresholds.VISIBLE_NOISE, thresholds.PRECISION_DOUBT_PART / eps)
