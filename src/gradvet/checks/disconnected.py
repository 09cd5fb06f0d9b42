"""Beside outputs that have a derivative: is there one without that varies all the same?"""

from __future__ import annotations

from collections.abc import Iterator

from gradvet.core.arithmetic import namespace
from gradvet.core.results import Finding, Verdict
from gradvet.core.trial import Trial

STEP = 1e-3
ROUNDOFFS = 64.0


def detached(trial: Trial) -> Iterator[Finding]:
    """It may be meant so, or a graph may have been lost: nobody but the user can tell."""
    subject = trial.subject
    rows = subject.codomain.size
    if not subject.codomain.leaves or not subject.silent.size or not subject.domain.size:
        return
    xp = namespace(subject.value)
    before = subject.value[rows:]
    change = xp.abs(subject.displaced(STEP * trial.direction_of_all()).values[rows:] - before)
    moved = change > ROUNDOFFS * subject.epsilon * xp.abs(before)
    names = [
        leaf.name
        for number, leaf in enumerate(subject.silent.leaves)
        if bool(xp.any(moved[subject.silent.slice(number)]))
    ]
    if names:
        trial.record.note(f"{', '.join(names)} varies with the inputs but has no derivative: is that meant so?")
        yield Finding(
            "detached",
            Verdict.SKIPPED,
            f"{', '.join(names)} varies with the inputs but has no derivative, so nothing of it was checked",
            facts={"outputs": names},
            advice="If it is meant so, leave it out of the results; if not, look for a detach or a no_grad block.",
        )
    else:
        yield Finding("detached", Verdict.PASS, "outputs without derivative do not vary")
