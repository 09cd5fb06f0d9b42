"""Derivatives in low precision and in the wider version, and their entries against their own roundoff."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from gradvet.core import thresholds
from gradvet.core.context import Context
from gradvet.core.gradient_match import (
    explained_factor,
    inner_noise,
    natural_noise,
    smoothed_noise,
    value_roundoff,
)
from gradvet.core.problem import Distribution, Problem
from gradvet.core.reference_errors import overflow_size
from gradvet.core.vectors import (
    Array,
    Location,
    Space,
    finite_part,
    namespace,
    nan_as_inf,
    nonzero_median,
    norm,
    peak,
    pieces,
    rms,
    smallest,
)

MAX_DRAWS, ENOUGH_ENTRIES = 8, 256
"""Number of random cotangents: as many as give this many entries in the smallest input, between 2 and the maximum."""


JITTERS = 2
"""Number of random changes of the inputs by one roundoff, each with both signs, to which the wider version responds."""

Rounded = Callable[[Callable[[], Array | None]], Array | None]
"""The result of a call of the wider version in which every operator rounds to the given format; None where unknown."""


@dataclass(eq=False)
class DerivativeSample:
    """Jᵀv or Ju in low precision and in the wider version, with the roundoff of each entry; computed when needed."""

    context: Context
    wide_context: Context
    mode: str
    vector: Array
    """v in reverse mode, u in forward mode."""
    rounded: Rounded
    rounds_operators: bool = False
    """Whether the expected derivative is the one whose operators round, and its roundoff that of its last operator."""

    @property
    def space(self) -> Space:
        return self.context.problem.domain if self.mode == "reverse" else self.context.problem.codomain

    @cached_property
    def found(self) -> Array:
        _, problem = self.roundoff, self.context.problem  # the roundoff first: it needs the most other vectors
        return problem.vjp(self.vector) if self.mode == "reverse" else problem.jvp(self.vector)

    @cached_property
    def expected(self) -> Array:
        """NaN where operators that round are asked for, and the result is not known."""
        problem = self.wide_context.problem
        if self.rounds_operators:
            found = self._with_rounded_operators()
            return problem.zeros(self.space.size) + math.nan if found is None else found
        if self.mode == "forward":
            return problem.jvp(self.vector)
        expected = problem.vjp(self.vector)
        problem.release_graph()  # gradients next to the point have graphs of their own
        return expected

    @cached_property
    def squares(self) -> list[float]:
        """By leaf: the square of the expected derivative."""
        parts = [finite_part(self.expected[part]) for part in self.space.slices]
        return [float(part @ part) for part in parts]

    @cached_property
    def roundoff(self) -> tuple[Array, list[list[float]]]:
        """The response of each entry to one roundoff of the inputs, or the rounding of the entry, whichever is larger.

        And for each change by one roundoff, by leaf, the response times the expected derivative. Of the responses to a
        change and to its opposite the smaller one counts: one of them may move an element off a kink.
        """
        problem, expected = self.context.problem, self.expected
        xp, finite = namespace(expected), finite_part(expected)
        if self.rounds_operators:
            return problem.eps * xp.abs(expected), []
        responses, noise = [], xp.zeros_like(expected)
        for _ in range(JITTERS):
            displacement = value_roundoff(self.context)
            signs = 0.5 * problem.eps * xp.sign(problem.random(self.vector.shape[0], Distribution.NEAR_UNIT))
            above = finite_part(self._response(displacement, signs))
            displacement *= -1.0
            below = finite_part(self._response(displacement, -signs))
            del displacement
            products = [0.0] * len(self.space.slices)
            for leaf, piece in ((leaf, piece) for leaf, part in enumerate(self.space.slices) for piece in pieces(part)):
                smaller = xp.where(xp.abs(above[piece]) <= xp.abs(below[piece]), above[piece], below[piece])
                products[leaf] += float(smaller @ finite[piece])
                noise[piece] += smaller * smaller / JITTERS
            responses.append(products)
            del above, below
        for context in (self.context, self.wide_context) if self.context.is_large else ():
            context.problem.release()  # the copies of the inputs that were moved
        for piece in pieces(slice(0, noise.shape[0])):
            noise[piece] = xp.maximum(xp.sqrt(noise[piece]), problem.eps * xp.abs(finite[piece]))
        return smoothed_noise(noise, self.space), responses

    def _response(self, displacement: Array, changes: Array) -> Array:
        """Change of the expected derivative; that by the vector alone where it is not known next to the point."""
        response = self._wide_at(displacement, changes)
        if response is None:
            response = self._wide_at(0.0 * displacement, changes)
        assert response is not None  # it exists at the point
        response -= self.expected
        return response

    def _wide_at(self, displacement: Array, changes: Array | float = 0.0) -> Array | None:
        """In the wider version, for a vector with these relative changes."""
        return self._at(self.wide_context.problem, displacement, self.vector * (1.0 + changes))

    def _at(self, problem: Problem, displacement: Array, vector: Array) -> Array | None:
        if self.mode == "reverse":
            return problem.vjp_at(displacement, vector)
        return problem.jvp_at(displacement, vector) if peak(displacement) else problem.jvp(vector)

    def _with_rounded_operators(self) -> Array | None:
        """The derivative of the wider version in which every operator rounds; None where unknown."""
        here = self.context.problem.zeros(self.context.problem.domain.size)
        return self.rounded(lambda: self._wide_at(here))

    @cached_property
    def natural(self) -> Array:
        """Noise of a derivative that is zero, and of one that does not agree within its own noise.

        Of Ju: an output, or a typical one, changes by one roundoff.
        """
        problem, xp = self.context.problem, self.context.xp
        if self.mode == "reverse":
            noise = natural_noise(self.context, self.vector)
        else:
            value = xp.abs(finite_part(self.context.value))
            typical = peak(value) / max(1, value.shape[0]) ** 0.5
            # Saturated outputs, as in `natural_noise`: needed by `gelu_at_minus_nine` in float32.
            noise = problem.eps * xp.clip(value, 1.0 if typical <= thresholds.DOUBLE_EPS else typical)
        return noise if self.rounds_operators else smoothed_noise(noise, self.space)

    @cached_property
    def inner(self) -> Array | None:
        """Noise by roundoff inside the function: where values of size one cancel, and where every operator rounds.

        The latter is needed by `test_gradient_that_consists_of_the_roundoff_of_each_operator_does_not_fail`.
        """
        if self.rounds_operators:
            return None
        problem = self.context.problem
        if self.mode == "reverse":
            floor = inner_noise(self.context, self.vector)
        else:
            value = finite_part(problem.value[: self.space.size])
            is_small = peak(value) <= problem.eps**thresholds.HALF_THE_DIGITS
            floor = value * 0.0 + (problem.eps if is_small else 0.0)
        # Rules of the user may round otherwise.
        again = self._with_rounded_operators() if problem.rules.are_builtin else None
        if again is None:
            return floor
        return namespace(floor).maximum(floor, smoothed_noise(finite_part(abs(again - self.expected)), self.space))

    @cached_property
    def nearby(self) -> tuple[Array, Array] | None:
        """Both derivatives some roundoffs of the inputs away, as their format represents it; None where not known.

        Needed by `test_rounding_that_moves_elements_across_a_kink_does_not_fail`.
        """
        if self.rounds_operators:
            return None
        problem = self.context.problem
        displacement = problem.perturbation(distance(problem.eps) * value_roundoff(self.context)).vector
        found, expected = self._at(problem, displacement, self.vector), self._wide_at(displacement)
        return None if found is None or expected is None else (found, expected)


def derivative_samples(
    context: Context, wide: Context, mode: str, rounded: Rounded, *, rounds_operators: bool = False
) -> Iterator[DerivativeSample]:
    """As many samples as give enough entries: cotangents of random signs, and of ones, whose sums do not cancel."""
    problem, rows = context.problem, context.problem.codomain.size
    leaves = (problem.domain if mode == "reverse" else problem.codomain).leaves
    smallest = min((leaf.coordinates.size for leaf in leaves if leaf.coordinates.size), default=1)
    for number in range(max(2, min(MAX_DRAWS, math.ceil(ENOUGH_ENTRIES / smallest)))):
        if mode == "forward":
            vector = problem.representable(context.joint_direction(), problem.domain)
        else:
            v = problem.zeros(rows) + 1.0 if number == 1 else problem.random(rows, Distribution.NEAR_UNIT)
            vector = problem.representable(v)
        yield DerivativeSample(context, wide, mode, vector, rounded, rounds_operators)


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
    middle: float
    """The same by the median entry. Needed by `test_roundoff_of_one_row_is_no_common_factor`."""
    scale_bar: float
    """Common error from which the comparison is doubtful."""
    resolution: float
    eps: float

    @property
    def severity(self) -> float:
        """1 from where the comparison is doubtful, 2 from where it is wrong."""
        by_scale, by_entry = abs(self.scale) / self.scale_bar, self.ratio / _doubt(self.eps)
        if not min(abs(self.scale), abs(self.middle)) > self.eps**thresholds.HALF_THE_DIGITS:
            by_scale = min(by_scale, 1.5)
        is_wrong = self.ratio > _limit(self.eps) and not abs(self.found - self.expected) <= self.limit
        return max(by_scale, max(2.0, by_entry) if is_wrong else min(by_entry, 1.5))

    @property
    def is_scaled(self) -> bool:
        """Whether the worst entry has the error that all entries share, which rounding does not explain."""
        is_large = abs(self.scale) > max(self.scale_bar, self.eps**thresholds.HALF_THE_DIGITS)
        rest = self.found - (1.0 + self.scale) * self.expected
        return is_large and abs(rest) <= thresholds.OPERATION_EPS * self.eps * abs(self.expected)


def _common_scale(products: Array, squares: Array, noises: Array) -> tuple[float, float, float, float]:
    """The relative error that all entries share, the median one, what noise makes of it, half its interval's width.

    From error times expected entry, expected entry squared and noise squared, for each entry. The rounding errors of
    one entry are the same in all samples, so only different entries count as independent.
    """
    total = float(namespace(squares).sum(squares))
    value = float(namespace(products).sum(products)) / total
    spread = products - value * squares
    width = thresholds.PRECISION_SCALE_WIDTH * norm(spread) / total
    ratios = products[squares > 0.0] / squares[squares > 0.0]
    return value, smallest(ratios, ratios.shape[0] // 2), math.sqrt(float(noises @ squares)) / total, width


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
        for number, response in enumerate(sample.roundoff[1]):
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
        is_zero = not total > self.natural
        scale, middle, noise, resolved = 0.0, 0.0, 0.0, eps
        if not is_zero:
            scale, middle, noise, width = _common_scale(*self.sums)
            resolved = max(explained_factor(eps), noise, width)
        response = 0.0 if is_zero else max(map(abs, self.responses)) / self.leaf_total
        # A few entries have a common error by chance: see `chain_of_scalar_activations_in_bfloat16`.
        bar = max(resolved, _agreed(context), thresholds.INTERVAL_WIDTH * max(response, noise))
        # Single entries must be visible too: a lost one of typical size. A derivative of zero has none.
        resolution = max(resolved, response) if self.count and (is_zero or is_clear) else math.inf
        ratio, index, low, high = self.worst
        limit, place = eps**thresholds.LOW_PRECISION_POWER * abs(high), space.locate(self.part.start + index)
        return LeafComparison(place, low, high, limit, ratio, scale, middle, bar, resolution, eps)


def _beyond_noise(context: Context, sample: DerivativeSample, part: slice, error: Array) -> tuple[Array, Array, Array]:
    """Errors of entries in their own roundoffs, these roundoffs, and those of inputs and outputs among them.

    As long as an entry is doubtful, more causes of roundoff are considered. A derivative that agrees without them is
    compared more sharply: see `minimum_with_a_tiny_number_in_float32`.
    """
    expected, noise, eps = sample.expected[part], sample.roundoff[0][part], context.problem.eps
    xp, doubt = namespace(error), _doubt(eps)
    ratio = _ratio(context, error, expected, noise)
    if float(xp.max(ratio)) > doubt:
        # Roundoff inside the function that a change of its inputs does not show.
        noise = xp.maximum(noise, sample.natural[part])
        ratio = _ratio(context, error, expected, noise)
    outer = noise
    if float(xp.max(ratio)) > doubt and (inner := sample.inner) is not None:
        noise = xp.maximum(noise, inner[part])
        ratio = _ratio(context, error, expected, noise)
    if float(xp.max(ratio)) > doubt and (other := sample.nearby) is not None:
        # Roundoff inside the function puts elements on the other side of a kink, others at each point. An entry is
        # wrong if it is at both points, and by more than the wider version jumps between them.
        found_there, expected_there = (vector[part] for vector in other)
        noise = xp.maximum(noise, _jumps(expected_there - expected, distance(eps) * noise))
        here, there = finite_part(error), finite_part(found_there - expected_there)
        if float(here @ here) > float(finite_part(expected) @ finite_part(expected)):
            # The terms of the gradient cancel, as those of a bias before a normalisation. What differs from point to
            # point is their roundoff. Needed by `test_network_with_many_kinks_takes_few_evaluations`.
            noise = xp.clip(noise, rms(there - here))
        again = _ratio(context, found_there - expected_there, expected_there, noise)
        ratio = xp.minimum(_ratio(context, error, expected, noise), again)
    if not float(xp.max(ratio)) > doubt:
        return ratio, noise, outer
    # An error must be material beside a typical entry: of very many entries some are large by chance, and where equal
    # terms are summed their rounding errors are equal too. The median, as a custom rule may lose all but the largest.
    # Without this the graph network of `benchmarks.models` is inconclusive.
    typical = nonzero_median(xp.abs(finite_part(expected)))
    immaterial = (ratio > doubt) & (xp.abs(error) <= _agreed(context) * typical)
    return xp.where(immaterial, xp.full_like(ratio, doubt), ratio), noise, outer


def _ratio(context: Context, error: Array, expected: Array, noise: Array) -> Array:
    """Errors in their own roundoffs. What agrees far better than asked for agrees, however small its roundoff is."""
    xp = namespace(error)
    ratio = nan_as_inf(xp.abs(error) / (noise + 1e-300))
    return xp.where(xp.abs(error) <= _agreed(context) * xp.abs(expected), xp.zeros_like(ratio), ratio)


def _jumps(change: Array, smooth: Array) -> Array:
    """By how much each entry of the wider version jumps between two points, at least what more than half of them do.

    `smooth` is what an entry of a smooth function may change over the distance.
    """
    xp = namespace(change)
    size = finite_part(xp.abs(change))
    jumps = xp.where(size > thresholds.INTERVAL_WIDTH * smooth, size, xp.zeros_like(size))
    return xp.clip(jumps, smallest(jumps, (jumps.shape[0] - 1) // 2))


def _agreed(context: Context) -> float:
    """Relative error that is agreement however small the roundoff is."""
    return thresholds.NEGLIGIBLE_PART * context.options.resolution + context.options.accuracy


def is_framework(context: Context) -> bool:
    """Whether only the framework's own kernels round, inside them too.

    Needed by `test_batch_norm_of_two_rows_does_not_fail_in_float32`.
    """
    return context.problem.rules.are_builtin and context.computes_in_io_dtype


def _limit(eps: float) -> float:
    """Error of an entry, in its own roundoffs, from which it is wrong."""
    return min(thresholds.PRECISION_FAIL, thresholds.LOW_PRECISION_PART / eps)


def _doubt(eps: float) -> float:
    """Error of an entry, in its own roundoffs, from which the comparison is doubtful."""
    return min(thresholds.PRECISION_DOUBT, 1.0 / (thresholds.PRECISION_DOUBT * eps))
