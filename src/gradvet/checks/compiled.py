"""Does the compiled function have the values and gradients of the plain one?"""

from __future__ import annotations

from collections.abc import Iterator

from gradvet.core.arithmetic import namespace, peak
from gradvet.core.likeness import gap_between
from gradvet.core.results import Finding, Verdict
from gradvet.core.subject import Subject
from gradvet.core.survey import TrialCheck
from gradvet.core.trial import Trial

COTANGENTS = 2


def compiled_against(twin: Subject) -> TrialCheck:
    """The check of a trial against its compiled twin: values first, then gradients for random cotangents."""

    def compiled(trial: Trial) -> Iterator[Finding]:
        subject = trial.subject
        xp = namespace(subject.value)
        expected, found = (one.value[: one.codomain.size] for one in (subject, twin))
        top = peak(expected)
        wrong = ~(xp.abs(found - expected) <= top * subject.epsilon**0.5) & xp.isfinite(expected)
        if bool(xp.any(wrong)):
            row = int(xp.argmax(xp.astype(wrong, xp.int64)))
            numbers = f"{float(found[row]):.10g} instead of {float(expected[row]):.10g}"
            headline = f"the compiled function differs at {subject.codomain.locate(row)}: {numbers}"
            yield Finding("compile", Verdict.FAIL, headline)
            return
        for _ in range(COTANGENTS):
            v = subject.representable(subject.signed(subject.codomain.size))
            gap = gap_between(trial, v, twin.reverse.pull(v), subject.reverse.pull(v))
            if gap is not None:
                headline = f"the gradient of the compiled function differs, {gap}"
                advice = "Look for state that tracing freezes, and for a fake implementation that does not fit."
                yield Finding("compile", Verdict.FAIL, headline, advice=advice)
                return
        yield Finding("compile", Verdict.PASS, "the compiled function has the same values and gradients")

    return compiled
