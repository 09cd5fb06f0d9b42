"""Checks that the same forward and the same backward pass, run again, give the same numbers."""

from __future__ import annotations

from collections.abc import Iterator

from gradvet.core import thresholds
from gradvet.core.context import Context
from gradvet.core.projections import Cotangent
from gradvet.core.results import Finding, Verdict
from gradvet.core.spaces import Array
from gradvet.core.vectors import equal, namespace, peak, unit

REPEATS, CHEAP_SIZE = 20, 100_000
"""Repeated backward passes through custom rules, for problems with at most this many inputs and outputs."""


def determinism(context: Context) -> Iterator[Finding]:
    """The forward pass from one random state, the backward pass from whatever state there is."""
    problem = context.problem
    xp = namespace(problem.value)
    repeat_noise = float(xp.max(context.repeat_noise))
    if repeat_noise > 0.0:
        context.record.note(
            f"two evaluations at the same point and random state differ by {repeat_noise:.2g}: the function draws on "
            "something beyond torch's, Python's and NumPy's generators, or its sums have no fixed order"
        )
    v, first = context.random_vjp
    # Builtin rules keep no state between passes.
    passes = 1 if problem.rules.are_builtin else _passes(context)
    gap, spread, variants = xp.zeros_like(first), 0.0, context.problem.variants
    for number in range(passes):
        again = variants.again(v) if number else context.repeated_vjp
        if not equal(first, again):
            gap = xp.maximum(gap, _gap(first, again))
            spread = float(xp.max(gap))
    facts = {"forward": repeat_noise, "backward": spread, "passes": passes + 1}
    if spread and spread > _explained(context, problem.internal_eps()):
        place = problem.domain.locate(int(xp.argmax(gap)))
        yield Finding(
            "determinism",
            Verdict.FAIL,
            f"two backward passes with the same grad_output differ by {spread:.3g} at {place}",
            facts=facts,
            advice="Look for a race, uninitialised memory, state that backward uses up, or random numbers in it.",
        )
    elif repeat_noise > 0.0:
        yield Finding("determinism", Verdict.PASS, "the function is random in itself", facts=facts)
    else:
        own = ", each after a forward pass of its own," if problem.isolates_passes else ""
        headline = f"{passes + 1} equal backward passes{own} give equal gradients"
        if spread:
            headline = (
                f"{passes + 1} equal backward passes{own} differ by {spread:.2g}, as sums without a fixed order do"
            )
            context.record.note(headline)
        yield Finding("determinism", Verdict.PASS, headline, facts=facts)


def is_repeatable(context: Context, first: Array | None = None) -> bool:
    """Whether a second VJP of the random cotangent gives the same gradient as the first. One VJP, which is kept.

    `first` is compared too.
    """
    try:
        found = [context.repeated_vjp] if first is None else [context.repeated_vjp, first]
    except Exception:
        return False
    own = context.random_vjp[1]
    return all(
        float(namespace(own).max(_gap(own, other))) <= _explained(context, context.problem.eps) for other in found
    )


def _explained(context: Context, eps: float) -> float:
    """The difference of two equal passes that sums without a fixed order explain, in a format of this spacing."""
    relative = min(thresholds.REPEAT_ROUNDOFF * eps, thresholds.MATERIAL_MAX)
    return relative * peak(context.random_vjp[1])


def _gap(first: Array, again: Array) -> Array:
    """The difference of each entry: none where the first is not finite, infinite where only the second is not."""
    xp = namespace(first)
    change = xp.abs(again - first)
    change = xp.where(xp.isnan(change), xp.full_like(change, float("inf")), change)
    return xp.where(xp.isfinite(first), change, xp.zeros_like(change))


def _passes(context: Context) -> int:
    """Number of repeated backward passes through custom rules: more where they are cheap."""
    return REPEATS if context.problem.domain.size + context.problem.codomain.size <= CHEAP_SIZE else 2


OTHER_REPEATS = 3
"""Backward passes for each output that other checks of slow mode run beside a sweep: with these, the repeated ones and
the sweep together are about as many as torch's two per row."""

ROWS = 1024
"""Number of single rows that are computed twice, to compare their difference with the tolerance."""

EPS = 2.0**-52
"""Spacing of the vectors of the tolerance policy."""

REPRODUCIBLE = Finding("determinism", Verdict.PASS, "the derivative is reproducible")


def drop_in_determinism(context: Context) -> Iterator[Finding]:
    """A cotangent and a multiple of it, or the same once more; where they differ, the same cotangent twice more.

    Row by row where a tolerance has to be compared with single entries.
    """
    problem = context.problem
    if not problem.domain.size or not problem.codomain.size:
        return
    (probe,) = context.projections.probe_cotangents(1)
    if _is_reproduced(context, probe):
        yield REPRODUCIBLE
        return
    tolerance = context.options.nondeterminism
    spread = _unsteadiness(context, probe)
    # The weights of a random cotangent are at least a quarter with a tolerance. Without one, sums whose order changes
    # may differ by roundoff, and single rows may still be equal.
    if spread > tolerance / 4.0 and (tolerance or spread <= thresholds.ROUNDOFFS * EPS * peak(probe.vjp)):
        spread = max(_row_spread(context, row) for row in range(min(problem.codomain.size, ROWS)))
    if spread > tolerance:
        yield Finding(
            "determinism",
            Verdict.FAIL,
            f"two backward passes with the same grad_output differ by {spread:.3g}",
            facts={"spread": spread, "tolerance": tolerance},
            advice="Look for atomics, races, uninitialised memory or random numbers in the derivative.",
        )
    else:
        yield REPRODUCIBLE


def _is_reproduced(context: Context, probe: Cotangent) -> bool:
    """Whether a multiple of the cotangent gives the multiple; of custom rules, whether the same gives the same.

    A custom rule may be right and not exactly linear, such as an adaptive solver. In slow mode it runs about as often
    as there are rows, each of which torch runs twice. One pass runs backward for each output.
    """
    problem, passes = context.problem, 1
    if problem.is_plain and not problem.rules.has_custom:
        return context.projections.proportional is not None
    if context.projections.is_strict:
        passes += min(max(0, problem.codomain.size // len(problem.codomain.leaves) - OTHER_REPEATS), REPEATS)
    return all(equal(problem.gradient_by_output(probe.v).vector, probe.vjp) for _ in range(passes))


def _unsteadiness(context: Context, probe: Cotangent) -> float:
    """The spread of three passes with the same cotangent, two of them in a row: alternation shows as well."""
    again, once_more = (context.problem.gradient_by_output(probe.v).vector for _ in range(2))
    return max(_spread(context, probe.vjp, again), _spread(context, again, once_more))


def _row_spread(context: Context, row: int) -> float:
    problem = context.problem
    cotangent = unit(problem.zeros(problem.codomain.size), row)
    return _spread(context, problem.vjp(cotangent), problem.vjp(cotangent))


def _spread(context: Context, first: Array, second: Array) -> float:
    """The largest difference; entries that are not finite are another check's matter."""
    if equal(first, second):
        return 0.0
    xp = namespace(first)
    difference = xp.abs(first - second)
    return float(xp.max(xp.where(difference > 0.0, difference, xp.zeros_like(difference))))
