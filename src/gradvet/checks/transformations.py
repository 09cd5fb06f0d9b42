"""Checks of what the framework makes of a function: batched by vmap, compiled, registered as an operator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from gradvet.core import thresholds
from gradvet.core.context import Context
from gradvet.core.gradient_match import gradient_mismatch
from gradvet.core.problem import Distribution, Problem
from gradvet.core.results import Finding, Verdict
from gradvet.core.runner import CheckFunction, by_framework
from gradvet.core.vectors import Array, Space, first_true, namespace, peak, window
from gradvet.errors import first_line

VMAP_ADVICE = "Look at the vmap rule of the operations in the derivative."


def batched(context: Context) -> Iterator[Finding]:
    """Two cotangents, values and tangents at once against each alone; SKIPPED where vmap raises."""
    parts: dict[str, Callable[[Context], Finding]] = {
        "grad_outputs": partial(_gradients, batched=context.problem.vjp_batched),
        "mapped grad_outputs": partial(_gradients, batched=context.problem.variants.mapped),
        "values": _values,
        "tangents": _tangents,
    }
    keeps = context.problem.rules.keeps_tensors
    for title, part in parts.items():
        if keeps and part in (_values, _tangents):
            reason = f"{title} are not batched: the function keeps tensors from one call to the next"
            yield Finding("batched", Verdict.SKIPPED, reason)
            continue
        if context.is_large and part is _values:
            context.release()  # the gradients, which take as much memory as the directions below
        try:
            yield part(context)
        except Exception as error:
            reason = context.problem.rules.meaning(error) or f"{title} cannot be batched here: {first_line(error, 160)}"
            yield Finding("batched", Verdict.SKIPPED, reason)


def _gradients(context: Context, batched: Callable[[Sequence[Array]], list[Array]]) -> Finding:
    single = context.random_vjp, context.constant_vjp
    for (v, expected), found in zip(single, batched([v for v, _ in single]), strict=True):
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
    single = [context.cached_jvp(context.first.displacement)]
    single.append(context.cached_jvp(context.second.displacement))
    batched = problem.jvp_batched([context.first.displacement, context.second.displacement])
    return _outputs(context, "tangent", xp.concat(batched), xp.concat(single))


def _outputs(context: Context, what: str, found: Array, expected: Array) -> Finding:
    """Compare two concatenated vectors of the codomain with what each call gives alone.

    Not if two calls alone differ as much. Needed by `test_function_with_a_noise_of_its_own_is_not_blamed_for_batches`.
    """
    problem = context.problem
    xp = namespace(found)
    allowed = problem.eps**thresholds.HALF_THE_DIGITS * peak(expected)
    if thresholds.RESPONSE_FACTOR * peak(context.repeat_noise) > allowed:
        return Finding("batched", Verdict.SKIPPED, f"{what}s: the function gives others in each call")
    wrong = ~(xp.abs(found - expected) <= allowed) & xp.isfinite(expected)
    if not bool(xp.any(wrong)):
        return Finding("batched", Verdict.PASS, f"{what}s in a batch are what each is alone")
    row = first_true(wrong)
    place = problem.codomain.locate(row % problem.codomain.size)
    numbers = f"{float(found[row]):.6g} is {float(expected[row]):.6g} alone"
    return _difference(context, f"the {what} in a batch differs at {place}: {numbers}")


def _difference(context: Context, headline: str) -> Finding:
    """FAIL for custom rules; SKIPPED with a note for builtin ones, which are not the user's fault."""
    failure = Finding("batched", Verdict.FAIL, headline, advice=VMAP_ADVICE)
    if context.problem.rules.has_custom:
        return failure
    words = f"torch's own rules for these operators are not to be trusted under vmap: {headline}"
    return by_framework(context, failure, words)


BATCHED_VECTORS = 2
"""Number of cotangents or tangents in a batch."""


def drop_in_batched_reverse(context: Context) -> Iterator[Finding]:
    """Two cotangents together against each alone."""
    if context.problem.codomain.leaves:
        yield _batched_and_single(context.problem, is_reverse=True)


def drop_in_batched_forward(context: Context) -> Iterator[Finding]:
    """Two tangents together against each alone."""
    if context.problem.codomain.leaves:
        yield _batched_and_single(context.problem, is_reverse=False)


