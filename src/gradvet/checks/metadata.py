"""Do derivatives have the layout, dtype, device and size of what they are derivatives of?"""

from __future__ import annotations

from collections.abc import Iterator

from gradvet.core.context import Context
from gradvet.core.problem import Misfit
from gradvet.core.results import Finding, Verdict
from gradvet.core.spaces import Space


def metadata(context: Context) -> Iterator[Finding]:
    """The gradients that a backward pass returns."""
    problem = context.problem
    if not problem.codomain.leaves:
        return
    yield from _findings("metadata", context.at_zero.misfits, problem.domain)


def tangent_types(context: Context) -> Iterator[Finding]:
    """The tangents of the outputs, where the dtypes were asked to be exact."""
    problem = context.problem
    if not context.options.exact_types or not problem.domain.size:
        return
    problem.jvp(context.projections.probe_directions(1)[0].displacement)
    yield from _findings("tangent types", problem.tangent_misfits(), problem.codomain)


def _findings(check: str, misfits: list[Misfit], space: Space) -> Iterator[Finding]:
    for misfit in misfits:
        name = space.leaves[misfit.leaf].name
        yield Finding(
            check,
            Verdict.FAIL,
            f"the derivative for {name} has {misfit.attribute} {misfit.found}, not {misfit.expected}",
            facts={
                "attribute": misfit.attribute,
                "found": misfit.found,
                "expected": misfit.expected,
                "kind": misfit.kind,
            },
        )
