"""Checks that JVP and VJP are one linear map and its adjoint, and that undefined vectors count as zero."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise

from gradvet.core import thresholds
from gradvet.core.context import Context
from gradvet.core.gradient_match import (
    derivative_jitter,
    explained_by_response,
    gradient_mismatch,
    mismatch_at,
)
from gradvet.core.problem import Distribution
from gradvet.core.provenance import raising_line
from gradvet.core.reference_errors import spacing_at_zero
from gradvet.core.results import Finding, Verdict
from gradvet.core.runner import by_framework
from gradvet.core.vectors import (
    Array,
    all_finite,
    dot,
    equal,
    finite_part,
    first_true,
    is_zero,
    namespace,
    norm,
    peak,
    window,
)
from gradvet.errors import HookError

SMALL_SCALE = 2.0**-20
"""Factor of a grad_output that is as small as that of a mean over a million elements; its inverse is that of a scaled
loss."""

SINGLE_TINY = 2.0**-126
"""The smallest normal number of float32."""

LINEARITY_ADVICE = "The derivative must be multiplied by grad_output, and nothing may be added to it."

SUM = "the gradient for a sum of two grad_outputs is not the sum of their gradients"
ZEROS = "the gradients for grad_outputs that are zero in part do not add up to that for their sum"
ZEROS_ADVICE = (
    "Look for rows or columns that backward skips because grad_output is zero there, and where it puts the others."
)

UNUSED_ADVICE = "A loss that uses one output alone leaves the grad_output of the others undefined: it counts as zero."

UNDEFINED, COUNTS_AS_ZERO = "undefined grad_output", "A grad_output that is None, an undefined tensor, counts as zero."

MAX_OUTPUTS_ALONE = 8
"""Largest number of outputs of which each is left without a grad_output beside the others."""

SMALL_ADVICE = "Look in backward for a threshold, a small number that is added, and rounding to a coarser format."
LARGE_ADVICE = "Look in backward for clipping: it is for the optimiser, and a scaled loss has grad_outputs as large."


def linearity(context: Context) -> Iterator[Finding]:
    """Jᵀ(-a/2 - b/4) against -Jᵀa/2 - Jᵀb/4, and Jᵀ0. Negative multiples show terms that are even in the cotangent."""
    problem = context.problem
    (a, of_a), (b, of_b) = context.random_vjp, context.constant_vjp
    v = problem.representable(-0.5 * a - 0.25 * b)
    parts = -0.5 * of_a - 0.25 * of_b
    comparisons = [(SUM, v, problem.vjp(v), parts)]
    if (at_zero := context.at_zero.vector) is not None:
        comparisons.append(("a zero grad_output does not give a zero gradient", v, at_zero, 0.0 * parts))
    if not problem.rules.are_builtin:
        # Rows that are zero, and all rows but one. Needed by `sine_of_active_columns_not_scattered_back`.
        bounds = sorted({0, a.shape[0] // 2, a.shape[0] - 1, a.shape[0]})
        of_parts = sum(problem.vjp(window(a, slice(*part))) for part in pairwise(bounds))
        comparisons.append((ZEROS, a, of_parts, of_a))
        if equal(context.repeated_vjp, of_a) and (words := disproportion(context)) is not None:
            yield Finding("linearity", Verdict.FAIL, words[0], advice=words[1])
            return
    for name, cotangent, found, expected in comparisons:
        gap = gradient_mismatch(context, cotangent, found, expected)
        if gap is not None:
            advice = ZEROS_ADVICE if name == ZEROS else LINEARITY_ADVICE
            failure = Finding("linearity", Verdict.FAIL, f"{name}, {gap}", advice=advice)
            # Needed by `test_attention_with_sharp_scores_passes`: terms inside cancel, and inputs do not show it.
            is_roundoff = problem.rules.are_builtin and not context.is_double
            yield by_framework(context, failure) if is_roundoff else failure
            return
    yield Finding("linearity", Verdict.PASS, "the gradient is linear in grad_output")


def disproportion(context: Context) -> tuple[str, str] | None:
    """How the gradient of -t·v differs from -t times that of v, for a tiny t, a large one and 1; None if equal.

    Rounding is symmetric and the same for all powers of two, but for subnormal numbers (`exp_below_the_normal_numbers`)
    and where backward takes logarithms or powers of grad_output (`running_sum_in_logarithms_by_autograd`). Needed by
    `test_gradient_that_is_even_in_the_cotangent_fails_beside_a_large_input`, `polynomial_of_large_cotangents_alone` and
    `polynomial_clips_at_a_thousand`.
    """
    problem, (v, of_v), xp = context.problem, context.random_vjp, context.xp
    has_range = not spacing_at_zero(context.eps)  # in float16 small numbers are rounded more

    def gap(scale: float) -> str | None:
        found = problem.vjp(-scale * v) / -scale
        least = (sys.float_info.min if context.is_double else SINGLE_TINY) / scale
        error = finite_part(xp.abs(found - of_v)) - context.asked_resolution * finite_part(xp.abs(of_v)) - least
        if float(xp.max(error)) > 0.0 and scale != 1.0:
            error -= explained_by_response(context, scale * v) / scale
        column = int(xp.argmax(error))
        return mismatch_at(context, column, -found, -of_v) if float(error[column]) > 0.0 else None

    scale = SMALL_SCALE if has_range else 1.0
    if (found := gap(scale)) is None and has_range:
        scale = 1.0 / SMALL_SCALE
        found = gap(scale)
    if found is None:
        return None
    if (same := gap(1.0)) is not None:
        return f"the gradient for -grad_output is another one, {same}", LINEARITY_ADVICE
    if not has_range or not context.computes_in_io_dtype:
        return None
    sizes = ("smaller", "times") if scale < 1.0 else ("larger", "over")
    words = "the gradient is not proportional to grad_output: for one 10⁶ times {} it is, {} 10⁶,".format(*sizes)
    return f"{words} {found}", SMALL_ADVICE if scale < 1.0 else LARGE_ADVICE


def none_grad_output(context: Context) -> Iterator[Finding]:
    """As `undefined_cotangents`, but a fault of builtin rules, or a hook that raises, is SKIPPED with a note.

    Entries that are not finite for any grad_output are left to the comparison with differences.
    """
    has_custom, is_right = context.problem.rules.has_custom, True
    for finding in undefined_cotangents(context, context.random_vjp[1]):
        is_right = is_right and finding.verdict is Verdict.PASS
        line, raised = finding.facts.get("line"), finding.headline.removeprefix("backward ")
        is_minor = finding.verdict is Verdict.FAIL and (not has_custom or finding.facts.get("is_by_hook"))
        yield by_framework(context, finding, f"the hook at {line} {raised}" if line else "") if is_minor else finding
    if has_custom and is_right and len(context.problem.codomain.leaves) > 1:
        yield from _beside_undefined(context)


def _beside_undefined(context: Context) -> Iterator[Finding]:
    """Each of the first outputs without a cotangent beside others with one: the same gradient as with zeros for it.

    Needed by `sine_lost_where_the_cosine_is_not_used`.
    """
    problem, (a, _) = context.problem, context.random_vjp
    leaves = problem.codomain.leaves[:MAX_OUTPUTS_ALONE] if problem.has_undefined_cotangents else ()
    for number, leaf in enumerate(leaves):
        v = a - window(a, problem.codomain.slices[number])
        found = problem.vjp_undefined((number,), v).vector
        gap = gradient_mismatch(context, v, 0.0 * context.random_vjp[1] if found is None else found, problem.vjp(v))
        if gap is not None:
            headline = f"a grad_output of None for {leaf.name} gives another gradient than zeros, {gap}"
            yield Finding(UNDEFINED, Verdict.FAIL, headline, advice=UNUSED_ADVICE)
            return


def drop_in_undefined_cotangents(context: Context) -> Iterator[Finding]:
    """As `undefined_cotangents`, without the pass through builtin rules of a single output.

    With torch 2.13 these counted an undefined cotangent as zero in all of 1,655 samples of the operator database.
    """
    if context.problem.codomain.leaves and context.projections.vanishes_at_zero:
        yield _counting_as_zero(context.problem.codomain.leaves[0].name)
    else:
        yield from undefined_cotangents(context)


def undefined_cotangents(context: Context, usual: Array | None = None) -> Iterator[Finding]:
    """All outputs without a cotangent, then each alone while the others get zeros: the gradient must be zero.

    If `usual` is given, a gradient, the entries that are not finite in it are not tested.
    """
    outputs = len(context.problem.codomain.leaves)
    if not outputs or not context.problem.has_undefined_cotangents:
        return
    everything = tuple(range(outputs))
    for missing in [everything] + ([(one,) for one in everything] if outputs > 1 else []):
        yield _without(context, missing, usual)


def _without(context: Context, missing: Sequence[int], usual: Array | None) -> Finding:
    problem = context.problem
    names = ", ".join([problem.codomain.leaves[output].name for output in missing])
    try:
        gradient = problem.vjp_undefined(missing).vector
    except RuntimeError as error:
        headline = f"backward raises when the grad_output of {names} is None: {error}"
        facts = {"raised": str(error), "line": raising_line(error), "is_by_hook": isinstance(error, HookError)}
        return Finding(UNDEFINED, Verdict.FAIL, headline, facts=facts, advice=COUNTS_AS_ZERO)
    if gradient is not None and usual is not None and not all_finite(usual):
        xp = namespace(usual)
        gradient = xp.where(xp.isfinite(usual), gradient, xp.zeros_like(gradient))
    if gradient is not None and not is_zero(gradient):
        kind = "a non-zero gradient" if all_finite(gradient) else "a gradient that is not finite"
        headline = f"backward returns {kind} when the grad_output of {names} is None, and zero for the rest"
        return Finding(UNDEFINED, Verdict.FAIL, headline, advice=COUNTS_AS_ZERO)
    return _counting_as_zero(names)


@functools.lru_cache(maxsize=64)
def _counting_as_zero(names: str) -> Finding:
    return Finding(UNDEFINED, Verdict.PASS, f"a grad_output of None for {names} counts as zero")


def drop_in_undefined_tangents(context: Context) -> Iterator[Finding]:
    """One input without a tangent must give the same JVP as a tangent of zeros."""
    problem = context.problem
    if not problem.codomain.size:
        return
    u = problem.random(problem.domain.size, Distribution.OFF_ZERO)
    xp = namespace(u)
    for leaf, values in enumerate(problem.domain.leaves):
        zeroed = u - window(u, problem.domain.slices[leaf])
        expected, found = problem.jvp(zeroed), problem.jvp(zeroed, missing=leaf)
        absolute, relative = thresholds.ALLCLOSE
        wrong = ~(xp.abs(found - expected) <= absolute + relative * xp.abs(expected))
        wrong = wrong & (found == found) & (expected == expected)
        if bool(xp.any(wrong)):
            output = problem.codomain.locate(first_true(wrong))
            headline = f"{output.name} differs between a missing tangent and a zero tangent of {values.name}"
            facts = {"output": output.leaf, "input": leaf, "found": str(found), "expected": str(expected)}
            advice = "A missing tangent counts as zero."
            yield Finding("undefined tangents", Verdict.FAIL, headline, facts=facts, advice=advice)


PROPORTIONAL = Finding("zero grad_output", Verdict.PASS, "a zero grad_output gives a zero gradient")


def drop_in_zero_cotangent(context: Context) -> Iterator[Finding]:
    """A zero cotangent must give a zero gradient: terms that are not multiplied by the cotangent remain."""
    if not context.problem.codomain.leaves:
        return
    gradient = context.projections.at_zero.vector
    largest = 0.0 if gradient is None or is_zero(gradient) else float(context.xp.max(context.xp.abs(gradient)))
    if largest <= (thresholds.ALLCLOSE[0] if context.options.masked else 0.0):
        yield PROPORTIONAL
    else:
        headline = f"a zero grad_output gives a gradient of size {largest:.3g}"
        yield Finding("zero grad_output", Verdict.FAIL, headline, facts={"largest": largest}, advice=LINEARITY_ADVICE)


AGREE = Finding("jvp_vjp_agree", Verdict.PASS, "forward and reverse mode agree")


def jvp_vjp_agree(context: Context) -> Iterator[Finding]:
    """v·(Ju) against (Jᵀv)·u."""
    problem = context.problem
    # In low precision both are compared with differences in double precision instead.
    if not context.is_double:
        return
    xp = namespace(problem.point)
    u = context.first.displacement
    jvp = context.cached_jvp(u)
    cotangent = context.cotangents[0]
    if not all_finite(jvp):
        cotangent = context.cotangent(xp.where(xp.isfinite(jvp), cotangent.v, xp.zeros_like(cotangent.v)))
    if cotangent.nonfinite is not None or not peak(cotangent.v):
        words = "not compared: a derivative, or the function beside the point, is not finite"
        yield Finding("jvp_vjp_agree", Verdict.SKIPPED, words)
        return
    left, right = dot(cotangent.v, jvp), dot(cotangent.vjp, u)
    # Less than the scale of the products, and enough nearly always.
    if abs(left - right) <= thresholds.SCREEN_RTOL * (abs(left) + abs(right)):
        yield AGREE
        return
    scale = float(xp.sum(xp.abs(cotangent.vjp * u))) + dot(xp.abs(cotangent.v), xp.abs(jvp))
    roundoff = thresholds.ROUNDOFFS * problem.eps * norm(cotangent.v, context.value)
    # Saturated outputs: both slopes are below the roundoff of numbers of size one. Needed by `certain_cross_entropy`.
    saturated = thresholds.ROUNDOFFS * problem.eps * norm(cotangent.v)
    allowed = roundoff + saturated + (thresholds.SCREEN_RTOL + context.options.accuracy) * scale
    if not abs(left - right) <= allowed:
        allowed += thresholds.RESPONSE_FACTOR * derivative_jitter(context, cotangent.v, u, left - right)
    if not abs(left - right) <= allowed and not context.computes_in_io_dtype:
        allowed += problem.internal_eps() ** thresholds.LOW_PRECISION_POWER * scale
    if abs(left - right) <= allowed:
        yield AGREE
        return
    headline = f"forward mode gives a slope of {left:.10g} where reverse mode gives {right:.10g}"
    facts = {"forward": left, "reverse": right, "allowed": allowed}
    advice = "One of the two is wrong: the findings about each against differences tell which."
    yield Finding("jvp_vjp_agree", Verdict.FAIL, headline, facts=facts, advice=advice)
