"""Checks that a derivative repeats: the same passes again, from the same random state or from others."""

from __future__ import annotations

import math
from collections.abc import Iterator

from gradvet.core import thresholds
from gradvet.core.context import Context
from gradvet.core.entrywise import ComparedEntry
from gradvet.core.finite_differences import Cotangent
from gradvet.core.probe_plans import repetitions
from gradvet.core.results import Finding, Verdict
from gradvet.core.vectors import Array, equal, namespace, nan_as_inf, peak, unit

REPEATS = 20
"""Number of repeated backward passes through custom rules, for problems of at most `CHEAP_SIZE`."""

CHEAP_SIZE = 100_000
"""Largest number of inputs and outputs together for which backward passes are cheap."""


def determinism(context: Context) -> Iterator[Finding]:
    """Two forward passes from the same random state, and several backward passes from different ones."""
    problem = context.problem
    xp = namespace(problem.value)
    repeat_noise = float(xp.max(context.repeat_noise))
    if repeat_noise > 0.0:
        context.record.note(
            f"two calls with the same inputs and random state differ by {repeat_noise:.2g}: the function depends on "
            "something else, such as its own state or the time, or its sums have no fixed order"
        )
    v, first = context.random_vjp
    # Builtin rules keep no state between passes.
    passes = 1 if problem.rules.are_builtin else _passes(context)
    gap, spread, variants = xp.zeros_like(first), 0.0, context.problem.variants
    for number in range(passes):
        again = variants.repeated(v) if number else context.repeated_vjp
        if not equal(first, again):
            gap = xp.maximum(gap, _gap(first, again))
            spread = float(xp.max(gap))
    facts = {"forward": repeat_noise, "backward": spread, "passes": passes + 1}
    if spread and spread > _explained(context, problem.internal_eps()):
        place = problem.domain.locate(int(xp.argmax(gap)))
        headline = f"two backward passes with the same grad_output differ by {spread:.3g} at {place}"
        advice = "Look for a race, uninitialised memory, state that backward uses up, or random numbers in it."
        yield Finding("determinism", Verdict.FAIL, headline, facts=facts, advice=advice)
        return
    own = ", each after a forward pass of its own," if problem.isolates_passes else ""
    headline = f"{passes + 1} equal backward passes{own} give equal gradients"
    if repeat_noise > 0.0:
        headline = "the function is random in itself"
    elif spread:
        headline = f"{passes + 1} equal backward passes{own} differ by {spread:.2g}, as sums without a fixed order do"
        context.record.note(headline)
    yield Finding("determinism", Verdict.PASS, headline, facts=facts)


def runs_again(context: Context) -> bool:
    """Whether a second VJP of the random cotangent runs. One VJP, which is kept."""
    try:
        return context.repeated_vjp is not None
    except Exception:
        return False


def is_repeatable(context: Context, first: Array | None = None) -> bool:
    """Whether a second VJP of the random cotangent gives the same gradient as the first. One VJP, which is kept.

    `first` is compared too.
    """
    if not runs_again(context):
        return False
    own, most = context.random_vjp[1], _explained(context, context.problem.eps)
    found = [context.repeated_vjp, *([] if first is None else [first])]
    return all(float(namespace(own).max(_gap(own, other))) <= most for other in found)


def _explained(context: Context, eps: float) -> float:
    """The difference of two equal passes that sums without a fixed order explain, in a format of this spacing."""
    relative: float = min(eps**thresholds.HALF_THE_DIGITS, thresholds.MATERIAL_MAX)
    return relative * peak(context.random_vjp[1])


def _gap(first: Array, again: Array) -> Array:
    """The difference of each entry: none where the first is not finite, infinite where only the second is not."""
    xp = namespace(first)
    change = nan_as_inf(xp.abs(again - first))
    return xp.where(xp.isfinite(first), change, xp.zeros_like(change))


def _passes(context: Context) -> int:
    """Number of repeated backward passes through custom rules: more where they are cheap."""
    return REPEATS if context.problem.domain.size + context.problem.codomain.size <= CHEAP_SIZE else 2


ROWS = 1024
"""Number of single rows that are computed twice, to compare their difference with the tolerance."""

