"""Is the derivative right at generated points too?"""

from __future__ import annotations

from collections.abc import Mapping

from gradvet.checks.jacobian import failure
from gradvet.core.confirmation import is_confirmed
from gradvet.core.context import Context
from gradvet.core.decision import Decision, Reason
from gradvet.core.line_test import screen_point
from gradvet.core.modes import FORWARD, REVERSE, Mode
from gradvet.core.problem import Distribution
from gradvet.core.results import Finding, Verdict
from gradvet.core.runner import IsUnsupported
from gradvet.core.slope_test import test_slopes
from gradvet.core.vectors import all_finite
from gradvet.errors import DerivativeError, UnsupportedError

MODES: Mapping[str, Mode] = {"reverse": REVERSE, "forward": FORWARD}


def test_point(context: Context, mode: str) -> Finding:
    """One generated point in one mode: the screen, then the full test where that leaves it open.

    FAIL only where it is beyond doubt; SKIPPED where the function itself is not finite.
    """
    problem = context.problem
    if not all_finite(problem.value):
        return Finding(mode, Verdict.SKIPPED, "values not finite")
    if not problem.codomain.leaves:
        return Finding(mode, Verdict.SKIPPED, "no derivative")
    if not problem.codomain.size or not problem.domain.size:
        problem.vjp(problem.zeros(problem.codomain.size))
        return Finding(mode, Verdict.PASS, "there is no entry to compare")
    if screen_point(context, MODES[mode]):
        return Finding(mode, Verdict.PASS, "agrees")
    decision, context = test_slopes(context, MODES[mode])
    if decision.verdict is Verdict.FAIL and not is_confirmed(context, decision):
        decision = decision.weakened(decision.reason)
    if decision.verdict is not Verdict.FAIL:
        return Finding(mode, decision.verdict, decision.reason.value)
    excuse = _excuse(context, decision)
    return Finding(mode, Verdict.INCONCLUSIVE, excuse) if excuse else failure(context, MODES[mode], decision)


def test_finite(context: Context, mode: str) -> Finding:
    """Whether the gradient is finite at a generated point; the full test where it is not.

    Enough for builtin rules: the numbers that they give at kinks and ties are conventions.
    """
    problem = context.problem
    has_entries = problem.codomain.size and problem.domain.size and all_finite(problem.value)
    if has_entries and context.cotangent(problem.random(problem.codomain.size, Distribution.SHARP)).nonfinite is None:
        return Finding(mode, Verdict.PASS, "finite")
    return test_point(context, mode)


def raising(context: Context, mode: str, error: Exception, is_unsupported: IsUnsupported) -> Finding:
    """The finding about an exception: a custom rule that raises at inputs that the function accepts is wrong there."""
    leaves = (*context.problem.domain.leaves, *context.problem.codomain.leaves)
    words = (str(error).strip().splitlines() or [""])[0][:160]
    if isinstance(error, DerivativeError) and all(leaf.coordinates.size for leaf in leaves):
        return Finding(mode, Verdict.FAIL, f"{words}, though the forward pass accepts these inputs")
    if isinstance(error, UnsupportedError) or is_unsupported(error):
        return Finding(mode, Verdict.SKIPPED, "the operators have no derivative there")
    return Finding(mode, Verdict.INCONCLUSIVE, f"the check raised {type(error).__name__}: {words}")


def _excuse(context: Context, decision: Decision) -> str:
    """Why a derivative is not blamed: builtin rules follow a convention or a documented limit, or values are rounded.

    Needed by the gallery cases of torch's own operators at ties and singular points, and by
    `test_kernel_that_rounds_to_the_dtype_of_its_tables_is_judged_in_that_precision`.
    """
    rules = context.problem.rules
    if decision.reason is Reason.NOT_FINITE:
        if rules.decomposes:
            return "equal eigenvalues or singular values"
        return "the framework's own operator has no finite derivative" if rules.calls_one_operator() else ""
    if not context.computes_in_io_dtype:
        return "values inside the function are rounded to a coarser format than that of the inputs"
    if not rules.are_builtin or rules.is_smooth_branch or decision.entry is None:
        return ""
    entry = decision.entry
    return (
        f"the framework's own operators together give {entry.derivative:.4g} for d {entry.output} / d {entry.input}, "
        f"where the slope is {entry.numerical:.4g}"
    )
