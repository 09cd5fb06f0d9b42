"""Checks with tools of the framework: the registration of a custom operator, and the compiled function."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gradvet.core import thresholds
from gradvet.core.context import Context
from gradvet.core.gradient_match import gradient_mismatch
from gradvet.core.problem import Distribution, Problem
from gradvet.core.results import Finding, Verdict
from gradvet.core.runner import CheckFunction
from gradvet.core.vectors import first_true, namespace, peak

ABSENT = "no fake impl registered"
"""What is missing is needed for compilation and says nothing about gradients."""


def registered(complaints: Mapping[str, str]) -> Iterator[Finding]:
    """One finding for each test that complains, and one for all that do not."""
    sound = [name for name, complaint in complaints.items() if not complaint]
    if sound:
        headline = f"the operator's registration is sound: {', '.join(sound)}"
        yield Finding("opcheck", Verdict.PASS, headline, facts={"exercised": sound})
    for name, complaint in complaints.items():
        if ABSENT in complaint:
            yield Finding("opcheck", Verdict.SKIPPED, f"{name}: no fake implementation is registered")
        elif complaint:
            yield Finding(
                "opcheck",
                Verdict.FAIL,
                f"{name}: {complaint[:300]}",
                facts={"test": name, "complaint": complaint},
                advice="Look at the operator's schema, at mutates_args, and at how its derivative is registered.",
            )


COTANGENTS = 2


def compiled_against(other: Problem) -> CheckFunction:
    """The check of a problem against the compiled one: values first, then gradients for random cotangents."""

    def compiled(context: Context) -> Iterator[Finding]:
        problem = context.problem
        xp = namespace(problem.value)
        expected, found = (one.value[: one.codomain.size] for one in (problem, other))
        top = peak(expected)
        wrong = ~(xp.abs(found - expected) <= top * problem.eps**thresholds.PRECISION_SCALE_POWER) & xp.isfinite(
            expected
        )
        if bool(xp.any(wrong)):
            row = first_true(wrong)
            numbers = f"{float(found[row]):.10g} instead of {float(expected[row]):.10g}"
            headline = f"the compiled function differs at {problem.codomain.locate(row)}: {numbers}"
            yield Finding("compile", Verdict.FAIL, headline)
            return
        for _ in range(COTANGENTS):
            v = problem.representable(problem.random(problem.codomain.size, Distribution.NEAR_UNIT))
            gap = gradient_mismatch(context, v, other.vjp(v), problem.vjp(v))
            if gap is not None:
                headline = f"the gradient of the compiled function differs, {gap}"
                advice = "Look for state that tracing freezes, and for a fake implementation that does not fit."
                yield Finding("compile", Verdict.FAIL, headline, advice=advice)
                return
        yield Finding("compile", Verdict.PASS, "the compiled function has the same values and gradients")

    return compiled
