"""Does the gradient depend on how the cotangent lies in memory?"""

from __future__ import annotations

from collections.abc import Iterator

from gradvet.core.likeness import gap_between
from gradvet.core.results import Finding, Verdict
from gradvet.core.trial import Trial

ADVICE = "Call contiguous() on the cotangent, or use its strides: torch hands over expanded and transposed ones."


def cotangents(trial: Trial) -> Iterator[Finding]:
    """Transposed, sliced, offset, channels-last and expanded cotangents with the same values."""
    subject = trial.subject
    if not subject.codomain.size or not subject.domain.size:
        return
    v, expected = trial.pulled
    looks = {name: (found, expected) for name, found in subject.circumstances.cotangent_layouts(v).items()}
    constant, of_constant = trial.pulled_evenly
    expanded = subject.circumstances.expanded_cotangent(constant)
    if expanded is not None:
        looks["expanded"] = expanded, of_constant
    for name, (found, reference) in looks.items():
        gap = gap_between(trial, v, found, reference)
        if gap is not None:
            yield Finding(
                "cotangents",
                Verdict.FAIL,
                f"the gradient differs for a cotangent with the same values that is {name} in memory, {gap}",
                facts={"layout": name},
                advice=ADVICE,
            )
            return
    yield Finding("cotangents", Verdict.PASS, f"cotangents that are {', '.join(looks)} give the same gradient")
