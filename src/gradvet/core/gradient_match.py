"""Whether two gradients that should be equal differ by more than roundoff, and how noisy a derivative is."""

from __future__ import annotations

import math
from collections.abc import Callable

from gradvet.core import thresholds
from gradvet.core.context import Context
from gradvet.core.problem import Distribution
from gradvet.core.reference_errors import spacing_at_zero
from gradvet.core.results import Finding, Verdict
from gradvet.core.vectors import (
    Array,
    Space,
    all_finite,
    dot,
    equal,
    finite_part,
    namespace,
    nan_as_inf,
    nonzero_median,
    nonzero_rms,
    norm,
    peak,
    pieces,
    rms,
)

JITTER_PAIRS, MAX_JITTER_PAIRS = 3, 10
"""Pairs of points next to the given one at which the derivative is evaluated: first, and at most where it varies."""

NOISE_BLOCK = 32
"""Neighbouring entries of a leaf that are taken to be equally noisy."""


def mismatch_at(context: Context, column: int, found: Array, expected: Array) -> str:
    """An entry of two gradients in words."""
    place = context.problem.domain.locate(column)
    return f"at {place}: {float(found[column]):.10g} instead of {float(expected[column]):.10g}"


def gradient_mismatch(context: Context, v: Array, found: Array, expected: Array) -> str | None:
    """Where two gradients for the cotangent v differ the most by more than roundoff; None if they agree.

    Entries whose expected value is not finite are not compared. May compute VJPs next to the point.
    """
    if equal(found, expected):
        return None
    xp = namespace(expected)
    difference = xp.abs(found - expected)
    if not all_finite(difference):
        agree = (found == expected) | ~xp.isfinite(expected)
        lost = ~xp.isfinite(found) & ~agree
        if not context.is_double and context.problem.rules.are_builtin and bool(xp.any(lost)):
            # Needed by `test_rules_of_the_framework_that_overflow_in_one_layout_do_not_fail`.
            context.record.note("the framework's own gradient overflows in this precision, in memory of another layout")
            agree = agree | lost
        difference = nan_as_inf(xp.where(agree, xp.zeros_like(difference), difference))
    allowed = _allowed(context, v, expected) + context.options.accuracy * peak(expected)
    if float(xp.max(excess := _excess(context, found, difference, expected, allowed))) <= 1.0:
        return None
    if not context.is_double:
        allowed = xp.maximum(allowed, _shared_noise(context, difference, expected))
    # Roundoff breaks ties inside the function in one way or another: `test_ties_of_sums_broken_by_the_layout_pass`.
    for _ in range(JITTER_PAIRS):
        allowed = xp.maximum(allowed, explained_by_response(context, v))
        if float(xp.max(excess := _excess(context, found, difference, expected, allowed))) <= 1.0:
            return None
    while float(excess[column := int(xp.argmax(excess))]) > 1.0:
        part = context.problem.domain.slices[context.problem.domain.leaf_of(column)]
        if context.is_double or gradient_is_stable(context, part):
            return mismatch_at(context, column, found, expected)
        # Needed by `test_network_with_many_kinks_takes_few_evaluations`: a bias before a batch norm, in another layout.
        excess[part] = 0.0
    return None


def agreement(check: str, gap: str | None, same: str, differs: str, advice: str) -> Finding:
    """The finding about two gradients that should be equal, by their mismatch."""
    if gap is None:
        return Finding(check, Verdict.PASS, same)
    return Finding(check, Verdict.FAIL, f"{differs}, {gap}", advice=advice)


def _excess(context: Context, found: Array, difference: Array, expected: Array, allowed: Array) -> Array:
    """Differences over what is allowed; in low precision also the difference that all entries of an input share.

    Rounding differs from entry to entry, and that of most is far below the largest that is allowed: if all n
    entries are equal, their common factor may be off by the resolution plus the n-th part of what one entry may be.
    Needed by `test_gradient_scaled_under_a_condition_fails_in_half_precision`.
    """
    excess, xp = difference / (allowed + 1e-300), namespace(expected)
    if context.is_double:
        return excess
    for part in context.problem.domain.slices:
        own, signed = finite_part(expected[part]), finite_part(found[part] - expected[part])
        signed = xp.where(difference[part] > 0.0, signed, xp.zeros_like(signed))
        square, shared = dot(own, own), abs(dot(signed, own))
        bar = context.asked_resolution * square + norm(allowed[part], own) / math.sqrt(max(1, own.shape[0]))
        if shared > bar and (largest := peak(excess[part])):
            excess[part] *= max(1.0, shared / (bar * largest + 1e-300))
    return excess


