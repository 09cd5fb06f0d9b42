"""Is the derivative in low precision the one of the float64 reference, as far as its roundoff allows?

Rounding errors are incoherent: they differ from entry to entry. Errors of a formula or of a kernel are not. So each
entry is compared with its own roundoff, and all entries of an input are compared by their common scale, which resolves
far smaller errors: a factor of 0.97 in bfloat16 shows in the scale of a hundred entries, and in none of them alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from gradvet.core import thresholds
from gradvet.core.context import GIVEN, Context
from gradvet.core.gradient_match import natural_noise, smoothed_noise, value_roundoff
from gradvet.core.problem import Distribution
from gradvet.core.results import Finding, Mismatch, Verdict
from gradvet.core.runner import CheckFunction
from gradvet.core.spaces import Array, Leaf, Location, Space
from gradvet.core.vectors import finite_part, namespace, peak

MAX_DRAWS, ENOUGH_ENTRIES = 8, 256
"""Number of random cotangents: as many as give this many entries in the smallest input, between 2 and the maximum."""

JITTERS = 2
"""Number of random changes of the inputs by one roundoff, each with both signs, to see how the reference responds."""

FLOAT16_EPS = 2.0**-10
"""The only format whose range is much smaller than that of float32."""

OVERFLOWS = "the values themselves overflow in this precision"
RIGHT = "the gradient is as good as its precision allows"
ADVICE = "The formula is right in float64: look for sums, products or intermediate results kept in low precision."


@dataclass(frozen=True, slots=True, eq=False)
class _Sample:
    """One derivative in low precision, the reference's, and the roundoff of each entry."""

    found: Array
    expected: Array
    noise: Array
    natural: Array
    """Noise of a derivative that is zero."""
    changes: Sequence[Array]
    """Changes of the reference for changes of the inputs by one roundoff."""


def precision_against(reference: Context) -> CheckFunction:
    """The check of a problem in low precision against its float64 reference."""

    def precision(context: Context) -> Iterator[Finding]:
        problem, rows = context.problem, context.problem.codomain.size
        if not problem.domain.size:
            yield Finding("precision", Verdict.INCONCLUSIVE, "there is no gradient to compare")
            return
        xp = namespace(problem.value)
        low, high = problem.value[:rows], reference.problem.value[:rows]
        if bool(xp.any(~xp.isfinite(low) & xp.isfinite(high))):
            yield Finding("precision", Verdict.INCONCLUSIVE, OVERFLOWS)
            return
        yield from _reverse(context, reference)
        yield from _forward(context, reference)

    return precision


def _reverse(context: Context, reference: Context) -> Iterator[Finding]:
    if not context.has_reverse:
        return
    problem = context.problem
    samples = []
    for number in range(_draws(problem.domain)):
        # Random signs, and ones, whose sums do not cancel.
        draw = (
            problem.random(problem.codomain.size, Distribution.SHARP)
            if number != 1
            else problem.zeros(problem.codomain.size) + 1.0
        )
        v = problem.representable(draw)
        samples.append(_vjp_sample(context, reference, v))
    yield _compared(context, "reverse", problem.domain, samples)


def _forward(context: Context, reference: Context) -> Iterator[Finding]:
    """JVPs in the given precision; nothing where the function has no forward mode."""
    problem = context.problem
    try:
        samples = [_jvp_sample(context, reference) for _ in range(_draws(problem.codomain))]
    except Exception:  # no forward mode, which the check `forward` reports
        return
    yield _compared(context, "forward", problem.codomain, samples)


def _draws(space: Space) -> int:
    smallest = min((leaf.coordinates.size for leaf in space.leaves if leaf.coordinates.size), default=1)
    return max(2, min(MAX_DRAWS, math.ceil(ENOUGH_ENTRIES / smallest)))


def _vjp_sample(context: Context, reference: Context, v: Array) -> _Sample:
    found, expected = context.problem.vjp(v), reference.problem.vjp(v)

    def changed(displacement: Array, changes: Array) -> Array:
        return reference.problem.vjp_at(displacement, v * (1.0 + changes)) - expected

    return _sample(context, (found, expected, natural_noise(context, v)), changed, context.problem.domain)


