"""What torch makes of its own derivatives, asked once for each combination of its operators.

Under vmap or recomputation a graph of torch's own nodes shows nothing of the user's: whether its rules can be trusted
there is a matter of the operators, not of the numbers. The first function of each kind answers for the next ones.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import replace
from functools import partial

from gradvet.core.results import Finding, Verdict
from gradvet.core.survey import TrialCheck
from gradvet.core.trial import Trial

MOST = 4096
"""So many combinations are kept in mind; then the oldest are forgotten."""

_SEEN: dict[Hashable, tuple[Finding, ...]] = {}


def once_for_its_operators(name: str, check: TrialCheck) -> TrialCheck:
    """The check, or what it found when it first met these operators."""
    return partial(_recalled, name, check)


def forget() -> None:
    """Ask anew."""
    _SEEN.clear()


def _recalled(name: str, check: TrialCheck, trial: Trial) -> Iterator[Finding]:
    kind = (name, trial.subject.circumstances.operators(), trial.reversible)
    if kind in _SEEN:
        yield from map(_as_before, _SEEN[kind])
        return
    before = len(trial.record.notes)
    findings = tuple(check(trial))
    # What calls for a word names entries of this function, and is to be seen in the next one too.
    if len(trial.record.notes) == before and all(f.verdict in (Verdict.PASS, Verdict.SKIPPED) for f in findings):
        if len(_SEEN) >= MOST:
            del _SEEN[next(iter(_SEEN))]
        _SEEN[kind] = findings
    yield from findings


def _as_before(finding: Finding) -> Finding:
    if finding.verdict is not Verdict.PASS:
        return finding
    return replace(finding, headline=f"{finding.headline} (seen before for the same operators of torch's)")