def _batched_and_single(problem: Problem, *, is_reverse: bool) -> Finding:
    check, source, target = "batched forward", problem.domain, problem.codomain
    if is_reverse:
        check, source, target = "batched reverse", target, source
    batched, single = (problem.vjp_batched, problem.vjp) if is_reverse else (problem.jvp_batched, problem.jvp)
    vectors = [problem.random(source.size, Distribution.OFF_ZERO) for _ in range(BATCHED_VECTORS)]
    expected = [single(vector) for vector in vectors]
    try:
        found = batched(vectors)
    except RuntimeError as error:
        headline = "the derivative cannot be computed for several directions at once"
        advice = "vmap must be able to run the derivative: avoid item(), in-place writes and random numbers in it."
        return Finding(check, Verdict.FAIL, headline, facts={"raised": str(error)}, advice=advice)
    wrong = _differing(found, expected, target)
    if wrong is None:
        return Finding(check, Verdict.PASS, "batched and single derivatives agree")
    # Each leaf of the source alone, to name the one that differs; the first if none does by itself.
    origin = 0
    for leaf, part in enumerate(source.slices):
        some = [window(vector, part) for vector in vectors]
        here = _differing(batched(some), [single(vector) for vector in some], target)
        if here is not None:
            origin, wrong = leaf, here
            break
    part = target.slices[wrong]
    facts = {
        "output": origin if is_reverse else wrong,
        "input": wrong if is_reverse else origin,
        "found": str([row[part] for row in found]),
        "expected": str([row[part] for row in expected]),
    }
    headline = f"the batched derivative for {target.leaves[wrong].name} differs from the one computed alone"
    return Finding(check, Verdict.FAIL, headline, facts=facts, advice=VMAP_ADVICE)


def _differing(found: Sequence[Array], expected: Sequence[Array], space: Space) -> int | None:
    """The first leaf in which the two differ."""
    absolute, relative = thresholds.ALLCLOSE
    for leaf, part in enumerate(space.slices):
        for one, other in zip((row[part] for row in found), (row[part] for row in expected), strict=True):
            is_close = (abs(one - other) <= absolute + relative * abs(other)) | (one == other)
            if not bool(namespace(one).all(is_close)):
                return leaf
    return None


ABSENT = "no fake impl registered"
"""A complaint about an implementation that compilation needs and gradients do not."""


def registered(complaints: Mapping[str, str]) -> Iterator[Finding]:
    """One finding for each test that complains, and one for all that do not."""
    sound = [name for name, complaint in complaints.items() if not complaint]
    if sound:
        headline = f"the operator's registration is sound: {', '.join(sound)}"
        yield Finding("opcheck", Verdict.PASS, headline, facts={"exercised": sound})
    for name, complaint in complaints.items():
        if ABSENT in complaint:
            yield Finding("opcheck", Verdict.SKIPPED, f"{name}: no fake implementation is registered")
        elif complaint:
            facts = {"test": name, "complaint": complaint}
            advice = "Look at the operator's schema, at mutates_args, and at how its derivative is registered."
            yield Finding("opcheck", Verdict.FAIL, f"{name}: {complaint[:300]}", facts=facts, advice=advice)


COTANGENTS = 2


def compiled_against(other: Problem) -> CheckFunction:
    """The check of a problem against the compiled one: values first, then gradients for random cotangents."""

    def compiled(context: Context) -> Iterator[Finding]:
        problem = context.problem
        xp = namespace(problem.value)
        expected, found = (one.value[: one.codomain.size] for one in (problem, other))
        top = peak(expected)
        wrong = ~(xp.abs(found - expected) <= top * problem.eps**thresholds.HALF_THE_DIGITS) & xp.isfinite(expected)
        if bool(xp.any(wrong)):
            row = first_true(wrong)
            numbers = f"{float(found[row]):.10g} instead of {float(expected[row]):.10g}"
            headline = f"the compiled function differs at {problem.codomain.locate(row)}: {numbers}"
            yield Finding("compile", Verdict.FAIL, headline)
            return
        for _ in range(COTANGENTS):
            v = problem.representable(problem.random(problem.codomain.size, Distribution.NEAR_UNIT))
            gap = gradient_mismatch(context, v, other.vjp(v), problem.vjp(v))
            if gap is not None:
                headline = f"the gradient of the compiled function differs, {gap}"
                advice = "Look for state that tracing freezes, and for a fake implementation that does not fit."
                yield Finding("compile", Verdict.FAIL, headline, advice=advice)
                return
        yield Finding("compile", Verdict.PASS, "the compiled function has the same values and gradients")

    return compiled