def _jvp_sample(context: Context, reference: Context) -> _Sample:
    problem = context.problem
    u = problem.representable(context.joint_direction(), problem.domain)
    found, expected = problem.jvp(u), reference.problem.jvp(u)

    def changed(displacement: Array, changes: Array) -> Array:
        found = reference.problem.jvp_at(displacement, u * (1.0 + changes))
        return (reference.problem.jvp(u * (1.0 + changes)) if found is None else found) - expected

    value = namespace(u).abs(finite_part(problem.value[: problem.codomain.size]))
    natural = problem.eps * namespace(u).clip(value, peak(value) / max(1, value.shape[0]) ** 0.5)
    return _sample(context, (found, expected, natural), changed, problem.codomain)


def _sample(
    context: Context, known: tuple[Array, Array, Array], changed: Callable[[Array, Array], Array], space: Space
) -> _Sample:
    """Found and expected derivative with the roundoff of each entry.

    The roundoff is the response of the reference to one roundoff, the rounding of the entry, or what is natural. Of the
    responses to a change and to its opposite the smaller one counts: one of them may move an element off a kink.
    """
    found, expected, natural = known
    problem, xp = context.problem, namespace(expected)
    size = problem.codomain.size if space is problem.domain else problem.domain.size
    changes, square = [], xp.zeros_like(expected)
    for _ in range(JITTERS):
        displacement = value_roundoff(context)
        signs = 0.5 * problem.eps * xp.sign(problem.random(size, Distribution.SHARP))
        sides = [finite_part(changed(sign * displacement, sign * signs)) for sign in (1.0, -1.0)]
        smaller = xp.where(xp.abs(sides[0]) <= xp.abs(sides[1]), sides[0], sides[1])
        changes.append(smaller)
        square = square + smaller * smaller
    own = finite_part(xp.maximum(problem.eps * xp.abs(expected), natural))
    noise = xp.maximum(xp.sqrt(square / JITTERS), own)
    return _Sample(found, expected, smoothed_noise(noise, space), natural, changes)


def _compared(context: Context, mode: str, space: Space, samples: Sequence[_Sample]) -> Finding:
    """The worst leaf; the resolution of each input is entered in the ledger for the given precision."""
    worst: _Comparison | None = None
    resolutions = []
    for number, leaf in enumerate(space.leaves):
        part = space.slice(number)
        if part.stop == part.start:
            continue
        found = _compare_leaf(context, leaf, part, samples)
        resolutions.append(found.resolution)
        if worst is None or found.severity > worst.severity:
            worst = found
        if mode == "reverse":
            _enter(context, leaf, mode, found.resolution)
    if mode == "forward":
        for leaf in context.problem.domain.leaves:
            _enter(context, leaf, mode, max(resolutions, default=math.inf))
    return _finding(context, mode, worst)


def _enter(context: Context, leaf: Leaf, mode: str, resolution: float) -> None:
    ledger = context.record.ledger
    ledger.open(leaf.name, mode, GIVEN, leaf.coordinates.size, context.asked_resolution)
    ledger.compared(leaf.name, mode, GIVEN, resolution)


@dataclass(frozen=True, slots=True, eq=False)
class _Comparison:
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
        by_entry = self.ratio / _doubt(self.eps)
        limit = min(thresholds.PRECISION_FAIL, thresholds.PRECISION_FAIL_PART / self.eps)
        if self.ratio > limit and not abs(self.found - self.expected) <= self.limit:
            by_entry = max(2.0, by_entry)
        else:
            by_entry = min(by_entry, 1.5)
        by_scale = abs(self.scale) / self.scale_bar
        by_scale = by_scale if abs(self.scale) > self.eps**thresholds.PRECISION_SCALE_POWER else min(by_scale, 1.5)
        return max(by_entry, by_scale)


