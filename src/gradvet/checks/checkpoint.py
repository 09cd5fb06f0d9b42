"""Is the gradient the same when the forward pass is run again for the backward pass?"""

from __future__ import annotations

from collections.abc import Iterator

from gradvet.core.likeness import gap_between
from gradvet.core.results import Finding, Verdict
from gradvet.core.trial import Trial


def checkpoint(trial: Trial) -> Iterator[Finding]:
    """Under recomputation, as memory-saving training does it."""
    subject = trial.subject
    if not subject.codomain.size or not subject.domain.size:
        return
    v = subject.representable(subject.signed(subject.codomain.size))
    gap = gap_between(trial, v, subject.circumstances.checkpointed(v), subject.reverse.pull(v))
    if gap is not None:
        yield Finding(
            "checkpoint",
            Verdict.FAIL,
            f"recomputing the forward pass changes the gradient, {gap}",
            advice="Look for state that a call leaves behind: counters, caches, random numbers of its own.",
        )
    else:
        yield Finding("checkpoint", Verdict.PASS, "recomputation does not change the gradient")
