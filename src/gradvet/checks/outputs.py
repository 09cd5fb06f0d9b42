"""Checks of outputs: the same values without grad mode, constant where there is no derivative; types of derivatives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gradvet.core import thresholds
from gradvet.core.context import Context
from gradvet.core.finite_differences import middle_step
from gradvet.core.modes import CentralDifferences
from gradvet.core.problem import AttributeMismatch
from gradvet.core.projections import OutOfReachError
from gradvet.core.results import Finding, Verdict
from gradvet.core.vectors import Array, Space, equal, first_true, namespace, peak

NOISY_REPETITIONS = 4
"""Further calls of a function with a noise of its own, before its values are called wrong."""

UNCHANGED = Finding("values", Verdict.PASS, "the value does not depend on grad mode")


def values(context: Context) -> Iterator[Finding]:
    """The function with and without grad mode.

    The difference of two calls may be small by chance, so a function with a noise of its own is called again. Needed by
    `test_function_with_a_noise_of_its_own_is_not_blamed_for_grad_mode`.
    """
    problem = context.problem
    if not problem.codomain.size:
        return
    expected = context.value
    found = context.problem.variants.without_grad_mode()
    if equal(found, expected):
        yield UNCHANGED
        return
    xp = namespace(found)
    gap = xp.abs(found - expected)
    allowed = thresholds.ROUNDOFFS * problem.eps * peak(expected)
    allowed += thresholds.RESPONSE_FACTOR * float(xp.max(context.repeat_noise))
    wrong = ~(gap <= allowed) & ~((found == expected) | (xp.isnan(found) & xp.isnan(expected)))
    for _ in range(NOISY_REPETITIONS if peak(context.repeat_noise) and bool(xp.any(wrong)) else 0):
        noise = xp.abs(problem.variants.without_grad_mode() - found)
        wrong = wrong & ~(gap <= thresholds.RESPONSE_FACTOR * noise)
    if not bool(xp.any(wrong)):
        yield UNCHANGED
        return
    row = first_true(wrong)
    facts = {"found": float(found[row]), "expected": float(expected[row])}
    numbers = "{found:.10g} without grad mode and {expected:.10g} with it".format(**facts)
    advice = "Look for a branch on requires_grad or grad mode, or for two implementations that do not agree."
    headline = f"{problem.codomain.locate(row)} is {numbers}"
    yield Finding("values", Verdict.FAIL, headline, facts=facts, advice=advice)


def detached(context: Context) -> Iterator[Finding]:
    """Outputs without derivative that vary are reported and not refused: a detach may be intended."""
    problem = context.problem
    rows = problem.codomain.size
    if not problem.codomain.leaves or not problem.nondifferentiable.size or not problem.domain.size:
        return
    xp, step = namespace(problem.value), middle_step(context.eps)
    before = problem.value[rows:]
    change = xp.abs(problem.evaluate_at(step * context.joint_direction()).values[rows:] - before)
    if bool(xp.any(xp.isnan(change) & xp.isfinite(before))):
        yield Finding("detached", Verdict.SKIPPED, "the function could not be evaluated beside the point")
        return
    moved = change > thresholds.ROUNDOFFS * problem.eps * xp.abs(before)
    names = [leaf.name for leaf, part in problem.nondifferentiable.sections if bool(xp.any(moved[part]))]
    if names:
        words = f"{', '.join(names)} varies with the inputs but has no derivative"
        context.record.note(f"{words}: is that meant so?")
        headline, facts = f"{words}, so nothing of it was checked", {"outputs": names}
        advice = "If it is meant so, leave it out of the results; if not, look for a detach or a no_grad block."
        yield Finding("detached", Verdict.SKIPPED, headline, facts=facts, advice=advice)
    else:
        yield Finding("detached", Verdict.PASS, "outputs without derivative do not vary")


NO_GRADIENT = "no output has a derivative, and none varies with the inputs: there was no gradient to compare"
CONSTANCY_DIRECTIONS = 2
"""Random directions along which a function without any derivative is evaluated."""


def constancy(context: Context) -> Iterator[Finding]:
    """A function without any differentiable output must not vary."""
    problem = context.problem
    if problem.codomain.leaves:
        return
    varying = _varying(context, CONSTANCY_DIRECTIONS, context.options.constant_within)
    if varying:
        headline = f"no output has a derivative, yet {', '.join(varying)} varies with the inputs"
        advice = "Look for a detach, a no_grad block, or a conversion that leaves the graph."
        yield Finding("constancy", Verdict.FAIL, headline, facts={"outputs": varying}, advice=advice)
    else:
        context.record.note(NO_GRADIENT)
        yield Finding("constancy", Verdict.PASS, "no output has a derivative, and none varies")


def drop_in_detached(context: Context) -> Iterator[Finding]:
    """A warning about an output without derivative that varies, beside differentiable ones."""
    problem = context.problem
    if not problem.codomain.leaves or not problem.nondifferentiable.size or not problem.domain.size:
        return
    if varying := _varying(context, 1, 0.0):
        words = f"{', '.join(varying)} varies with the inputs but does not require grad: its derivative is not checked"
        yield Finding("detached", Verdict.PASS, words, facts={"outputs": varying})


def _varying(context: Context, directions: int, limit: float) -> list[str]:
    """Names of the outputs without derivative that change along random directions and within the step."""
    problem = context.problem
    if not problem.nondifferentiable.size or not problem.domain.size:
        return []
    if context.projections.is_strict and problem.domain.size <= directions:
        return _names(context, _within_step(context), limit)
    try:
        probes = context.projections.probe_directions(directions)
        varying = _names(context, (found.nondifferentiable / found.step for found in probes), limit)
    except OutOfReachError:
        varying = [leaf.name for leaf in problem.nondifferentiable.leaves]
    # A joint direction reaches further than the step of a single entry, within which an output may still be constant.
    return varying and _names(context, _within_step(context), limit)


def _within_step(context: Context) -> Iterator[Array]:
    """Differences that no input's own step exceeds: along one direction in fast mode, else column by column."""
    projections = context.projections
    if projections.is_strict or context.options.exhaustive:
        numerical, rows = CentralDifferences(projections), context.problem.codomain.size
        for index in range(context.problem.domain.size):
            yield numerical.everything(index, index + 1)[rows:, 0]
        return
    u = projections.unit_direction(0)
    found = projections.two_sided_along(u / float(u @ u) ** 0.5, 1.0)
    yield found.nondifferentiable / found.step