def _compare_leaf(context: Context, leaf: Leaf, part: slice, samples: Sequence[_Sample]) -> _Comparison:
    xp, eps = namespace(samples[0].expected), context.problem.eps
    agreed = thresholds.PRECISION_AGREEMENT * context.options.power + context.options.accuracy
    worst = (-1.0, 0, 0.0, 0.0)
    zeros = xp.zeros_like(samples[0].expected[part])
    products, squares, noises, natural, count = zeros, zeros, zeros, 0.0, 0
    responses = [0.0] * JITTERS
    for sample in samples:
        found, expected, noise = sample.found[part], sample.expected[part], sample.noise[part]
        comparable = xp.isfinite(expected) & ~(~xp.isfinite(found) & (xp.abs(expected) > _overflow(eps)))
        error = xp.where(comparable, found - expected, zeros)
        ratio = xp.abs(error) / (noise + 1e-300)
        ratio = xp.where(xp.isnan(ratio), xp.full_like(ratio, float("inf")), ratio)
        # What agrees far better than asked for agrees, however small its roundoff is.
        ratio = xp.where(xp.abs(error) <= agreed * xp.abs(expected), xp.zeros_like(ratio), ratio)
        index = int(xp.argmax(ratio))
        if float(ratio[index]) > worst[0]:
            worst = float(ratio[index]), index, float(found[index]), float(expected[index])
        expected = xp.where(comparable, expected, zeros)
        responses = [
            known + float(change[part] @ expected) for known, change in zip(responses, sample.changes, strict=True)
        ]
        products, squares = products + finite_part(error) * expected, squares + expected * expected
        noises = noises + noise * noise
        natural += float(sample.natural[part] @ sample.natural[part])
        count += int(xp.count_nonzero(comparable))
    total = float(xp.sum(squares))
    scale, resolved = _common_scale(products, squares, noises, eps) if total > natural else (0.0, eps)
    response = max(map(abs, responses)) / total if total > natural else 0.0
    bar = max(resolved, agreed, thresholds.PRECISION_RESPONSE * response)
    # Single entries must be visible too: a lost one of typical size. A derivative of zero has none.
    is_visible = total <= natural or _doubt(eps) * math.sqrt(float(xp.sum(noises)) / total) < 1.0
    resolution = max(resolved, response) if count and is_visible else math.inf
    space = context.problem.domain if leaf in context.problem.domain.leaves else context.problem.codomain
    ratio_worst, index, low, high = worst
    limit = eps**thresholds.PRECISION_MATERIAL_POWER * abs(high)
    return _Comparison(space.locate(part.start + index), low, high, limit, ratio_worst, scale, bar, resolution, eps)


def _overflow(eps: float) -> float:
    """Size from which a derivative may overflow: half the largest float16, or nearly the largest of other formats."""
    return 32752.0 if eps == FLOAT16_EPS else 1e38


def _doubt(eps: float) -> float:
    """Error of an entry, in its own roundoffs, from which the comparison is doubtful."""
    return min(thresholds.PRECISION_DOUBT, thresholds.PRECISION_DOUBT_PART / eps)


def _common_scale(products: Array, squares: Array, noises: Array, eps: float) -> tuple[float, float]:
    """The relative error that all entries share, and how much of it rounding explains.

    `products`, `squares` and `noises` are error times expected value, expected value squared and noise squared, summed
    over the draws. The rounding errors of one entry are the same in all draws, so only different entries count as
    independent.
    """
    xp = namespace(products)
    total = float(xp.sum(squares))
    explained = min(thresholds.PRECISION_SCALE_EPS * eps, thresholds.PRECISION_SCALE_MAX)
    scale = float(xp.sum(products)) / total
    residual = products - scale * squares
    spread = math.sqrt(float(xp.sum(residual * residual))) / total
    independent = total**2 / float(xp.sum(squares * squares))
    few = thresholds.PRECISION_ENTRY_EPS * eps / math.sqrt(independent)
    # By the spread of the errors, and by the noise of the entries where these are few.
    noise = math.sqrt(float(xp.sum(noises * squares))) / total
    return scale, max(explained, few, noise, thresholds.PRECISION_SCALE_WIDTH * spread)


def _finding(context: Context, mode: str, worst: _Comparison | None) -> Finding:
    if worst is None:
        return Finding("precision", Verdict.PASS, RIGHT)
    facts = {"ratio": worst.ratio, "scale": worst.scale, "epsilon": context.problem.eps, "mode": mode}
    if worst.severity <= 1.0:
        return Finding("precision", Verdict.PASS, RIGHT, facts=facts)
    what = "gradient" if mode == "reverse" else "tangent"
    if abs(worst.scale) > worst.scale_bar:
        words = f"the {what} of {worst.place.name} in low precision is {1.0 + worst.scale:.4f} times the one in float64"
    else:
        words = (
            f"the {what} in low precision is {worst.found:.6g} instead of {worst.expected:.6g} at {worst.place}, "
            f"{worst.ratio:.1f} times its roundoff"
        )
    if worst.severity < 2.0:
        return Finding("precision", Verdict.INCONCLUSIVE, words, facts=facts)
    combination = Location(0, "a combination of outputs", "")
    mismatch = Mismatch(combination, worst.place, worst.found, worst.expected, worst.limit, worst.limit)
    return Finding("precision", Verdict.FAIL, words, (mismatch,), facts, ADVICE)
