"""Pairs of derivatives, in low precision and in the wider version, and their entries against their own roundoff."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from gradvet.core import thresholds
from gradvet.core.context import Context
from gradvet.core.gradient_match import explained_factor, inner_noise, natural_noise
from gradvet.core.problem import Distribution
from gradvet.core.reference_errors import overflow_size
from gradvet.core.vectors import Array, Location, Space, finite_part, namespace, nonzero_median, nonzero_rms, peak, rms

MAX_DRAWS, ENOUGH_ENTRIES = 8, 256
"""Number of random cotangents: as many as give this many entries in the smallest input, between 2 and the maximum."""


@dataclass(frozen=True, eq=False)
class VjpPair:
    """Jᵀv in the given precision and in the wider version, at the point or next to it."""

    context: Context
    wide_context: Context
    v: Array

    @property
    def space(self) -> Space:
        return self.context.problem.domain

    def both(self) -> tuple[Array, Array]:
        found = self.context.problem.vjp(self.v), self.wide_context.problem.vjp(self.v)
        # Gradients next to the point have graphs of their own.
        self.wide_context.problem.release_graph()
        return found

    def given_at(self, place: Array) -> Array | None:
        return self.context.problem.vjp_at(place, self.v)

    def wide_at(self, place: Array, changes: Array | float = 0.0) -> Array | None:
        """In the wider version, for a cotangent with these relative changes."""
        return self.wide_context.problem.vjp_at(place, self.v * (1.0 + changes))

    def natural_noise(self) -> Array:
        return natural_noise(self.context, self.v)

    def inner_noise(self) -> Array:
        return inner_noise(self.context, self.v)


@dataclass(frozen=True, eq=False)
class JvpPair:
    """Ju in the given precision and in the wider version, at the point or next to it."""

    context: Context
    wide_context: Context
    u: Array

    @property
    def space(self) -> Space:
        return self.context.problem.codomain

    def both(self) -> tuple[Array, Array]:
        return self.context.problem.jvp(self.u), self.wide_context.problem.jvp(self.u)

    def given_at(self, place: Array) -> Array | None:
        return self.context.problem.jvp_at(place, self.u) if peak(place) else self.context.problem.jvp(self.u)

    def wide_at(self, place: Array, changes: Array | float = 0.0) -> Array | None:
        """In the wider version, for a direction with these relative changes."""
        wide, u = self.wide_context.problem, self.u * (1.0 + changes)
        return wide.jvp_at(place, u) if peak(place) else wide.jvp(u)

    def natural_noise(self) -> Array:
        """Noise of each entry if an output, or a typical one, changes by one roundoff."""
        problem, xp = self.context.problem, self.context.xp
        value = xp.abs(finite_part(problem.value[: problem.codomain.size]))
        typical = peak(value) / max(1, value.shape[0]) ** 0.5
        # Saturated outputs, as in `natural_noise`: needed by `gelu_at_minus_nine` in float32.
        return problem.eps * xp.clip(value, 1.0 if typical <= thresholds.DOUBLE_EPS else typical)

    def inner_noise(self) -> Array:
        problem, value = self.context.problem, finite_part(self.context.problem.value[: self.space.size])
        is_small = peak(value) <= problem.eps**thresholds.HALF_THE_DIGITS
        return value * 0.0 + (problem.eps if is_small else 0.0)


DerivativePair = VjpPair | JvpPair


def derivative_pairs(context: Context, wide: Context, mode: str) -> Iterator[DerivativePair]:
    """As many pairs as give enough entries: cotangents of random signs, and of ones, whose sums do not cancel."""
    problem, rows = context.problem, context.problem.codomain.size
    for number in range(_draws(problem.domain if mode == "reverse" else problem.codomain)):
        if mode == "forward":
            yield JvpPair(context, wide, problem.representable(context.joint_direction(), problem.domain))
        else:
            v = problem.zeros(rows) + 1.0 if number == 1 else problem.random(rows, Distribution.NEAR_UNIT)
            yield VjpPair(context, wide, problem.representable(v))


def _draws(space: Space) -> int:
    smallest = min((leaf.coordinates.size for leaf in space.leaves if leaf.coordinates.size), default=1)
    return max(2, min(MAX_DRAWS, math.ceil(ENOUGH_ENTRIES / smallest)))


JITTERS = 2
"""Number of random changes of the inputs by one roundoff, each with both signs, to which the wider version responds."""


@dataclass(frozen=True, slots=True, eq=False)
class DerivativeSample:
    """One derivative in low precision, that of the wider version, and the roundoff of each entry."""

    found: Array
    expected: Array
    noise: Array
    natural: Array
    """Noise of a derivative that is zero, and of one that does not agree within its own noise."""
    squares: Sequence[float]
    """By leaf: the square of the expected derivative."""
    responses: Sequence[Sequence[float]] = ()
    """For each change of the inputs by one roundoff, by leaf: the change of the expected derivative times itself."""
    inner: Callable[[], Array | None] = lambda: None
    """Further noise of a derivative that does not agree within its own noise."""
    elsewhere: Callable[[], tuple[Array, Array] | None] = lambda: None
    """Both derivatives a few roundoffs away from the point; None where they are not known."""


def distance(eps: float) -> float:
    """The distance of another point, in roundoffs."""
    return min(thresholds.ROUNDOFFS, thresholds.NEARBY_PART / eps)


@dataclass(frozen=True, slots=True, eq=False)
class LeafComparison:
    """Errors of the entries of one leaf: the largest one, and the one that all share."""

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
        by_scale = by_scale if abs(self.scale) > self.eps**thresholds.HALF_THE_DIGITS else min(by_scale, 1.5)
        return max(self.severity_of_entries, by_scale)

    @property
    def is_scaled(self) -> bool:
        """Whether the worst entry has the error that all entries share, which rounding does not explain."""
        is_large = abs(self.scale) > max(self.scale_bar, self.eps**thresholds.HALF_THE_DIGITS)
        rest = self.found - (1.0 + self.scale) * self.expected
        return is_large and abs(rest) <= thresholds.OPERATION_EPS * self.eps * abs(self.expected)

    @property
    def severity_of_entries(self) -> float:
        """The same for single entries."""
        by_entry = self.ratio / _doubt(self.eps)
        if self.ratio > _limit(self.eps) and not abs(self.found - self.expected) <= self.limit:
            return max(2.0, by_entry)
        return min(by_entry, 1.5)


def _common_scale(products: Array, squares: Array, noises: Array) -> tuple[float, float, float]:
    """The relative error that all entries share, what their noise makes of it, and half the width of its interval.

    From error times expected entry, expected entry squared and noise squared, for each entry. The rounding errors of
    one entry are the same in all samples, so only different entries count as independent.
    """
    total = float(namespace(squares).sum(squares))
    value = float(namespace(products).sum(products)) / total
    spread = products - value * squares
    width = thresholds.PRECISION_SCALE_WIDTH * math.sqrt(float(spread @ spread)) / total
    return value, math.sqrt(float(noises @ squares)) / total, width


class PieceStatistics:
    """Sums and maxima over the samples so far, for a piece of one leaf."""

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

    def add(self, context: Context, sample: DerivativeSample) -> None:
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
        for number, response in enumerate(sample.responses):
            self.responses[number] += weight * response[self.leaf]
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
            scale, noise, width = _common_scale(*self.sums)
            resolved = max(explained_factor(eps), noise, width)
        response = 0.0 if is_zero else max(map(abs, self.responses)) / self.leaf_total
        # A few entries have a common error by chance: see `chain_of_scalar_activations_in_bfloat16`.
        bar = max(resolved, _agreed(context), thresholds.INTERVAL_WIDTH * max(response, noise))
        # Single entries must be visible too: a lost one of typical size. A derivative of zero has none.
        resolution = max(resolved, response) if self.count and (is_zero or is_clear) else math.inf
        ratio, index, low, high = self.worst
        limit, place = eps**thresholds.LOW_PRECISION_POWER * abs(high), space.locate(self.part.start + index)
        return LeafComparison(place, low, high, limit, ratio, scale, bar, resolution, eps)


def _beyond_noise(context: Context, sample: DerivativeSample, part: slice, error: Array) -> tuple[Array, Array, Array]:
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
    if float(xp.max(ratio)) > doubt and (inner := sample.inner()) is not None:
        noise = xp.maximum(noise, inner[part])
        ratio = _ratio(context, error, expected, noise)
    if float(xp.max(ratio)) > doubt and (other := sample.elsewhere()) is not None:
        # Roundoff inside the function puts elements on the other side of a kink, others at each point. An entry is
        # wrong if it is at both points, and by more than the wider version jumps between them.
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
    """By how much each entry of the wider version jumps between two points, at least what more than half of them do.

    `smooth` is what an entry of a smooth function may change over the distance.
    """
    xp = namespace(change)
    size = finite_part(xp.abs(change))
    jumps = xp.where(size > thresholds.INTERVAL_WIDTH * smooth, size, xp.zeros_like(size))
    return xp.clip(jumps, float(xp.sort(jumps)[(jumps.shape[0] - 1) // 2]))


def _agreed(context: Context) -> float:
    """Relative error that is agreement however small the roundoff is."""
    part = 1.0 if is_framework(context) else thresholds.NEGLIGIBLE_PART
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
    return min(thresholds.PRECISION_DOUBT, 1.0 / (thresholds.PRECISION_DOUBT * eps))
