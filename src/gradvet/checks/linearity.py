"""Is the backward pass linear in its cotangent, and zero at zero?"""

from __future__ import annotations

from collections.abc import Iterator

from gradvet.core.likeness import gap_between
from gradvet.core.results import Finding, Verdict
from gradvet.core.trial import Trial


def linearity(trial: Trial) -> Iterator[Finding]:
    """Jᵀ(-a/2 - b/4) against -Jᵀa/2 - Jᵀb/4, and Jᵀ0. What is even in the cotangent shows at a negative multiple."""
    subject = trial.subject
    if not subject.codomain.size or not subject.domain.size:
        return
    (a, of_a), (b, of_b) = trial.pulled, trial.pulled_evenly
    v = subject.representable(-0.5 * a - 0.25 * b)
    parts = -0.5 * of_a - 0.25 * of_b
    at_zero = trial.at_zero.gradient
    for name, found, expected in (
        ("a sum of cotangents does not give the sum of their gradients", subject.reverse.pull(v), parts),
        ("a zero cotangent does not give a zero gradient", at_zero, 0.0 * parts),
    ):
        gap = None if found is None else gap_between(trial, v, found, expected)
        if gap is not None:
            yield Finding(
                "linearity",
                Verdict.FAIL,
                f"{name}, {gap}",
                advice="The derivative must be multiplied by the incoming cotangent, and nothing may be added to it.",
            )
            return
    yield Finding("linearity", Verdict.PASS, "the gradient is linear in the cotangent")
