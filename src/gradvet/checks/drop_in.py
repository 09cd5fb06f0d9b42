"""Compares derivatives with finite differences by a tolerance, for the drop-in functions."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

from gradvet.checks.determinism import irreproducible
from gradvet.core import entrywise, fast_mode, thresholds
from gradvet.core.certificate import certify
from gradvet.core.context import Context
from gradvet.core.diagnosis import diagnose
from gradvet.core.entrywise import ComparedEntry, Comparison, Pair
from gradvet.core.events import has_listeners
from gradvet.core.fast_mode import Draw, Refusal, UnitVectors
from gradvet.core.finite_differences import entry_error
from gradvet.core.modes import FORWARD, REVERSE, Mode
from gradvet.core.neighbourhood import figures, wrong_factor
from gradvet.core.probe_plans import certificate_evaluations
from gradvet.core.problem import Distribution, Problem
from gradvet.core.results import Finding, Mismatch, Verdict
from gradvet.core.vectors import Array, as_lists, equal, peak

PRINTED = 100
"""Jacobians of at most this many entries are part of the finding."""

RANDOM = "Two calls with the same inputs return different values: the function draws random numbers or has a state."
IMPRECISE = (
    "The error bar of the differences is about as large as the disagreement: with this eps and precision they cannot "
    "tell. Use float64 inputs, inputs of moderate size, or another eps."
)


Announcement = Callable[[str], AbstractContextManager[object]]
"""Tells a waiting user what is under way, until it ends."""


def positive_unit_vectors(problem: Problem) -> UnitVectors:
    """Vectors of the same kind as torch's, from the check's own generator."""

    def draw(size: int) -> Array:
        vector = abs(problem.random(size, Distribution.UNIFORM))
        return vector / float(vector @ vector) ** 0.5

    return draw


def drop_in_reverse(
    context: Context, draw: Draw = positive_unit_vectors, announce: Announcement = nullcontext
) -> Iterator[Finding]:
    """Reverse mode against differences."""
    yield _agreement(context, REVERSE, draw, announce)


def drop_in_forward(
    context: Context, draw: Draw = positive_unit_vectors, announce: Announcement = nullcontext
) -> Iterator[Finding]:
    """Forward mode against differences."""
    yield _agreement(context, FORWARD, draw, announce)


def _agreement(context: Context, mode: Mode, draw: Draw, announce: Announcement) -> Finding:
    problem, projections = context.problem, context.projections
    if not problem.domain.size or not problem.codomain.size:
        return Finding(mode.name, Verdict.PASS, "there is no entry to compare")
    if not projections.is_strict and not context.options.exhaustive:
        return _fast_finding(context, mode, fast_mode.decide(projections, mode, draw))
    miss = certify(projections, mode, *certificate_evaluations(problem, mode))
    if miss is not None:
        return _agreeing(mode.name, miss)
    entries = f"{problem.codomain.size} x {problem.domain.size} entries"
    words = f"gradcheck ({mode.name} mode): projections do not certify this function; comparing {entries}"
    with nullcontext() if entrywise.is_small(problem) else announce(words):
        comparison = entrywise.compare(projections, mode)
    if comparison.disagrees:
        return _disagreement(context, mode, comparison)
    return _agreeing(mode.name, comparison.miss)


def _fast_finding(context: Context, mode: Mode, decision: float | Comparison | Refusal) -> Finding:
    if isinstance(decision, Comparison):
        return _disagreement(context, mode, decision)
    if isinstance(decision, tuple):
        if mode.by_rows and (finding := irreproducible(context, None)) is not None:
            return finding
        output, source, part = decision
        names = context.problem.codomain.leaves[output].name, context.problem.domain.leaves[source].name
        return Finding(
            mode.name,
            Verdict.FAIL,
            f"{mode.name} mode disagrees with finite differences in a projection of d {names[0]} / d {names[1]}",
            facts={"output": output, "input": source, "part": part},
            advice=f"No wrong entry was found in {fast_mode.MAX_IF_REFUSED} evaluations: fast_mode=False compares all.",
        )
    return _agreeing(mode.name, decision)


@functools.lru_cache(maxsize=64)
def _agreeing(mode: str, miss: float) -> Finding:
    return Finding(mode, Verdict.PASS, f"{mode} mode agrees with finite differences", facts={"miss": miss})


def _disagreement(context: Context, mode: Mode, comparison: Comparison) -> Finding:
    pair, part = _first(comparison)
    assert pair.worst is not None
    if mode.by_rows and (finding := irreproducible(context, pair.worst)) is not None:
        return finding
    count = pair.total_wrong if comparison.complete else f"at least {pair.total_wrong}"
    headline = f"{mode.name} mode disagrees with finite differences in {count} of {pair.entries} entries"
    if not context.options.explains:
        return Finding(mode.name, Verdict.FAIL, headline)
    context.projections.release()
    listed = list[Mismatch]()
    for entry in pair.largest_errors:
        listed.append(_compared_mismatch(context, entry))
        if listed[-1].is_precise and not has_listeners():  # the message shows one, and each takes evaluations
            break
    facts: dict[str, object] = {
        "output": pair.output,
        "input": pair.input,
        "part": part,
        "wrong": pair.total_wrong,
        "entries": pair.entries,
        "largest": pair.largest,
        "complete": comparison.complete,
    }
    advice, first = "", pair.largest_errors[0]
    if pair.matrices is not None and comparison.complete:
        advice = _diagnosis(context, pair, *pair.matrices)
        if math.prod(pair.matrices[0].shape) <= PRINTED:
            facts |= dict(zip(("numerical", "derivative"), map(as_lists, pair.matrices), strict=True))
    if has_listeners():
        facts |= _figures(context, mode, first)
    if _varies(context, first):
        advice = RANDOM
    elif not any(one.is_precise for one in listed):
        advice = IMPRECISE
    return Finding(mode.name, Verdict.FAIL, headline, tuple(listed), facts, advice)


def _varies(context: Context, worst: ComparedEntry) -> bool:
    """Whether two calls at the point differ; asked where the difference over a step is not small beside the output."""
    problem = context.problem
    is_large = abs(worst.numerical) * context.options.step > thresholds.PLATEAU_RTOL * peak(problem.value)
    return is_large and not equal(problem.evaluate_at(problem.zeros(problem.domain.size)).values, problem.value)


def _compared_mismatch(context: Context, entry: ComparedEntry) -> Mismatch:
    """A wrong entry with the error bar of its difference. Two evaluations."""
    problem = context.problem
    places = problem.codomain.locate(entry.row), problem.domain.locate(entry.column)
    error = entry_error(problem, (entry.row, entry.column), context.options.step, entry.numerical)
    return Mismatch(*places, entry.derivative, entry.numerical, error, entry.allowed)


def _diagnosis(context: Context, pair: Pair, numerical: Array, derivative: Array) -> str:
    problem = context.problem
    output, source = problem.codomain.leaves[pair.output], problem.domain.leaves[pair.input]
    rows, columns = problem.codomain.slices[pair.output], problem.domain.slices[pair.input]
    parts = output.coordinates.parts, source.coordinates.parts
    lengths = {side: getattr(leaf.coordinates, "shape", ()) for side, leaf in (("output", output), ("input", source))}
    tolerance, alike = context.options.tolerance, thresholds.EQUAL_RATIO
    wrong = abs(derivative - numerical) > tolerance.absolute + tolerance.relative * abs(numerical)
    ranges = range(rows.start, rows.stop), range(columns.start, columns.stop)
    return wrong_factor(problem, *ranges, numerical, derivative, wrong, alike) or diagnose(
        numerical, derivative, tolerance.absolute, parts=parts, lengths=lengths
    )


def _figures(context: Context, mode: Mode, worst: ComparedEntry) -> dict[str, object]:
    """Figures for a page, with the step and the error of the comparison. They take evaluations of the function."""
    found = figures(context, mode, (worst.row, worst.column))
    used = {"chosen": context.options.step, "extrapolated": False, "gap": abs(worst.derivative - worst.numerical)}
    return {**found, "sweep": {**found["sweep"], **used}}


def _first(comparison: Comparison) -> tuple[Pair, str]:
    """The pair that torch's gradcheck reports: imaginary parts first, then by output, then by input."""
    pairs = sorted(comparison.pairs.values(), key=lambda pair: (pair.output, pair.input))
    for part in ("imag", "real"):
        for pair in pairs:
            if pair.wrong.get(part) or pair.wrong.get(""):
                return pair, part if pair.wrong.get(part) else ""
    raise LookupError("no pair of leaves disagrees")
