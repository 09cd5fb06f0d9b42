"""Is the gradient added to what `.grad` held before?"""

from __future__ import annotations

from collections.abc import Iterator

from gradvet.core.likeness import gap_between
from gradvet.core.results import Finding, Verdict
from gradvet.core.trial import Trial


def accumulation(trial: Trial) -> Iterator[Finding]:
    """`backward()` into gradients that are there already."""
    subject = trial.subject
    if not subject.codomain.size or not subject.domain.size:
        return
    v, expected = trial.pulled
    gap = None
    # Where the graph of the point does not show it, later calls may have spoiled that: then a fresh one.
    for found in subject.circumstances.accumulated(v):
        # What is added to 2 is known only to the roundoff of 2.
        gap = gap_between(trial, v, found, (expected + 2.0) - 2.0)
        if gap is None or abs(gap.found - gap.expected) <= 64.0 * subject.epsilon * (2.0 + abs(gap.expected)):
            yield Finding("accumulation", Verdict.PASS, "gradients add up in `.grad`")
            return
    if gap is not None:
        yield Finding(
            "accumulation",
            Verdict.FAIL,
            f"`.grad` does not gain the gradient when it held something before, {gap}",
            advice="Backward must return the gradient and leave `.grad` alone.",
        )