def _allowed(context: Context, v: Array, expected: Array) -> Array:
    """The difference at each entry that roundoff explains: other kernels round in other places.

    In double precision relative to the largest entry of the input, below it relative to each entry and the median one.
    """
    problem, xp = context.problem, namespace(expected)
    eps = problem.eps if context.computes_in_io_dtype else problem.internal_eps()
    size = finite_part(xp.abs(expected))
    if not context.is_double:
        noise = xp.clip(eps * smoothed_noise(size, problem.domain), spacing_at_zero(problem.eps))
        del size  # the inputs may be a whole model
        for other in (natural_noise, inner_noise) if problem.rules.are_builtin else (natural_noise,):
            noise = xp.maximum(noise, other(context, v))
        noise *= min(thresholds.ROUNDOFFS, thresholds.LOW_PRECISION_PART / eps)
        return noise
    inside = inner_noise(context, v) if problem.rules.are_builtin else problem.zeros(problem.domain.size)
    parts = []
    relative = max(thresholds.SCREEN_RTOL, eps**thresholds.LOW_PRECISION_POWER if eps > problem.eps else 0.0)
    for part in problem.domain.slices:
        # One roundoff of the outputs over a step of the size of these inputs.
        length = (rms(context.lengths[part]) if part.stop > part.start else 0.0) or 1.0
        roundoff = thresholds.ROUNDOFFS * (problem.eps * norm(finite_part(v * context.value)) / length)
        parts.append(xp.full_like(size[part], max(relative * peak(size[part]), roundoff)))
    lengths = xp.where(context.lengths > 0.0, context.lengths, xp.ones_like(context.lengths))
    cancelled = problem.eps**thresholds.ZERO_SLOPE_POWER * peak(size * context.lengths) / lengths
    return xp.maximum(xp.maximum(xp.concat(parts), cancelled), thresholds.ROUNDOFFS * inside)


def _shared_noise(context: Context, difference: Array, expected: Array) -> Array:
    """The difference at each entry that counts as roundoff because its neighbours differ as much.

    At most what kernels lose. Long sums inside the function round by more than a change of the inputs shows: without
    this they fail. Needed by `test_long_sums_are_linear`.
    """
    domain, xp = context.problem.domain, namespace(expected)
    lost = context.problem.eps**thresholds.LOW_PRECISION_POWER * smoothed_noise(finite_part(xp.abs(expected)), domain)
    return xp.minimum(thresholds.RESPONSE_FACTOR * smoothed_noise(finite_part(difference), domain), lost)


def natural_noise(context: Context, v: Array) -> Array:
    """Noise of each entry of Jᵀv if a typical output changes by one roundoff over a step of the input's own size.

    It covers roundoff inside the function that a change of the inputs does not show, as where terms cancel exactly.
    """
    problem, xp = context.problem, namespace(v)
    typical, unit = nonzero_rms(finite_part(v * context.value)), nonzero_rms(v)
    noise = xp.zeros_like(context.lengths)
    for leaf, part in problem.domain.sections:
        # Where many elements of an input make up few outputs, each contributes less.
        share = typical / max(1.0, leaf.coordinates.size / problem.codomain.size)
        # Saturated outputs: the values inside that cancel are of size one.
        lengths = xp.where(context.lengths[part] > 0.0, context.lengths[part], 1.0)
        noise[part] = problem.eps / lengths * (unit if share <= thresholds.DOUBLE_EPS * unit else share)
    return noise


def inner_noise(context: Context, v: Array) -> Array:
    """Noise of each entry of Jᵀv if values of size one cancel inside the function; 0 unless the outputs are small.

    The gradient of a confident loss is the softmax of the target minus one, of which a few roundoffs are left. Without
    this a right one may fail in another memory layout, or in float32. Needed by `log_of_exp_minus_one_at_forty`, which
    fails for one seed in twelve without it.
    """
    problem, xp = context.problem, namespace(v)
    unit, size = norm(v), norm(v, finite_part(context.value))
    noise = xp.zeros_like(context.lengths)
    if size > problem.eps**thresholds.HALF_THE_DIGITS * unit:
        return noise
    unit /= math.sqrt(max(1, int(xp.count_nonzero(v))))
    for leaf, part in problem.domain.sections:
        noise[part] = problem.eps * unit / max(1.0, leaf.coordinates.size / problem.codomain.size)
    return noise


