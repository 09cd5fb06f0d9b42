"""Does the derivative treat a cotangent or tangent that is missing as zero?"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

from gradvet.core.arithmetic import namespace
from gradvet.core.experiment import Experiment
from gradvet.core.results import Finding, Verdict

ABSOLUTE, RELATIVE = 1e-8, 1e-5


def undefined_cotangents(experiment: Experiment) -> Iterator[Finding]:
    """All outputs without a cotangent, then each alone while the others get zeros: the gradient must be zero."""
    outputs = len(experiment.problem.codomain.leaves)
    if not outputs:
        return
    everything = tuple(range(outputs))
    for missing in [everything] + ([(one,) for one in everything] if outputs > 1 else []):
        yield _without(experiment, missing)


def _without(experiment: Experiment, missing: Sequence[int]) -> Finding:
    problem = experiment.problem
    names = ", ".join([problem.codomain.leaves[output].name for output in missing])
    try:
        gradient = problem.reverse.pull_undefined(missing)
    except RuntimeError as error:
        return Finding(
            "undefined cotangents",
            Verdict.FAIL,
            f"the derivative fails when there is no cotangent for {names}: {error}",
            facts={"raised": str(error)},
            advice="A missing cotangent arrives as None (or an undefined tensor) and counts as zero.",
        )
    if gradient is not None and not problem.vanishes(gradient):
        return Finding(
            "undefined cotangents",
            Verdict.FAIL,
            f"the gradient is not zero although there is no cotangent for {names} and zeros for the rest",
            advice="A missing cotangent counts as zero.",
        )
    return _counting_as_zero(names)


@functools.lru_cache(maxsize=64)
def _counting_as_zero(names: str) -> Finding:
    return Finding("undefined cotangents", Verdict.PASS, f"no cotangent for {names} counts as zero")


def undefined_tangents(experiment: Experiment) -> Iterator[Finding]:
    """One input without a tangent must do what a tangent of zeros does."""
    problem = experiment.problem
    if not problem.codomain.size:
        return
    u = problem.signed(problem.domain.size)
    xp = namespace(u)
    for leaf, values in enumerate(problem.domain.leaves):
        part = problem.domain.slice(leaf)
        silenced = xp.concat([u[: part.start], xp.zeros_like(u[part]), u[part.stop :]])
        expected = problem.forward.push(silenced)
        found = problem.forward.push_undefined(silenced, leaf)
        wrong = ~(xp.abs(found - expected) <= ABSOLUTE + RELATIVE * xp.abs(expected))
        wrong = wrong & (found == found) & (expected == expected)
        if bool(xp.any(wrong)):
            output = problem.codomain.locate(int(xp.argmax(xp.astype(wrong, xp.int64))))
            yield Finding(
                "undefined tangents",
                Verdict.FAIL,
                f"{output.name} differs between a missing tangent and a zero tangent of {values.name}",
                facts={"output": output.leaf, "input": leaf, "found": str(found), "expected": str(expected)},
                advice="A missing tangent counts as zero.",
            )
