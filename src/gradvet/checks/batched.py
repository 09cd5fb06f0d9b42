"""Do derivatives computed for several directions at once (vmap) equal those computed one by one?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from gradvet.core.arithmetic import namespace
from gradvet.core.experiment import Experiment
from gradvet.core.results import Finding, Verdict
from gradvet.core.spaces import Array, Space

TOGETHER = 2
ABSOLUTE, RELATIVE = 1e-8, 1e-5


def batched_reverse(experiment: Experiment) -> Iterator[Finding]:
    """Two cotangents together against each alone."""
    problem = experiment.problem
    if problem.codomain.leaves:
        V = [problem.signed(problem.codomain.size) for _ in range(TOGETHER)]
        sides = _Sides(problem.codomain, problem.domain)
        yield _compare("batched reverse", V, problem.reverse.pull_together, problem.reverse.pull, sides)


def batched_forward(experiment: Experiment) -> Iterator[Finding]:
    """Two tangents together against each alone."""
    problem = experiment.problem
    if problem.codomain.leaves:
        U = [problem.signed(problem.domain.size) for _ in range(TOGETHER)]
        sides = _Sides(problem.domain, problem.codomain)
        yield _compare("batched forward", U, problem.forward.push_together, problem.forward.push, sides)


@dataclass(frozen=True, slots=True)
class _Sides:
    """The space that directions come from and the one that derivatives arrive in."""

    source: Space
    target: Space


Together = Callable[[Sequence[Array]], list[Array]]
Alone = Callable[[Array], Array]


def _compare(check: str, directions: Sequence[Array], together: Together, alone: Alone, sides: _Sides) -> Finding:
    expected = [alone(direction) for direction in directions]
    try:
        found = together(directions)
    except RuntimeError as error:
        return Finding(
            check,
            Verdict.FAIL,
            "the derivative cannot be computed for several directions at once",
            facts={"raised": str(error)},
            advice="vmap must be able to run the derivative: avoid item(), in-place writes and random numbers in it.",
        )
    target = _differing(found, expected, sides.target)
    if target is None:
        return Finding(check, Verdict.PASS, "batched and single derivatives agree")
    # Which direction is it? Each leaf of the source alone; where none shows it, the first one is named.
    source = 0
    for leaf in range(len(sides.source.leaves)):
        alone_there = [_only(direction, sides.source.slice(leaf)) for direction in directions]
        here = _differing(together(alone_there), [alone(direction) for direction in alone_there], sides.target)
        if here is not None:
            source, target = leaf, here
            break
    output, input = (source, target) if check == "batched reverse" else (target, source)
    part = sides.target.slice(target)
    return Finding(
        check,
        Verdict.FAIL,
        f"the batched derivative for {sides.target.leaves[target].name} differs from the one computed alone",
        facts={
            "output": output,
            "input": input,
            "found": str([row[part] for row in found]),
            "expected": str([row[part] for row in expected]),
        },
        advice="Look at the vmap rule of the operations in the derivative.",
    )


def _only(direction: Array, part: slice) -> Array:
    xp = namespace(direction)
    return xp.concat([xp.zeros_like(direction[: part.start]), direction[part], xp.zeros_like(direction[part.stop :])])


def _differing(found: Sequence[Array], expected: Sequence[Array], space: Space) -> int | None:
    """The first leaf in which the two differ."""
    for leaf in range(len(space.leaves)):
        part = space.slice(leaf)
        if not all(_close(one[part], other[part]) for one, other in zip(found, expected, strict=True)):
            return leaf
    return None


def _close(one: Array, other: Array) -> bool:
    xp = namespace(one)
    return bool(xp.all((xp.abs(one - other) <= ABSOLUTE + RELATIVE * xp.abs(other)) | (one == other)))