def explained_by_response(context: Context, v: Array) -> Array:
    """The difference of two equal gradients that their response to roundoff explains, for each entry. Two VJPs."""
    # The response of an entry is four spacings of itself or more: in bfloat16, 32 times that would be all of it.
    of_itself = thresholds.LOW_PRECISION_PART / (4.0 * context.problem.eps)
    factor = thresholds.RESPONSE_FACTOR if context.is_double else min(thresholds.RESPONSE_FACTOR, of_itself)
    return factor * _response(context, v)


def _response(context: Context, v: Array) -> Array:
    """Change of each entry of the gradient for a change of inputs and cotangent by two roundoffs, smoothed.

    Two VJPs next to the point. In double precision the largest change of each input counts for all its entries.
    """
    problem, xp = context.problem, namespace(v)
    tiny, sign = input_roundoff(context), xp.sign(problem.random(v.shape[0], Distribution.NEAR_UNIT))
    if not context.is_double:
        sign *= 2.0 * problem.eps
        above = problem.vjp_at(tiny, v * (1.0 + sign))
        tiny *= -1.0
        above -= problem.vjp_at(tiny, v * (1.0 - sign))
        del tiny
        return smoothed_noise(finite_part(xp.abs(above)), problem.domain)
    above, below = (_vjp_by_multiple(context, s * tiny, v) for s in (1.0, -1.0))
    change = finite_part(xp.abs(above - below))
    return xp.concat([xp.full_like(change[part], peak(change[part])) for part in problem.domain.slices])


def _vjp_by_multiple(context: Context, displacement: Array, v: Array) -> Array:
    """Jᵀv next to the point; for rules of the framework, which are linear, by a random multiple of v.

    Another multiple is rounded elsewhere, so that the roundoff of a derivative whose terms cancel exactly shows.
    Without it such a derivative seems to have no noise, and fails. Needed by `normalised_difference_of_equals`.
    """
    problem = context.problem
    if not problem.rules.are_builtin:
        return problem.vjp_at(displacement, v)
    size = abs(float(problem.random(1, Distribution.NEAR_UNIT)[0]))
    return problem.vjp_at(displacement, size * v) / size


