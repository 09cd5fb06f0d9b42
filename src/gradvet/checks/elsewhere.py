"""Is the derivative also right at a point that the user did not think of?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gradvet.checks.slopes import failure
from gradvet.core.arithmetic import all_finite, namespace
from gradvet.core.certainty import is_certain, obstacle
from gradvet.core.judgement import Reason
from gradvet.core.modes import FORWARD, REVERSE, Mode
from gradvet.core.outcome import Outcome
from gradvet.core.results import Finding, Verdict
from gradvet.core.screening import COARSE, is_quiet
from gradvet.core.scrutiny import Scrutiny
from gradvet.core.survey import Unsupported
from gradvet.core.trial import Trial
from gradvet.errors import DerivativeError, RefusalError

MODES: Mapping[str, Mode] = {"reverse": REVERSE, "forward": FORWARD}


def look_at(trial: Trial, mode: str) -> Finding:
    """One point by one mode: a short look, and the whole scrutiny where that leaves doubt.

    FAIL only where it is beyond doubt; what cannot be decided is INCONCLUSIVE, and a point at which the function itself
    is not finite is SKIPPED.
    """
    subject, trial.coarse, trial.zeros_are_exact = trial.subject, COARSE, True
    if not all_finite(subject.value):
        return Finding(mode, Verdict.SKIPPED, "values not finite")
    if not subject.codomain.leaves:
        return Finding(mode, Verdict.SKIPPED, "no derivative")
    if not subject.codomain.size or not subject.domain.size:
        subject.reverse.pull(subject.zeros(subject.codomain.size))
        return Finding(mode, Verdict.PASS, "there is no entry to compare")
    if is_quiet(trial, MODES[mode]):
        return Finding(mode, Verdict.PASS, "agrees")
    if (reason := obstacle(trial)) is not None:
        return Finding(mode, Verdict.INCONCLUSIVE, reason.value)
    outcome = Scrutiny(trial, MODES[mode]).outcome()
    if outcome.verdict is Verdict.FAIL and not is_certain(trial, outcome):
        outcome = replace(outcome, verdict=Verdict.INCONCLUSIVE)
    if outcome.verdict is not Verdict.FAIL:
        return Finding(mode, outcome.verdict, outcome.reason.value)
    excuse = _excuse(trial, outcome)
    return Finding(mode, Verdict.INCONCLUSIVE, excuse) if excuse else failure(trial, MODES[mode], outcome)


def glance_at(trial: Trial, mode: str) -> Finding:
    """Is the gradient finite? Where it is not, the whole question.

    Enough where all rules are the framework's own: any number that they give at kinks and ties is convention.
    """
    subject = trial.subject
    if not subject.codomain.size or not subject.domain.size:
        return look_at(trial, mode)
    xp, finite = namespace(subject.value), all_finite(subject.value)
    if finite and not bool(xp.any(trial.look(subject.signed(subject.codomain.size)).broken)):
        return Finding(mode, Verdict.PASS, "finite")
    return look_at(trial, mode)


def raising(trial: Trial, mode: str, error: Exception, unsupported: Unsupported) -> Finding:
    """A derivative of the user's own that raises at inputs that the function accepts is wrong there."""
    sizes = [leaf.coordinates.size for leaf in (*trial.subject.domain.leaves, *trial.subject.codomain.leaves)]
    words = (str(error).strip().splitlines() or [""])[0][:160]
    if isinstance(error, DerivativeError) and all(sizes):
        return Finding(mode, Verdict.FAIL, f"{words}, though the forward pass accepts these inputs")
    if isinstance(error, RefusalError) or unsupported(error):
        return Finding(mode, Verdict.SKIPPED, "the operators have no derivative there")
    return Finding(mode, Verdict.INCONCLUSIVE, f"could not be carried out: {type(error).__name__}: {words}")


def _excuse(trial: Trial, outcome: Outcome) -> str:
    """What the framework itself does at such points, by convention or documented limits, is not the user's mistake."""
    circumstances = trial.subject.circumstances
    if outcome.reason is Reason.NOT_FINITE:
        if circumstances.decomposes():
            return "equal eigenvalues or singular values"
        return "the framework's own operator has no finite derivative" if circumstances.calls_one_operator() else ""
    if not circumstances.is_stock() or circumstances.branches_smoothly() or outcome.entry is None:
        return ""
    entry = outcome.entry
    return (
        f"the framework's own operators together give {entry.derivative:.4g} for d {entry.output} / d {entry.input}, "
        f"where the slope is {entry.numerical:.4g}"
    )
