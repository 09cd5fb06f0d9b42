"""Is the gradient the same when the forward pass is run again for the backward pass?"""

from __future__ import annotations

from collections.abc import Iterator

from gradvet.core.likeness import gap_between
from gradvet.core.results import Finding, Verdict
from gradvet.core.spaces import Array
from gradvet.core.trial import Trial


def checkpoint(trial: Trial) -> Iterator[Finding]:
    """Under recomputation, as memory-saving training does it."""
    subject = trial.subject
    if not subject.codomain.size or not subject.domain.size:
        return
    v, expected = trial.pulled
    gap = gap_between(trial, v, subject.circumstances.checkpointed(v), expected)
    if gap is not None and not _is_stateful(trial, v, expected):
        words = f"torch's own operators are not to be trusted under torch.utils.checkpoint here, {gap}"
        trial.record.note(words)
        yield Finding("checkpoint", Verdict.SKIPPED, words)
    elif gap is not None:
        yield Finding(
            "checkpoint",
            Verdict.FAIL,
            f"recomputing the forward pass changes the gradient, {gap}",
            advice="Look for state that a call leaves behind: counters, caches, random numbers of its own.",
        )
    else:
        yield Finding("checkpoint", Verdict.PASS, "recomputation does not change the gradient")


def _is_stateful(trial: Trial, v: Array, expected: Array) -> bool:
    """Whether the function has a part in it: by rules of its own, or because a second call differs from the first."""
    subject = trial.subject
    again = subject.pulled_at(subject.zeros(subject.domain.size), v)
    return subject.circumstances.has_own_rules() or gap_between(trial, v, again, expected) is not None
