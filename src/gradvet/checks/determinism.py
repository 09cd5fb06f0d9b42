"""Does the same backward pass, run twice, give the same gradient?"""

from __future__ import annotations

from collections.abc import Iterator

from gradvet.core.arithmetic import namespace
from gradvet.core.experiment import Codirection, Experiment
from gradvet.core.results import Finding, Verdict
from gradvet.core.spaces import Array

ROWS = 1024
"""Single rows that are run twice to compare their jitter with the tolerance, if one was given."""

REPRODUCIBLE = Finding("determinism", Verdict.PASS, "the derivative is reproducible")


def determinism(experiment: Experiment) -> Iterator[Finding]:
    """A codirection and a multiple of it; where they differ, the same one again and again.

    Row by row where a tolerance has to be compared with single entries.
    """
    problem = experiment.problem
    if not problem.domain.size or not problem.codomain.size:
        return
    if experiment.proportion.kept:
        yield REPRODUCIBLE
        return
    tolerance = experiment.options.nondeterminism
    probes = experiment.codirections(1)
    spread = max(_unsteadiness(experiment, probe) for probe in probes)
    # A codirection weighs an entry with at least a quarter then.
    if tolerance and spread > tolerance / 4.0:
        spread = max(_row_spread(experiment, row) for row in range(min(problem.codomain.size, ROWS)))
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


def _unsteadiness(experiment: Experiment, probe: Codirection) -> float:
    """Of three passes with the same codirection, two of them in a row: what alternates shows as well."""
    again, once_more = (experiment.problem.reverse.pull_apart(probe.v) for _ in range(2))
    return max(_spread(experiment, probe.pulled, again), _spread(experiment, again, once_more))


def _row_spread(experiment: Experiment, row: int) -> float:
    cotangent = experiment.problem.zeros(experiment.problem.codomain.size)
    cotangent[row] = 1.0
    reverse = experiment.problem.reverse
    return _spread(experiment, reverse.pull(cotangent), reverse.pull(cotangent))


def _spread(experiment: Experiment, first: Array, second: Array) -> float:
    """The largest difference; entries that are not finite are another check's matter."""
    if experiment.problem.equal(first, second):
        return 0.0
    xp = namespace(first)
    difference = xp.abs(first - second)
    return float(xp.max(xp.where(difference > 0.0, difference, xp.zeros_like(difference))))
