"""Does another forward pass between forward and backward change the gradient?"""

from __future__ import annotations

from collections.abc import Iterator

from gradvet.core.likeness import gap_between
from gradvet.core.results import Finding, Verdict
from gradvet.core.trial import Trial


def interleaving(trial: Trial) -> Iterator[Finding]:
    """State that a later call overwrites shows itself here."""
    subject = trial.subject
    if not subject.codomain.size or not subject.domain.size:
        return
    if trial.interleaved.changed:
        return  # passes that write to their inputs disagree anyway, and the mutation is named
    v, _ = trial.pulled
    # Not the graph of the point: later calls may have spoiled it already.
    gap = gap_between(trial, v, trial.interleaved.gradient, trial.afresh.gradient)
    if gap is not None:
        yield Finding(
            "interleaving",
            Verdict.FAIL,
            f"a forward pass at other inputs before the backward pass changes the gradient, {gap}",
            advice="Save what backward needs in its own context, not in a global, a module or a shared workspace.",
        )
    else:
        yield Finding("interleaving", Verdict.PASS, "another forward pass in between changes nothing")
