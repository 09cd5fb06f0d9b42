"""Do derivatives have the layout, dtype, device and size of what they are derivatives of?"""

from __future__ import annotations

from collections.abc import Iterator

from gradvet.core.context import Context
from gradvet.core.problem import Misfit
from gradvet.core.results import Finding, Verdict
from gradvet.core.spaces import Space


def metadata(context: Context) -> Iterator[Finding]:
    """The gradients that a backward pass returns."""
    if context.problem.codomain.leaves:
        yield from _findings("metadata", context.at_zero.misfits, context.problem.domain)


def drop_in_metadata(context: Context) -> Iterator[Finding]:
    """The same for the cotangents of the tolerance policy."""
    if context.problem.codomain.leaves:
        yield from _findings("metadata", context.projections.at_zero.misfits, context.problem.domain)


def tangent_types(context: Context) -> Iterator[Finding]:
    """The tangents of the outputs, where the dtypes were asked to be exact."""
    problem = context.problem
    if not context.options.exact_types or not problem.domain.size:
        return
    tangent = problem.tangent(context.projections.unit_direction(0) * context.options.step)
    yield from _findings("tangent types", tangent.misfits, problem.codomain)


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
