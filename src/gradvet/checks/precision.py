"""Is the gradient in low precision the one in double precision, as far as its roundoff allows?"""

from __future__ import annotations

from collections.abc import Iterator

from gradvet.core.context import Context
from gradvet.core.gradient_match import grain, roundoffs
from gradvet.core.results import Finding, Mismatch, Verdict
from gradvet.core.runner import CheckFunction
from gradvet.core.spaces import Array, Location
from gradvet.core.vectors import finite_part, namespace, peak

RESPONSES = 4.0
"""A gradient may be off by so many times its response to changes of the inputs by one roundoff."""

ROUNDOFFS = 4.0
"""And by so many roundoffs of the largest entry of its input, where it does not respond at all."""

CERTAIN = 4.0
"""Beyond so many times that it is wrong; between, nobody can tell."""

MATERIAL = 0.4
"""Nor is it wrong below roundoff to this power, relative to the entry: a formula may lose half its digits."""

JITTERS = 3


def precision_against(reference: Context) -> CheckFunction:
    """The check of a trial in low precision against its shadow."""

    def precision(context: Context) -> Iterator[Finding]:
        yield _compared(context, reference)

    return precision


def _compared(context: Context, reference: Context) -> Finding:
    problem, domain = context.problem, context.problem.domain
    if not domain.size:
        return Finding("precision", Verdict.PASS, "there is no gradient to compare")
    xp = namespace(problem.point)
    worst: tuple[float, int, float, float, float] = (0.0, 0, 0.0, 0.0, 0.0)
    rows = problem.codomain.size
    if bool(xp.any(~xp.isfinite(problem.value[:rows]) & xp.isfinite(reference.problem.value[:rows]))):
        return Finding("precision", Verdict.INCONCLUSIVE, "the values themselves overflow in this precision")
    # Signs at random, and ones, whose sums do not cancel.
    for draw in (problem.signed(rows), problem.zeros(rows) + 1.0):
        v = problem.representable(draw)
        found, expected = problem.vjp(v), reference.problem.vjp(v)
        allowed = _allowed(context, reference, v, found, expected)
        excess = xp.abs(found - expected) / allowed
        both = ~xp.isfinite(found) & ~xp.isfinite(expected)
        overflow = ~xp.isfinite(found) & (xp.abs(expected) > 0.1 / problem.eps)
        excess = xp.where(both | overflow, xp.zeros_like(excess), excess)
        excess = xp.where(xp.isnan(excess), xp.full_like(excess, float("inf")), excess)
        index = int(xp.argmax(excess))
        if float(excess[index]) > worst[0]:
            worst = float(excess[index]), index, float(found[index]), float(expected[index]), float(allowed[index])
    ratio, index, low, high, limit = worst
    facts = {"ratio": ratio, "epsilon": problem.eps}
    if ratio <= 1.0:
        return Finding("precision", Verdict.PASS, "the gradient is as good as its precision allows", facts=facts)
    place = domain.locate(index)
    words = f"{low:.6g} instead of {high:.6g} at {place}, {ratio:.1f} times what roundoff explains"
    if ratio <= CERTAIN or abs(low - high) <= problem.eps**MATERIAL * abs(high):
        return Finding("precision", Verdict.INCONCLUSIVE, f"the gradient in low precision is {words}", facts=facts)
    mismatch = Mismatch(Location(0, "a combination of outputs", ""), place, low, high, limit, limit)
    advice = "The formula is right in float64: look for sums, products or intermediate results kept in low precision."
    headline = f"the gradient in low precision is {words}"
    return Finding("precision", Verdict.FAIL, headline, (mismatch,), facts, advice)


def _allowed(context: Context, reference: Context, v: Array, found: Array, expected: Array) -> Array:
    """For each entry: the response of either gradient to one roundoff of the inputs, and a few roundoffs."""
    problem, domain = context.problem, context.problem.domain
    xp = namespace(v)
    response = xp.zeros_like(expected)
    for _ in range(JITTERS):
        tiny = roundoffs(context)
        moved = reference.problem.vjp_at(tiny, v), problem.vjp_at(tiny, v)
        for gradient, base in zip(moved, (expected, found), strict=True):
            response = xp.maximum(response, finite_part(xp.abs(gradient - base)))
    parts = []
    for number in range(len(domain.leaves)):
        part = domain.slice(number)
        few = ROUNDOFFS * (problem.eps * peak(expected[part]) + grain(context, v, part))
        parts.append(xp.full_like(expected[part], RESPONSES * peak(response[part]) + few + 1e-300))
    return xp.concat(parts)
