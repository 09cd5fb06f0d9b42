"""Is the gradient in low precision the one in double precision, as far as its roundoff allows?"""

from __future__ import annotations

from collections.abc import Iterator

from gradvet.core.arithmetic import finite_part, namespace, peak
from gradvet.core.noise import grain, roundoffs
from gradvet.core.results import Finding, Mismatch, Verdict
from gradvet.core.spaces import Array, Location
from gradvet.core.survey import TrialCheck
from gradvet.core.trial import Trial

RESPONSES = 4.0
"""A gradient may be off by so many times its response to changes of the inputs by one roundoff."""

ROUNDOFFS = 4.0
"""And by so many roundoffs of the largest entry of its input, where it does not respond at all."""

CERTAIN = 4.0
"""Beyond so many times that it is wrong; between, nobody can tell."""

MATERIAL = 0.4
"""Nor is it wrong below roundoff to this power, relative to the entry: a formula may lose half its digits."""

JITTERS = 3


def precision_against(shadow: Trial) -> TrialCheck:
    """The check of a trial in low precision against its shadow."""

    def precision(trial: Trial) -> Iterator[Finding]:
        yield _compared(trial, shadow)

    return precision


def _compared(trial: Trial, shadow: Trial) -> Finding:
    subject, domain = trial.subject, trial.subject.domain
    if not domain.size:
        return Finding("precision", Verdict.PASS, "there is no gradient to compare")
    xp = namespace(subject.point)
    worst: tuple[float, int, float, float, float] = (0.0, 0, 0.0, 0.0, 0.0)
    rows = subject.codomain.size
    if bool(xp.any(~xp.isfinite(subject.value[:rows]) & xp.isfinite(shadow.subject.value[:rows]))):
        return Finding("precision", Verdict.INCONCLUSIVE, "the values themselves overflow in this precision")
    # Signs at random, and ones, whose sums do not cancel.
    for draw in (subject.signed(rows), subject.zeros(rows) + 1.0):
        v = subject.representable(draw)
        found, expected = subject.reverse.pull(v), shadow.subject.reverse.pull(v)
        allowed = _allowed(trial, shadow, v, found, expected)
        excess = xp.abs(found - expected) / allowed
        both = ~xp.isfinite(found) & ~xp.isfinite(expected)
        overflow = ~xp.isfinite(found) & (xp.abs(expected) > 0.1 / subject.epsilon)
        excess = xp.where(both | overflow, xp.zeros_like(excess), excess)
        excess = xp.where(xp.isnan(excess), xp.full_like(excess, float("inf")), excess)
        index = int(xp.argmax(excess))
        if float(excess[index]) > worst[0]:
            worst = float(excess[index]), index, float(found[index]), float(expected[index]), float(allowed[index])
    ratio, index, low, high, limit = worst
    facts = {"ratio": ratio, "epsilon": subject.epsilon}
    if ratio <= 1.0:
        return Finding("precision", Verdict.PASS, "the gradient is as good as its precision allows", facts=facts)
    place = domain.locate(index)
    words = f"{low:.6g} instead of {high:.6g} at {place}, {ratio:.1f} times what roundoff explains"
    if ratio <= CERTAIN or abs(low - high) <= subject.epsilon**MATERIAL * abs(high):
        return Finding("precision", Verdict.INCONCLUSIVE, f"the gradient in low precision is {words}", facts=facts)
    mismatch = Mismatch(Location(0, "a combination of outputs", ""), place, low, high, limit, limit)
    advice = "The formula is right in float64: look for sums, products or intermediate results kept in low precision."
    headline = f"the gradient in low precision is {words}"
    return Finding("precision", Verdict.FAIL, headline, (mismatch,), facts, advice)


def _allowed(trial: Trial, shadow: Trial, v: Array, found: Array, expected: Array) -> Array:
    """For each entry: the response of either gradient to one roundoff of the inputs, and a few roundoffs."""
    subject, domain = trial.subject, trial.subject.domain
    xp = namespace(v)
    response = xp.zeros_like(expected)
    for _ in range(JITTERS):
        tiny = roundoffs(trial)
        moved = shadow.subject.pulled_at(tiny, v), subject.pulled_at(tiny, v)
        for gradient, base in zip(moved, (expected, found), strict=True):
            response = xp.maximum(response, finite_part(xp.abs(gradient - base)))
    parts = []
    for number in range(len(domain.leaves)):
        part = domain.slice(number)
        few = ROUNDOFFS * (subject.epsilon * peak(expected[part]) + grain(trial, v, part))
        parts.append(xp.full_like(expected[part], RESPONSES * peak(response[part]) + few + 1e-300))
    return xp.concat(parts)
