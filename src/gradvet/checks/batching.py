"""Checks that derivatives for several directions at once (vmap) equal those for each alone, up to roundoff."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from gradvet.core import thresholds
from gradvet.core.context import Context
from gradvet.core.gradient_match import gradient_mismatch
from gradvet.core.problem import Distribution
from gradvet.core.results import Finding, Verdict
from gradvet.core.runner import known_refusal
from gradvet.core.spaces import Array, Space
from gradvet.core.vectors import namespace, peak

ADVICE = "Look at the vmap rule of the operations in the derivative."


def batched(context: Context) -> Iterator[Finding]:
    """Two cotangents, values and tangents at once against each alone; SKIPPED where vmap raises."""
    problem = context.problem
    if not problem.codomain.size or not problem.domain.size:
        return
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
            reason = known_refusal(error) or f"{title} cannot be batched here: {words[0][:160]}"
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
    row = int(xp.argmax(xp.astype(wrong, xp.int64)))
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


def batched_reverse(context: Context) -> Iterator[Finding]:
    """Two cotangents together against each alone."""
    problem = context.problem
    if problem.codomain.leaves:
        V = [problem.random(problem.codomain.size, Distribution.APART) for _ in range(BATCHED_VECTORS)]
        sides = _Sides(problem.codomain, problem.domain)
        yield _compare("batched reverse", V, problem.vjp_batched, problem.vjp, sides)


def batched_forward(context: Context) -> Iterator[Finding]:
    """Two tangents together against each alone."""
    problem = context.problem
    if problem.codomain.leaves:
        U = [problem.random(problem.domain.size, Distribution.APART) for _ in range(BATCHED_VECTORS)]
        sides = _Sides(problem.domain, problem.codomain)
        yield _compare("batched forward", U, problem.jvp_batched, problem.jvp, sides)


@dataclass(frozen=True, slots=True)
class _Sides:
    """The space that directions come from and the one that derivatives arrive in."""

    source: Space
    target: Space


BatchedFunction = Callable[[Sequence[Array]], list[Array]]
SingleFunction = Callable[[Array], Array]


def _compare(
    check: str, directions: Sequence[Array], together: BatchedFunction, alone: SingleFunction, sides: _Sides
) -> Finding:
    expected = [alone(direction) for direction in directions]
    try:
        found = together(directions)
    except RuntimeError as error:
        return Finding(
            check,
            Verdict.FAIL,
            "the derivative cannot be computed for several directions at once",
            facts={"raised": str(error)},
            advice="vmap must be able to run the derivative: avoid item(), in-place writes and random numbers in it.",
        )
    target = _differing(found, expected, sides.target)
    if target is None:
        return Finding(check, Verdict.PASS, "batched and single derivatives agree")
    # Each leaf of the source alone, to name the one that differs; the first if none does by itself.
    source = 0
    for leaf in range(len(sides.source.leaves)):
        alone_there = [_only(direction, sides.source.slice(leaf)) for direction in directions]
        here = _differing(together(alone_there), [alone(direction) for direction in alone_there], sides.target)
        if here is not None:
            source, target = leaf, here
            break
    output, input = (source, target) if check == "batched reverse" else (target, source)
    part = sides.target.slice(target)
    return Finding(
        check,
        Verdict.FAIL,
        f"the batched derivative for {sides.target.leaves[target].name} differs from the one computed alone",
        facts={
            "output": output,
            "input": input,
            "found": str([row[part] for row in found]),
            "expected": str([row[part] for row in expected]),
        },
        advice="Look at the vmap rule of the operations in the derivative.",
    )


def _only(direction: Array, part: slice) -> Array:
    xp = namespace(direction)
    return xp.concat([xp.zeros_like(direction[: part.start]), direction[part], xp.zeros_like(direction[part.stop :])])


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