def _names(context: Context, slopes: Iterable[Array], limit: float) -> list[str]:
    """Names of the outputs without derivative that vary in at least one of these; stops when all do."""
    nondifferentiable, found = context.problem.nondifferentiable, set[str]()
    for slope in slopes:
        moves = ~(abs(slope) <= limit)
        found |= {leaf.name for leaf, part in nondifferentiable.sections if bool(moves[part].any())}
        if len(found) == len(nondifferentiable.leaves):
            break
    return [leaf.name for leaf in nondifferentiable.leaves if leaf.name in found]


def metadata(context: Context) -> Iterator[Finding]:
    """The gradients that a backward pass returns."""
    if context.problem.codomain.leaves:
        yield from _findings("metadata", context.at_zero.mismatches, context.problem.domain)


def drop_in_metadata(context: Context) -> Iterator[Finding]:
    """The same for the cotangents of the tolerance policy."""
    if context.problem.codomain.leaves:
        yield from _findings("metadata", context.projections.at_zero.mismatches, context.problem.domain)


def drop_in_tangent_types(context: Context) -> Iterator[Finding]:
    """The tangents of the outputs, where the dtypes were asked to be exact."""
    problem = context.problem
    if not context.options.exact_types or not problem.domain.size:
        return
    mismatches = problem.tangent_mismatches(context.projections.unit_direction(0) * context.options.step)
    yield from _findings("tangent types", mismatches, problem.codomain)


def _findings(check: str, mismatches: list[AttributeMismatch], space: Space) -> Iterator[Finding]:
    for mismatch in mismatches:
        name = space.leaves[mismatch.leaf].name
        words = f"the derivative for {name} has {mismatch.attribute} {mismatch.found}, not {mismatch.expected}"
        facts = {key: getattr(mismatch, key) for key in ("attribute", "found", "expected", "kind")}
        yield Finding(check, Verdict.FAIL, words, facts=facts)
