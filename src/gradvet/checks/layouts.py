"""Does the gradient depend on how the inputs lie in memory?"""

from __future__ import annotations

from collections.abc import Iterator

from gradvet.core.likeness import gap_between
from gradvet.core.results import Finding, Verdict
from gradvet.core.trial import Trial


def layouts(trial: Trial) -> Iterator[Finding]:
    """Transposed, sliced, offset and channels-last inputs with the same values."""
    subject = trial.subject
    if not subject.codomain.size or not subject.domain.size:
        return
    v, expected = trial.pulled
    known = {} if trial.shifted is None else {"offset": trial.shifted.gradient}
    found = subject.circumstances.input_layouts(v, known)
    for name, gradient in found.items():
        gap = gap_between(trial, v, gradient, expected)
        if gap is not None:
            yield Finding(
                "layouts",
                Verdict.FAIL,
                f"the gradient differs for inputs with the same values that are {name} in memory, {gap}",
                facts={"layout": name},
                advice="Call contiguous() on the inputs, or use their strides.",
            )
            return
    if found:
        yield Finding("layouts", Verdict.PASS, f"inputs that are {', '.join(found)} give the same gradient")
