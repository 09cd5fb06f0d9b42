"""Checks that derivatives for several directions at once (vmap) equal those for each alone, up to roundoff."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from gradvet.core import thresholds
from gradvet.core.context import Context
from gradvet.core.gradient_match import gradient_mismatch
from gradvet.core.problem import Distribution, Problem
from gradvet.core.results import Finding, Verdict
from gradvet.core.spaces import Array, Space
from gradvet.core.vectors import first_true, namespace, peak, window

ADVICE = "Look at the vmap rule of the operations in the derivative."


def batched(context: Context) -> Iterator[Finding]:
    """Two cotangents, values and tangents at once against each alone; SKIPPED where vmap raises."""
    parts = {
        "grad_outputs": _cotangents,
        "mapped grad_outputs": _mapped_cotangents,
        "values": _values,
        "tangents": _tangents,
    }
    for title, part in parts.items():
        try:
            yield part(context)
        except Exception as error:
            words = str(error).strip().splitlines() or [""]
            reason = context.problem.rules.meaning(error) or f"{title} cannot be batched here: {words[0][:160]}"
            yield Finding("batched", Verdict.SKIPPED, reason)


def _cotangents(context: Context) -> Finding:
    return _gradients(context, context.problem.vjp_batched)


def _mapped_cotangents(context: Context) -> Finding:
    return _gradients(context, context.problem.variants.mapped)


def _gradients(context: Context, together: Callable[[Sequence[Array]], list[Array]]) -> Finding:
    alone = context.random_vjp, context.constant_vjp
    for (v, expected), found in zip(alone, together([v for v, _ in alone]), strict=True):
        gap = gradient_mismatch(context, v, found, expected)
        if gap is not None:
            return _difference(context, f"the gradient in a batch differs from the one alone, {gap}")
    return Finding("batched", Verdict.PASS, "grad_outputs in a batch give what each gives alone")


def _values(context: Context) -> Finding:
    return _outputs(context, "value", *context.problem.variants.values_mapped())


def _tangents(context: Context) -> Finding:
    problem = context.problem
    xp = namespace(problem.point)
    # The first by itself: if there is no forward mode, it raises before the second direction is evaluated.
    alone = [context.cached_jvp(context.first.displacement)]
    alone.append(context.cached_jvp(context.second.displacement))
    together = problem.jvp_batched([context.first.displacement, context.second.displacement])
    return _outputs(context, "tangent", xp.concat(together), xp.concat(alone))


def _outputs(context: Context, what: str, found: Array, expected: Array) -> Finding:
    """Compare two concatenated vectors of the codomain with what each call gives alone."""
    problem = context.problem
    xp = namespace(found)
    allowed = problem.eps**thresholds.PRECISION_SCALE_POWER * peak(expected)
    wrong = ~(xp.abs(found - expected) <= allowed) & xp.isfinite(expected)
    if not bool(xp.any(wrong)):
        return Finding("batched", Verdict.PASS, f"{what}s in a batch are what each is alone")
    row = first_true(wrong)
    place = problem.codomain.locate(row % problem.codomain.size)
    numbers = f"{float(found[row]):.6g} is {float(expected[row]):.6g} alone"
    return _difference(context, f"the {what} in a batch differs at {place}: {numbers}")


def _difference(context: Context, headline: str) -> Finding:
    """FAIL for custom rules; SKIPPED with a note for builtin ones, which are not the user's fault."""
    if context.problem.rules.has_custom:
        return Finding("batched", Verdict.FAIL, headline, advice=ADVICE)
    words = f"torch's own rules for these operators are not to be trusted under vmap: {headline}"
    context.record.note(words)
    return Finding("batched", Verdict.SKIPPED, words)


BATCHED_VECTORS = 2
"""Number of cotangents or tangents in a batch."""


def drop_in_batched_reverse(context: Context) -> Iterator[Finding]:
    """Two cotangents together against each alone."""
    if context.problem.codomain.leaves:
        yield _batched_and_alone(context.problem, is_reverse=True)


def drop_in_batched_forward(context: Context) -> Iterator[Finding]:
    """Two tangents together against each alone."""
    if context.problem.codomain.leaves:
        yield _batched_and_alone(context.problem, is_reverse=False)


def _batched_and_alone(problem: Problem, *, is_reverse: bool) -> Finding:
    if is_reverse:
        check, source, target = "batched reverse", problem.codomain, problem.domain
    else:
        check, source, target = "batched forward", problem.domain, problem.codomain
    together, alone = (problem.vjp_batched, problem.vjp) if is_reverse else (problem.jvp_batched, problem.jvp)
    vectors = [problem.random(source.size, Distribution.OFF_ZERO) for _ in range(BATCHED_VECTORS)]
    expected = [alone(vector) for vector in vectors]
    try:
        found = together(vectors)
    except RuntimeError as error:
        headline = "the derivative cannot be computed for several directions at once"
        advice = "vmap must be able to run the derivative: avoid item(), in-place writes and random numbers in it."
        return Finding(check, Verdict.FAIL, headline, facts={"raised": str(error)}, advice=advice)
    wrong = _differing(found, expected, target)
    if wrong is None:
        return Finding(check, Verdict.PASS, "batched and single derivatives agree")
    # Each leaf of the source alone, to name the one that differs; the first if none does by itself.
    origin = 0
    for leaf in range(len(source.leaves)):
        part = source.slice(leaf)
        some = [window(vector, part) for vector in vectors]
        here = _differing(together(some), [alone(vector) for vector in some], target)
        if here is not None:
            origin, wrong = leaf, here
            break
    part = target.slice(wrong)
    facts = {
        "output": origin if is_reverse else wrong,
        "input": wrong if is_reverse else origin,
        "found": str([row[part] for row in found]),
        "expected": str([row[part] for row in expected]),
    }
    headline = f"the batched derivative for {target.leaves[wrong].name} differs from the one computed alone"
    return Finding(check, Verdict.FAIL, headline, facts=facts, advice=ADVICE)


def _differing(found: Sequence[Array], expected: Sequence[Array], space: Space) -> int | None:
    """The first leaf in which the two differ."""
    for leaf in range(len(space.leaves)):
        part = space.slice(leaf)
        if not all(_close(one[part], other[part]) for one, other in zip(found, expected, strict=True)):
            return leaf
    return None


def _close(one: Array, other: Array) -> bool:
    xp = namespace(one)
    absolute, relative = thresholds.ALLCLOSE
    return bool(xp.all((xp.abs(one - other) <= absolute + relative * xp.abs(other)) | (one == other)))
