"""Do the same forward and the same backward pass, run again, give the same numbers?"""

from __future__ import annotations

from collections.abc import Iterator

from gradvet.core.arithmetic import namespace, peak
from gradvet.core.results import Finding, Verdict
from gradvet.core.trial import Trial

NOISE = 1e3
"""Up to so many roundoffs of the largest entry, a difference is the order of a sum; beyond, a race or fresh numbers."""


def determinism(trial: Trial) -> Iterator[Finding]:
    """The forward pass from one random state, the backward pass from whatever state there is."""
    subject = trial.subject
    if not subject.codomain.size or not subject.domain.size:
        return
    xp = namespace(subject.value)
    wobble = float(xp.max(trial.wobble))
    if wobble > 0.0:
        trial.record.note(
            f"two evaluations at the same point and random state differ by {wobble:.2g}: the function draws on "
            "something beyond torch's, Python's and NumPy's generators, or its sums have no fixed order"
        )
    v, first = trial.pulled
    second = third = subject.circumstances.again(v)
    if not subject.circumstances.is_stock():
        # Twice in a row: what goes wrong every other time shows itself then. The framework's own rules keep no count.
        third = subject.circumstances.again(v)
    gap, spread = trial.nothing, 0.0
    if not subject.equal(first, second) or not subject.equal(second, third):
        gap = xp.maximum(xp.abs(second - first), xp.abs(third - second))
        gap = xp.where(gap > 0.0, gap, xp.zeros_like(gap))
        spread = float(xp.max(gap))
    facts = {"forward": wobble, "backward": spread}
    if spread and spread > NOISE * subject.epsilon * peak(first):
        place = subject.domain.locate(int(xp.argmax(gap)))
        yield Finding(
            "determinism",
            Verdict.FAIL,
            f"two backward passes with the same cotangent differ by {spread:.3g} at {place}",
            facts=facts,
            advice="Look for a race, uninitialised memory, state that backward uses up, or random numbers in it.",
        )
    elif wobble > 0.0:
        yield Finding("determinism", Verdict.PASS, "the function is random in itself", facts=facts)
    else:
        yield Finding("determinism", Verdict.PASS, "forward and backward passes are reproducible", facts=facts)
