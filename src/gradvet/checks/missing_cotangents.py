"""Does the user's derivative treat a cotangent that is missing as zero?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gradvet.checks.undefined import undefined_cotangents
from gradvet.core.results import Finding, Verdict
from gradvet.core.trial import Trial


def missing_cotangents(trial: Trial) -> Iterator[Finding]:
    """As the classical check, except that what torch's own rules do is told and not blamed on the function."""
    for finding in undefined_cotangents(trial):
        if finding.verdict is Verdict.FAIL and not trial.subject.circumstances.has_own_rules():
            words = f"torch's own rules for these operators: {finding.headline}"
            trial.record.note(words)
            yield replace(finding, verdict=Verdict.SKIPPED, headline=words)
        else:
            yield finding
