"""Do outputs that claim to have no derivative stay constant?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gradvet.core.arithmetic import namespace
from gradvet.core.experiment import Experiment, OutOfReachError
from gradvet.core.jacobians import Numerical
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
    """Names of the silent outputs that change along random directions, or where those lead too far, along columns."""
    problem = experiment.problem
    if not problem.silent.size or not problem.domain.size:
        return []
    try:
        slopes = [walked.silent / walked.step for walked in experiment.directions(directions)]
        varying = _names(experiment, slopes, limit)
    except OutOfReachError:
        varying = [leaf.name for leaf in problem.silent.leaves]
    # A direction leads further than the entrywise step: what varies there may still be constant within it.
    return varying and _names(experiment, _columns(experiment), limit)


def _columns(experiment: Experiment) -> Iterator[Array]:
    numerical, rows = Numerical(experiment), experiment.problem.codomain.size
    for index in range(experiment.problem.domain.size):
        yield numerical.everything(index, index + 1)[rows:, 0]


def _names(experiment: Experiment, slopes: Iterable[Array], limit: float) -> list[str]:
    """The silent outputs that move in at least one of these; looks no further than until all do."""
    silent, found = experiment.problem.silent, set[int]()
    for slope in slopes:
        found |= {number for number in range(len(silent.leaves)) if _moves(slope[silent.slice(number)], limit)}
        if len(found) == len(silent.leaves):
            break
    return [leaf.name for number, leaf in enumerate(silent.leaves) if number in found]


def _moves(slope: Array, limit: float) -> bool:
    xp = namespace(slope)
    return bool(xp.any(~(xp.abs(slope) <= limit)))