EPS = 2.0**-52
"""Spacing of the vectors of the tolerance policy."""

REPRODUCIBLE = Finding("determinism", Verdict.PASS, "the derivative is reproducible")


def drop_in_determinism(context: Context) -> Iterator[Finding]:
    """A cotangent and a multiple of it, or the same once more; where they differ, the same cotangent twice more.

    In slow mode custom rules run about as often as there are rows, each of which torch runs twice. Row by row where a
    tolerance has to be compared with single entries.
    """
    problem, projections = context.problem, context.projections
    if not problem.domain.size or not problem.codomain.size:
        return
    (probe,) = projections.probe_cotangents(1)
    if not _is_proportional(context):
        repeats = 1 + (repetitions(problem) if projections.is_strict else 0)
        for _ in range(repeats):
            again = problem.gradient_by_output(probe.v).vector
            if not equal(again, probe.vjp):
                yield _measured(context, probe, again)
                return
    yield REPRODUCIBLE


def irreproducible(context: Context, entry: ComparedEntry | None) -> Finding | None:
    """The failure of a derivative of which a second backward pass gives another entry, or another projection.

    None if it is the same. Asked about a wrong derivative, before it is called wrong. A gradient that was seen not to
    be proportional to its cotangent may be that of a pass which finds what an earlier one left, as all later ones do:
    then the earlier one is repeated. Needed by `test_one_shot_backward_is_not_reentrant_in_fast_mode`.
    """
    projections = context.projections
    if entry is not None and not projections.is_seen_nonlinear:
        again = float(projections.fresh_row(entry.row)[entry.column])
        if again == entry.derivative or (math.isnan(again) and math.isnan(entry.derivative)):
            return None
    (probe,) = projections.probe_cotangents(1)
    other = context.problem.gradient_by_output(probe.v).vector
    if equal(other, probe.vjp):
        return None
    found = _measured(context, probe, other)
    return found if found.verdict is Verdict.FAIL else None


def _is_proportional(context: Context) -> bool:
    """Whether a multiple of a cotangent gives the multiple.

    In slow mode not asked of custom rules, which are repeated: one may be right and not exactly linear, such as an
    adaptive solver.
    """
    problem, projections = context.problem, context.projections
    if not problem.is_plain or (projections.is_strict and problem.rules.has_custom):
        return False
    return projections.proportional is not None


def _measured(context: Context, probe: Cotangent, other: Array) -> Finding:
    """The finding about a derivative of which a repetition gave another gradient; further passes may be equal."""
    problem, tolerance = context.problem, context.options.nondeterminism
    spread = max(_spread(probe.vjp, other), _unsteadiness(context, probe))
    # The weights of a random cotangent are at least a quarter with a tolerance. Without one, sums whose order changes
    # may differ by roundoff, and single rows may still be equal.
    if spread > tolerance / 4.0 and (tolerance or spread <= thresholds.ROUNDOFFS * EPS * peak(probe.vjp)):
        spread = max(_row_spread(context, row) for row in range(min(problem.codomain.size, ROWS)))
    if spread <= tolerance:
        return REPRODUCIBLE
    headline = f"two backward passes with the same grad_output differ by {spread:.3g}"
    advice = "Look for atomics, races, uninitialised memory or random numbers in the derivative."
    return Finding(
        "determinism", Verdict.FAIL, headline, facts={"spread": spread, "tolerance": tolerance}, advice=advice
    )


def _unsteadiness(context: Context, probe: Cotangent) -> float:
    """The spread of three passes with the same cotangent, two of them in a row: alternation shows as well."""
    again, once_more = (context.problem.gradient_by_output(probe.v).vector for _ in range(2))
    return max(_spread(probe.vjp, again), _spread(again, once_more))


def _row_spread(context: Context, row: int) -> float:
    problem = context.problem
    cotangent = unit(problem.zeros(problem.codomain.size), row)
    return _spread(problem.vjp(cotangent), problem.vjp(cotangent))


def _spread(first: Array, second: Array) -> float:
    """The largest difference of two passes."""
    return 0.0 if equal(first, second) else float(namespace(first).max(_gap(first, second)))
