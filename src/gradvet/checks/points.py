"""Is the derivative also right at a point that the user did not think of?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gradvet.checks.jacobian import failure
from gradvet.core.confirmation import blocking_reason, is_confirmed
from gradvet.core.context import Context
from gradvet.core.decision import Decision, Reason
from gradvet.core.line_test import COARSE, screen_point
from gradvet.core.modes import FORWARD, REVERSE, Mode
from gradvet.core.results import Finding, Verdict
from gradvet.core.runner import Unsupported
from gradvet.core.slope_test import SlopeTest
from gradvet.core.vectors import all_finite, namespace
from gradvet.errors import DerivativeError, UnsupportedError

MODES: Mapping[str, Mode] = {"reverse": REVERSE, "forward": FORWARD}


def test_point(context: Context, mode: str) -> Finding:
    """One point by one mode: a short look, and the whole scrutiny where that leaves doubt.

    FAIL only where it is beyond doubt; what cannot be decided is INCONCLUSIVE, and a point at which the function itself
    is not finite is SKIPPED.
    """
    problem, context.coarse, context.zeros_are_exact = context.problem, COARSE, True
    if not all_finite(problem.value):
        return Finding(mode, Verdict.SKIPPED, "values not finite")
    if not problem.codomain.leaves:
        return Finding(mode, Verdict.SKIPPED, "no derivative")
    if not problem.codomain.size or not problem.domain.size:
        problem.vjp(problem.zeros(problem.codomain.size))
        return Finding(mode, Verdict.PASS, "there is no entry to compare")
    if screen_point(context, MODES[mode]):
        return Finding(mode, Verdict.PASS, "agrees")
    if (reason := blocking_reason(context)) is not None:
        return Finding(mode, Verdict.INCONCLUSIVE, reason.value)
    decision = SlopeTest(context, MODES[mode]).decision()
    if decision.verdict is Verdict.FAIL and not is_confirmed(context, decision):
        decision = replace(decision, verdict=Verdict.INCONCLUSIVE)
    if decision.verdict is not Verdict.FAIL:
        return Finding(mode, decision.verdict, decision.reason.value)
    excuse = _excuse(context, decision)
    return Finding(mode, Verdict.INCONCLUSIVE, excuse) if excuse else failure(context, MODES[mode], decision)


def test_finite(context: Context, mode: str) -> Finding:
    """Is the gradient finite? Where it is not, the whole question.

    Enough where all rules are the framework's own: any number that they give at kinks and ties is convention.
    """
    problem = context.problem
    if not problem.codomain.size or not problem.domain.size:
        return test_point(context, mode)
    xp, finite = namespace(problem.value), all_finite(problem.value)
    if finite and not bool(xp.any(context.cotangent(problem.signed(problem.codomain.size)).broken)):
        return Finding(mode, Verdict.PASS, "finite")
    return test_point(context, mode)


def raising(context: Context, mode: str, error: Exception, is_unsupported_error: Unsupported) -> Finding:
    """A derivative of the user's own that raises at inputs that the function accepts is wrong there."""
    lengths = [leaf.coordinates.size for leaf in (*context.problem.domain.leaves, *context.problem.codomain.leaves)]
    words = (str(error).strip().splitlines() or [""])[0][:160]
    if isinstance(error, DerivativeError) and all(lengths):
        return Finding(mode, Verdict.FAIL, f"{words}, though the forward pass accepts these inputs")
    if isinstance(error, UnsupportedError) or is_unsupported_error(error):
        return Finding(mode, Verdict.SKIPPED, "the operators have no derivative there")
    return Finding(mode, Verdict.INCONCLUSIVE, f"could not be carried out: {type(error).__name__}: {words}")


def _excuse(context: Context, decision: Decision) -> str:
    """What the framework itself does at such points, by convention or documented limits, is not the user's mistake."""
    variants = context.problem.variants
    if decision.reason is Reason.NOT_FINITE:
        if variants.decomposes():
            return "equal eigenvalues or singular values"
        return "the framework's own operator has no finite derivative" if variants.calls_one_operator() else ""
    if not variants.is_builtin() or variants.branches_smoothly() or decision.entry is None:
        return ""
    entry = decision.entry
    return (
        f"the framework's own operators together give {entry.derivative:.4g} for d {entry.output} / d {entry.input}, "
        f"where the slope is {entry.numerical:.4g}"
    )
