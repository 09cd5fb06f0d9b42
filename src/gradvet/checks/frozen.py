"""Does every input get the same gradient when the others do not require one?"""

from __future__ import annotations

from collections.abc import Iterator

from gradvet.core.arithmetic import namespace
from gradvet.core.likeness import gap_between
from gradvet.core.results import Finding, Verdict
from gradvet.core.trial import Trial
from gradvet.errors import DerivativeError

MOST = 16
"""So many inputs are tried alone."""


def frozen(trial: Trial) -> Iterator[Finding]:
    """Each input alone, the others frozen."""
    subject = trial.subject
    domain = subject.domain
    if len(domain.leaves) < 2 or not subject.codomain.size:
        return
    v, expected = trial.pulled
    xp = namespace(expected)
    for number, leaf in enumerate(domain.leaves[:MOST]):
        part = domain.slice(number)
        try:
            alone = subject.circumstances.alone(number, v)
        except DerivativeError as error:
            headline = f"{error} (when only {leaf.name} requires grad)"
            yield Finding("frozen", Verdict.FAIL, headline, facts={"input": leaf.name})
            return
        except RuntimeError as error:
            headline = (
                f"the function cannot be called when only {leaf.name} requires grad: {str(error).splitlines()[0]}"
            )
            yield Finding("frozen", Verdict.SKIPPED, headline[:300], facts={"input": leaf.name})
            return
        found = xp.zeros_like(expected[part]) if alone is None else alone
        if subject.equal(found, expected[part]):
            continue
        whole = xp.concat([expected[: part.start], found, expected[part.stop :]])
        gap = gap_between(trial, v, whole, expected)
        if gap is not None:
            yield Finding(
                "frozen",
                Verdict.FAIL,
                f"the gradient of {leaf.name} changes when the other inputs do not require grad, {gap}",
                facts={"input": leaf.name},
                advice="Look at how backward uses needs_input_grad, and at what forward saves.",
            )
            return
    yield Finding("frozen", Verdict.PASS, "every input alone gets the gradient that it gets with the others")
