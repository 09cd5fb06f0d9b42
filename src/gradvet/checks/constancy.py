"""Do outputs that claim to have no derivative stay constant?"""

from __future__ import annotations

from collections.abc import Iterator

import array_api_compat

from gradvet.core.experiment import Experiment
from gradvet.core.results import Finding, Verdict
from gradvet.core.spaces import Array

DIRECTIONS = 2


def constancy(experiment: Experiment) -> Iterator[Finding]:
    """A function without any differentiable output must not vary."""
    problem = experiment.problem
    if problem.codomain.leaves:
        return
    varying = _varying(experiment, DIRECTIONS, experiment.options.constant_within)
    if varying:
        yield Finding(
            "constancy",
            Verdict.FAIL,
            f"no output has a derivative, yet {', '.join(varying)} varies with the inputs",
            facts={"outputs": varying},
            advice="Look for a detach, a no_grad block, or a conversion that leaves the graph.",
        )
    else:
        yield Finding("constancy", Verdict.PASS, "no output has a derivative, and none varies")


def detached(experiment: Experiment) -> Iterator[Finding]:
    """Beside differentiable outputs, one without derivative that varies is worth a word."""
    problem = experiment.problem
    if not problem.codomain.leaves or not problem.silent.size or not problem.domain.size:
        return
    varying = _varying(experiment, 1, 0.0)
    if varying:
        yield Finding(
            "detached",
            Verdict.PASS,
            f"{', '.join(varying)} varies with the inputs but does not require grad: its derivative is not checked",
            facts={"outputs": varying},
        )


def _varying(experiment: Experiment, directions: int, limit: float) -> list[str]:
    """Names of the silent outputs that change along random directions."""
    problem = experiment.problem
    if not problem.silent.size or not problem.domain.size:
        return []
    walked = experiment.directions(directions)
    slopes = [direction.silent / direction.step for direction in walked]
    return [
        leaf.name
        for number, leaf in enumerate(problem.silent.leaves)
        if any(_moves(slope[problem.silent.slice(number)], limit) for slope in slopes)
    ]


def _moves(slope: Array, limit: float) -> bool:
    xp = array_api_compat.array_namespace(slope)
    return bool(xp.any(~(xp.abs(slope) <= limit)))
