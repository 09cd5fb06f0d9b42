"""Is the derivative that the framework computes the derivative of the function?"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator

from gradvet.core.arithmetic import namespace
from gradvet.core.certificate import Residual, certify, forward_residual, reverse_residual
from gradvet.core.compare import Comparison, Entry, Pair
from gradvet.core.diagnose import diagnose
from gradvet.core.differences import column
from gradvet.core.exhaustive import compare_forward, compare_reverse
from gradvet.core.experiment import Experiment
from gradvet.core.observation import is_observed
from gradvet.core.portrait import around, block, classical_sweep, names, neighbourhood
from gradvet.core.problem import Problem
from gradvet.core.results import Finding, Mismatch, Verdict
from gradvet.core.spaces import Array

PRINTED = 100
"""Jacobians of at most this many entries are part of the finding."""

COARSE = (
    "The error bar of the differences is about as large as the disagreement: with this eps and precision they cannot "
    "tell. Use float64 inputs, inputs of moderate size, or another eps."
)


def reverse(experiment: Experiment) -> Iterator[Finding]:
    """Reverse mode against differences."""
    yield _agreement(experiment, "reverse", reverse_residual, compare_reverse)


def forward(experiment: Experiment) -> Iterator[Finding]:
    """Forward mode against differences."""
    yield _agreement(experiment, "forward", forward_residual, compare_forward)


def _agreement(
    experiment: Experiment, mode: str, residual: Residual, compare: Callable[[Experiment], Comparison]
) -> Finding:
    problem = experiment.problem
    if not problem.domain.size or not problem.codomain.size:
        return Finding(mode, Verdict.PASS, "there is no entry to compare")
    miss = certify(experiment, residual)
    if miss is not None:
        return _agreeing(mode, miss)
    comparison = compare(experiment)
    return _disagreement(experiment, mode, comparison) if comparison.disagrees else _agreeing(mode, comparison.miss)


@functools.lru_cache(maxsize=64)
def _agreeing(mode: str, miss: float) -> Finding:
    return Finding(mode, Verdict.PASS, f"{mode} mode agrees with finite differences", facts={"miss": miss})


def _disagreement(experiment: Experiment, mode: str, comparison: Comparison) -> Finding:
    pair, part = _first(comparison)
    assert pair.worst is not None
    problem = experiment.problem
    sharp = column(problem, pair.worst.column, experiment.options.step)
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
        advice = diagnose(numerical, derivative, experiment.options.tolerance.absolute, parts=parts)
        if numerical.shape[0] * numerical.shape[1] <= PRINTED:
            facts |= {"numerical": _rows(numerical), "derivative": _rows(derivative)}
        facts["block"] = _window(problem, pair.worst, numerical, derivative)
    if is_observed():
        facts |= _figures(experiment, mode, pair.worst, "block" in facts)
    count = pair.total_wrong if comparison.complete else f"at least {pair.total_wrong}"
    if math.isfinite(pair.worst.difference) and not 3.0 * worst.error <= pair.worst.difference:
        advice = COARSE
    headline = f"{mode} mode disagrees with finite differences in {count} of {pair.entries} entries"
    return Finding(mode, Verdict.FAIL, headline, (worst,), facts, advice)


def _window(problem: Problem, worst: Entry, numerical: Array, derivative: Array) -> dict[str, object]:
    """Both versions around the worst entry, of matrices that begin where its leaves begin."""
    rows, columns = around(problem.codomain, worst.row), around(problem.domain, worst.column)
    top = problem.codomain.slice(problem.codomain.locate(worst.row).leaf).start
    left = problem.domain.slice(problem.domain.locate(worst.column).leaf).start
    place = slice(rows.start - top, rows.stop - top), slice(columns.start - left, columns.stop - left)
    return block(numerical[place], derivative[place], names(problem.codomain, rows), names(problem.domain, columns))


def _figures(experiment: Experiment, mode: str, worst: Entry, known: bool) -> dict[str, object]:
    """What a page shows beside the numbers; it costs evaluations, so only where somebody will look."""
    problem, step, place = experiment.problem, experiment.options.step, (worst.row, worst.column)
    gap = abs(worst.derivative - worst.numerical)
    found: dict[str, object] = {"sweep": classical_sweep(problem, place, step, gap)}
    return found if known else {"block": neighbourhood(problem, mode, place, step), **found}


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
