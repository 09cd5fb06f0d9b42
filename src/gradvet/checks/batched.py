"""Do derivatives computed for several directions at once (vmap) equal those computed one by one?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import array_api_compat

from gradvet.core.experiment import Experiment
from gradvet.core.probes import signed
from gradvet.core.results import Finding, Verdict
from gradvet.core.spaces import Array, Space

TOGETHER = 2
ABSOLUTE, RELATIVE = 1e-8, 1e-5


def batched_reverse(experiment: Experiment) -> Iterator[Finding]:
    """Two cotangents together against each alone."""
    problem = experiment.problem
    if not problem.codomain.leaves:
        return
    V = [signed(problem.uniform(problem.codomain.size)) for _ in range(TOGETHER)]
    yield _compare("batched reverse", V, problem.reverse.pull_together, problem.reverse.pull, problem.domain)


def batched_forward(experiment: Experiment) -> Iterator[Finding]:
    """Two tangents together against each alone."""
    problem = experiment.problem
    if not problem.codomain.leaves:
        return
    U = [signed(problem.uniform(problem.domain.size)) for _ in range(TOGETHER)]
    yield _compare("batched forward", U, problem.forward.push_together, problem.forward.push, problem.codomain)


def _compare(
    check: str,
    directions: Sequence[Array],
    together: Callable[[Sequence[Array]], list[Array]],
    alone: Callable[[Array], Array],
    space: Space,
) -> Finding:
    expected = [alone(direction) for direction in directions]
    try:
        found = together(directions)
    except RuntimeError as error:
        return Finding(
            check,
            Verdict.FAIL,
            f"the derivative cannot be batched: {error}",
            facts={"raised": str(error)},
            advice="vmap must be able to run the derivative: avoid item(), in-place writes and random numbers in it.",
        )
    for leaf, values in enumerate(space.leaves):
        part = space.slice(leaf)
        for one, other in zip(found, expected, strict=True):
            if not _close(one[part], other[part]):
                return Finding(
                    check,
                    Verdict.FAIL,
                    f"the batched derivative for {values.name} differs from the one computed alone",
                    facts={"leaf": leaf, "found": str(one[part]), "expected": str(other[part])},
                    advice="Look at the vmap rule of the operations in the derivative.",
                )
    return Finding(check, Verdict.PASS, "batched and single derivatives agree")


def _close(one: Array, other: Array) -> bool:
    xp = array_api_compat.array_namespace(one)
    return bool(xp.all((xp.abs(one - other) <= ABSOLUTE + RELATIVE * xp.abs(other)) | (one == other)))