def smoothed_noise(noise: Array, space: Space) -> Array:
    """Noise of each entry, at least the median of its leaf and of its block: one from few draws may be small by chance.

    The blocks are needed where few rows of a leaf are noisier than the others, as those of the tokens of a text in an
    embedding whose weights are also the output layer.
    """
    xp = namespace(noise)
    smoothed = xp.zeros_like(noise)
    for place in space.slices:
        part = noise[place]
        whole = part.shape[0] - part.shape[0] % NOISE_BLOCK
        blocks = xp.reshape(part[:whole], (-1, NOISE_BLOCK))
        medians = xp.sort(blocks, axis=-1)[:, (NOISE_BLOCK - 1) // 2]
        blocks = xp.reshape(xp.maximum(blocks, medians[:, None]), (-1,))
        smoothed[place] = xp.clip(xp.concat([blocks, part[whole:]]), nonzero_median(part))
    return smoothed


def explained_factor(eps: float) -> float:
    """The relative error common to all entries of an input that rounding explains."""
    return min(thresholds.PRECISION_SCALE_EPS * eps, thresholds.NEGLIGIBLE_PART * thresholds.MATERIAL_MAX)


def value_roundoff(context: Context) -> Array:
    """A displacement of every input by half a spacing of its value: zeros stay zero, and equal values stay equal.

    Elements at a kink (padding, ties) then stay there, where another displacement would change their derivative.
    """
    return _signs_of_values(context, lambda signs, values: 0.5 * context.problem.eps * signs * values)


def value_signs(context: Context) -> Array:
    """A random sign for every input, the same for equal values: a random function of the value gives it."""
    return _signs_of_values(context, lambda signs, values: signs)


def _signs_of_values(context: Context, result: Callable[[Array, Array], Array]) -> Array:
    """A function of random signs and values, piece by piece: the inputs may be a whole model."""
    problem, found = context.problem, context.problem.zeros(context.problem.domain.size)
    frequency, phase = (float(number) for number in 1e6 * problem.random(2, Distribution.NEAR_UNIT))
    point, xp = finite_part(problem.point), context.xp
    largest = peak(point) or 1.0
    for piece in pieces(slice(0, found.shape[0])):
        found[piece] = result(xp.sign(xp.sin(frequency * point[piece] / largest + phase)), point[piece])
    return found


def input_roundoff(context: Context) -> Array:
    """A displacement of every input by about two of its roundoffs, with random signs."""
    problem, xp = context.problem, namespace(context.lengths)
    sizes = xp.maximum(xp.abs(problem.point), context.lengths)
    sizes *= 2.0 * problem.eps
    sizes *= xp.sign(problem.random(problem.domain.size, Distribution.NEAR_UNIT))
    return sizes


def gradient_is_stable(context: Context, part: slice, error: float = 0.0) -> bool:
    """Whether the gradient of an input stays about the same two roundoffs away: otherwise it consists of roundoff.

    A relative error that is much larger than the change is not explained by it. Without this, gradients of terms that
    cancel fail. Needed by `test_median_of_ties_is_not_accused`. One VJP.
    """
    v, w = context.random_vjp
    own = finite_part(w[part])
    change = finite_part(context.problem.vjp_at(input_roundoff(context), v)[part]) - own
    part_of_own = max(thresholds.LOW_PRECISION_PART, abs(error) / thresholds.COHERENT)
    return norm(change) <= part_of_own * norm(own)


def derivative_jitter(context: Context, v: Array, u: Array, error: float, *, one_sided: bool = False) -> float:
    """Spread of (Jᵀv)·u over inputs that differ by about two roundoffs, to see whether it explains an error.

    Two VJPs a pair of points; more pairs where the first ones vary, until the spread is as large as the error. Points
    are displaced by random signs and by the opposite ones, or, on one side, by multiples of one displacement: a
    derivative that jumps at the point does not jump between them. Without it a right derivative that changes within
    roundoff of the point fails. Needed by `prelu_at_zero`.
    """
    if not context.has_reverse:
        return 0.0
    found: list[float] = []
    spread, tiny = 0.0, None
    for number in range(MAX_JITTER_PAIRS):
        if number >= JITTER_PAIRS and spread * thresholds.RESPONSE_FACTOR < abs(error):
            break
        if tiny is None or not one_sided:
            tiny = input_roundoff(context)
            # Zeros that gradvet put there are exact.
            tiny = context.xp.where(context.problem.point == 0.0, 0.0, tiny) if context.is_generated else tiny
        for multiple in (2.0 * number + 1.0, 2.0 * number + 2.0) if one_sided else (1.0, -1.0):
            found.append(float(context.xp.sum(_vjp_by_multiple(context, multiple * tiny, v) * u)))
        spread = max(found) - min(found)
        if spread >= abs(error):
            break
    return spread


def saturated_roundoff(context: Context, v: Array, length: float) -> float:
    """Roundoff of v·f by numbers of size one inside the function, such as 1 + erf(x) near zero; 0 if outputs are
    larger.

    In double precision it is less over steps below one: every function changes by less than that roundoff over tiny
    steps, and `tiny_shift_before_softmax_lost` would pass. In lower precision it is 0 unless the outputs are exactly
    zero. Without it saturated outputs are inconclusive. Needed by `gelu_at_minus_nine`,
    `one_plus_erf_at_minus_six` and `test_constant_loss_of_a_kernel_passes`.
    """
    roundoff = context.eps * norm(v)
    size = norm(v, context.value)
    if not context.is_double:
        return 0.0 if size else roundoff
    roundoff *= thresholds.ROUNDOFFS * min(1.0, length)
    return 0.0 if context.eps * size > roundoff else roundoff


def saturated_slope(context: Context, v: Array, u: Array) -> float:
    """The largest slope of v·f along u that roundoff of numbers of size one inside hides over steps as wide as the
    inputs.

    0 for much smaller steps: they show no change of any function, which says nothing. Without that, wrong gradients of
    nearly saturated outputs pass. Needed by
    `test_wrong_gradient_of_a_saturated_output_that_steps_show_does_not_pass`.
    """
    xp, point = namespace(u), finite_part(context.problem.point)
    part = peak(u) / max(1.0, peak(xp.where(u != 0.0, point, xp.zeros_like(point))))
    is_wide = part >= thresholds.MIN_LENGTH or not context.is_double
    return saturated_roundoff(context, v, part) if is_wide else 0.0
