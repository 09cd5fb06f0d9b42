"""Do the same forward and the same backward pass, run again, give the same numbers?"""

from __future__ import annotations

from collections.abc import Iterator

from gradvet.core.context import Context
from gradvet.core.projections import ProbeCotangent
from gradvet.core.results import Finding, Verdict
from gradvet.core.spaces import Array
from gradvet.core.vectors import namespace, peak

NOISE = 1e3
"""Up to so many roundoffs of the largest entry, a difference is the order of a sum; beyond, a race or fresh numbers."""


def determinism(context: Context) -> Iterator[Finding]:
    """The forward pass from one random state, the backward pass from whatever state there is."""
    problem = context.problem
    if not problem.codomain.size or not problem.domain.size:
        return
    xp = namespace(problem.value)
    repeat_noise = float(xp.max(context.repeat_noise))
    if repeat_noise > 0.0:
        context.record.note(
            f"two evaluations at the same point and random state differ by {repeat_noise:.2g}: the function draws on "
            "something beyond torch's, Python's and NumPy's generators, or its sums have no fixed order"
        )
    v, first = context.random_vjp
    second = third = problem.variants.again(v)
    if not problem.variants.is_builtin():
        # Twice in a row: what goes wrong every other time shows itself then. The framework's own rules keep no count.
        third = problem.variants.again(v)
    gap, spread = context.nothing, 0.0
    if not problem.equal(first, second) or not problem.equal(second, third):
        gap = xp.maximum(xp.abs(second - first), xp.abs(third - second))
        gap = xp.where(gap > 0.0, gap, xp.zeros_like(gap))
        spread = float(xp.max(gap))
    facts = {"forward": repeat_noise, "backward": spread}
    if spread and spread > NOISE * problem.eps * peak(first):
        place = problem.domain.locate(int(xp.argmax(gap)))
        yield Finding(
            "determinism",
            Verdict.FAIL,
            f"two backward passes with the same cotangent differ by {spread:.3g} at {place}",
            facts=facts,
            advice="Look for a race, uninitialised memory, state that backward uses up, or random numbers in it.",
        )
    elif repeat_noise > 0.0:
        yield Finding("determinism", Verdict.PASS, "the function is random in itself", facts=facts)
    else:
        yield Finding("determinism", Verdict.PASS, "forward and backward passes are reproducible", facts=facts)


ROWS = 1024
"""Single rows that are run twice to compare their jitter with the tolerance, if one was given."""

REPRODUCIBLE = Finding("determinism", Verdict.PASS, "the derivative is reproducible")


def drop_in_determinism(context: Context) -> Iterator[Finding]:
    """A codirection and a multiple of it; where they differ, the same one again and again.

    Row by row where a tolerance has to be compared with single entries.
    """
    problem = context.problem
    if not problem.domain.size or not problem.codomain.size:
        return
    if context.projections.proportion.kept:
        yield REPRODUCIBLE
        return
    tolerance = context.options.nondeterminism
    probes = context.projections.probe_cotangents(1)
    spread = max(_unsteadiness(context, probe) for probe in probes)
    # A codirection weighs an entry with at least a quarter then.
    if tolerance and spread > tolerance / 4.0:
        spread = max(_row_spread(context, row) for row in range(min(problem.codomain.size, ROWS)))
    if spread > tolerance:
        yield Finding(
            "determinism",
            Verdict.FAIL,
            f"two backward passes with the same cotangent differ by {spread:.3g}",
            facts={"spread": spread, "tolerance": tolerance},
            advice="Look for atomics, races, uninitialised memory or random numbers in the derivative.",
        )
    else:
        yield REPRODUCIBLE


def _unsteadiness(context: Context, probe: ProbeCotangent) -> float:
    """Of three passes with the same codirection, two of them in a row: what alternates shows as well."""
    again, once_more = (context.problem.vjp_by_output(probe.v) for _ in range(2))
    return max(_spread(context, probe.vjp, again), _spread(context, again, once_more))


def _row_spread(context: Context, row: int) -> float:
    cotangent = context.problem.zeros(context.problem.codomain.size)
    cotangent[row] = 1.0
    problem = context.problem
    return _spread(context, problem.vjp(cotangent), problem.vjp(cotangent))


def _spread(context: Context, first: Array, second: Array) -> float:
    """The largest difference; entries that are not finite are another check's matter."""
    if context.problem.equal(first, second):
        return 0.0
    xp = namespace(first)
    difference = xp.abs(first - second)
    return float(xp.max(xp.where(difference > 0.0, difference, xp.zeros_like(difference))))
