"""Is the value the same whether or not a derivative is recorded?"""

from __future__ import annotations

from collections.abc import Iterator

from gradvet.core.arithmetic import namespace, peak
from gradvet.core.results import Finding, Verdict
from gradvet.core.trial import Trial

FORGIVEN = 64.0
"""Roundoffs, relative to the largest value: with and without recording, other kernels may run."""

UNCHANGED = Finding("values", Verdict.PASS, "the value does not depend on grad mode")


def values(trial: Trial) -> Iterator[Finding]:
    """The function with and without grad mode."""
    subject = trial.subject
    if not subject.codomain.size:
        return
    expected = subject.value[: subject.codomain.size]
    found = subject.circumstances.without_grad_mode()
    if subject.equal(found, expected):
        yield UNCHANGED
        return
    xp = namespace(found)
    gap = xp.abs(found - expected)
    wrong = ~(gap <= FORGIVEN * subject.epsilon * peak(expected) + 16.0 * float(xp.max(trial.wobble))) & ~(
        (found == expected) | (xp.isnan(found) & xp.isnan(expected))
    )
    if bool(xp.any(wrong)):
        row = int(xp.argmax(xp.astype(wrong, xp.int64)))
        yield Finding(
            "values",
            Verdict.FAIL,
            f"{subject.codomain.locate(row)} is {float(found[row]):.10g} without grad mode and "
            f"{float(expected[row]):.10g} with it",
            facts={"found": float(found[row]), "expected": float(expected[row])},
            advice="Look for a branch on requires_grad or grad mode, or for two implementations that do not agree.",
        )
    else:
        yield UNCHANGED
