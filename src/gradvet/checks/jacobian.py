"""Is the derivative the slope of the function, as far as the differences themselves can tell?"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator

from gradvet.core.certificate import Residual, certify, forward_residual, reverse_residual
from gradvet.core.context import Context
from gradvet.core.decision import Decision, Entry, Reason
from gradvet.core.diagnosis import diagnose
from gradvet.core.entrywise import ComparedEntry, Comparison, Pair, compare_forward, compare_reverse
from gradvet.core.events import has_listeners
from gradvet.core.finite_differences import column
from gradvet.core.miss_probability import Plan, miss_probability
from gradvet.core.modes import FORWARD, REVERSE, Mode
from gradvet.core.neighbourhood import around, block, classical_sweep, computed_block, names, study
from gradvet.core.problem import Problem
from gradvet.core.projections import Projections
from gradvet.core.results import Finding, Mismatch, Verdict
from gradvet.core.slope_test import SlopeTest
from gradvet.core.spaces import Array, Location
from gradvet.core.vectors import namespace

MARGIN = 0.01
"""An error of a hundred times what the walks let pass is missed with the probability that is reported."""

WORTH_ASKING = 0.5
"""Errors up to this part of a typical entry are worth looking for."""

WORDS = {
    Reason.JUMP: "the function jumps at the point, so it has no derivative there",
    Reason.STAIRS: "the function moves in stairs, whose slope is zero",
    Reason.STEEP: "the function has a vertical tangent at the point",
    Reason.NOT_FINITE: "neither the derivative nor the function's slope is finite at the point",
    Reason.DOMAIN: "next to the point the function is not defined on either side",
    Reason.PRECISION: "the differences are too noisy to tell",
    Reason.KINK: "the function has kinks at the point that cannot be told apart",
    Reason.BUDGET: "the time that was given is spent",
}


def reverse(context: Context) -> Iterator[Finding]:
    """Backward passes against differences."""
    yield from _slopes(context, REVERSE)


def forward(context: Context) -> Iterator[Finding]:
    """Dual numbers against differences."""
    yield from _slopes(context, FORWARD)


def _slopes(context: Context, mode: Mode) -> Iterator[Finding]:
    problem = context.problem
    if not problem.codomain.size or not problem.domain.size:
        yield Finding(mode.name, Verdict.PASS, "there is no entry to compare")
        return
    decision = SlopeTest(context, mode).decision()
    if decision.verdict is Verdict.FAIL:
        yield failure(context, mode, decision)
    elif decision.verdict is Verdict.INCONCLUSIVE:
        headline = f"{WORDS.get(decision.reason, decision.reason.value)} ({mode.name} mode)"
        yield Finding(
            mode.name, Verdict.INCONCLUSIVE, headline, facts=_facts(decision), advice=_advice(context, decision)
        )
    else:
        miss = miss_probability(MARGIN, Plan(2, 2 if problem.codomain.size > 1 else None), spread=1.0)
        facts = {"reason": decision.reason.value, "miss": miss, "resolution": dict(context.record.resolution)}
        yield Finding(mode.name, Verdict.PASS, f"{mode.name} mode agrees with finite differences", facts=facts)


def failure(context: Context, mode: Mode, decision: Decision) -> Finding:
    """The finding about a mode that is wrong, with the entries around the wrong one."""
    entry = decision.entry
    if decision.reason is Reason.NOT_FINITE and entry is not None:
        headline = f"the derivative in {mode.name} mode is not finite at {entry.input}, where the function has a slope"
        advice = "Look for 0/0, 0·inf or a branch that is masked only after it was computed."
        return Finding(mode.name, Verdict.FAIL, headline, (_mismatch(context, entry),), _facts(decision), advice)
    headline = f"{mode.name} mode disagrees with finite differences"
    if decision.reason is Reason.OUTSIDE:
        headline += ": the value is outside the slopes on both sides of a kink"
    if entry is None or entry.row < 0:
        return Finding(mode.name, Verdict.FAIL, headline, facts=_facts(decision))
    found = study(context, mode, entry)
    facts = {**_facts(decision), "wrong": found.wrong, "entries": found.entries, **found.block, "sweep": entry.sweep}
    if found.entries > 1:
        headline += f" in at least {found.wrong} of the {found.entries} entries that were compared"
    mismatches = tuple(_mismatch(context, e) for e in (entry, *found.others))
    return Finding(mode.name, Verdict.FAIL, headline, mismatches, facts, found.diagnosis)


def _mismatch(context: Context, entry: Entry) -> Mismatch:
    output = entry.output or Location(0, "a combination of outputs", "")
    return Mismatch(output, entry.input, entry.derivative, entry.numerical, entry.error, 1.5 * entry.error)


def _facts(decision: Decision) -> dict[str, object]:
    return {"reason": decision.reason.value, "error": decision.error, "bar": decision.bar}


def _advice(context: Context, decision: Decision) -> str:
    if decision.reason not in (Reason.PRECISION, Reason.KINK):
        return ""
    advice = "Try float64 inputs, inputs of moderate size, or a point away from kinks."
    known = context.record.resolution
    seen = max((known.get(leaf.name, math.inf) for leaf in context.problem.domain.leaves), default=math.inf)
    if not context.options.power < seen <= WORTH_ASKING:
        return advice
    enough = math.ceil(110.0 * seen) / 100.0
    return f"What was seen agrees within {seen:.1g} of a typical entry; power={enough:g} asks for no more. {advice}"


PRINTED = 100
"""Jacobians of at most this many entries are part of the finding."""

IMPRECISE = (
    "The error bar of the differences is about as large as the disagreement: with this eps and precision they cannot "
    "tell. Use float64 inputs, inputs of moderate size, or another eps."
)


def drop_in_reverse(context: Context) -> Iterator[Finding]:
    """Reverse mode against differences."""
    yield _agreement(context, "reverse", reverse_residual, compare_reverse)


def drop_in_forward(context: Context) -> Iterator[Finding]:
    """Forward mode against differences."""
    yield _agreement(context, "forward", forward_residual, compare_forward)


def _agreement(
    context: Context, mode: str, residual: Residual, compare: Callable[[Projections], Comparison]
) -> Finding:
    problem = context.problem
    if not problem.domain.size or not problem.codomain.size:
        return Finding(mode, Verdict.PASS, "there is no entry to compare")
    miss = certify(context.projections, residual)
    if miss is not None:
        return _agreeing(mode, miss)
    comparison = compare(context.projections)
    return _disagreement(context, mode, comparison) if comparison.disagrees else _agreeing(mode, comparison.miss)


@functools.lru_cache(maxsize=64)
def _agreeing(mode: str, miss: float) -> Finding:
    return Finding(mode, Verdict.PASS, f"{mode} mode agrees with finite differences", facts={"miss": miss})


def _disagreement(context: Context, mode: str, comparison: Comparison) -> Finding:
    pair, part = _first(comparison)
    assert pair.worst is not None
    problem = context.problem
    sharp = column(problem, pair.worst.column, context.options.step)
    worst = Mismatch(
        output=problem.codomain.locate(pair.worst.row),
        input=problem.domain.locate(pair.worst.column),
        derivative=pair.worst.derivative,
        numerical=pair.worst.numerical,
        error=float(sharp.error[pair.worst.row]),
        allowed=pair.worst.allowed,
    )
    facts = {
        "output": pair.output,
        "input": pair.input,
        "part": part,
        "wrong": pair.total_wrong,
        "entries": pair.entries,
        "largest": pair.largest,
        "complete": comparison.complete,
    }
    advice = ""
    if pair.numerical and comparison.complete:
        xp = namespace(pair.numerical[0])
        numerical, derivative = xp.concat(pair.numerical, axis=1), xp.concat(pair.derivative, axis=1)
        parts = (
            problem.codomain.leaves[pair.output].coordinates.parts,
            problem.domain.leaves[pair.input].coordinates.parts,
        )
        advice = diagnose(numerical, derivative, context.options.tolerance.absolute, parts=parts)
        if numerical.shape[0] * numerical.shape[1] <= PRINTED:
            facts |= {"numerical": _rows(numerical), "derivative": _rows(derivative)}
        facts["block"] = _window(problem, pair.worst, numerical, derivative)
    if has_listeners():
        facts |= _figures(context, mode, pair.worst, "block" in facts)
    count = pair.total_wrong if comparison.complete else f"at least {pair.total_wrong}"
    if math.isfinite(pair.worst.difference) and not 3.0 * worst.error <= pair.worst.difference:
        advice = IMPRECISE
    headline = f"{mode} mode disagrees with finite differences in {count} of {pair.entries} entries"
    return Finding(mode, Verdict.FAIL, headline, (worst,), facts, advice)


def _window(problem: Problem, worst: ComparedEntry, numerical: Array, derivative: Array) -> dict[str, object]:
    """Both versions around the worst entry, of matrices that begin where its leaves begin."""
    rows, columns = around(problem.codomain, worst.row), around(problem.domain, worst.column)
    top = problem.codomain.slice(problem.codomain.locate(worst.row).leaf).start
    left = problem.domain.slice(problem.domain.locate(worst.column).leaf).start
    place = slice(rows.start - top, rows.stop - top), slice(columns.start - left, columns.stop - left)
    return block(numerical[place], derivative[place], names(problem.codomain, rows), names(problem.domain, columns))


def _figures(context: Context, mode: str, worst: ComparedEntry, known: bool) -> dict[str, object]:
    """What a page shows beside the numbers; it costs evaluations, so only where somebody will look."""
    problem, step, place = context.problem, context.options.step, (worst.row, worst.column)
    gap = abs(worst.derivative - worst.numerical)
    found: dict[str, object] = {"sweep": classical_sweep(problem, place, step, gap)}
    return found if known else {"block": computed_block(problem, mode, place, step), **found}


def _first(comparison: Comparison) -> tuple[Pair, str]:
    """The pair that the classical check reports: imaginary parts first, then by output, then by input."""
    pairs = sorted(comparison.pairs.values(), key=lambda pair: (pair.output, pair.input))
    for part in ("imag", "real"):
        for pair in pairs:
            if pair.wrong.get(part) or pair.wrong.get(""):
                return pair, part if pair.wrong.get(part) else ""
    raise LookupError("no pair of leaves disagrees")


def _rows(matrix: object) -> list[list[float]]:
    return [[float(entry) for entry in row] for row in matrix]  # type: ignore[attr-defined]
