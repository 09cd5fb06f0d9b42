"""Is the derivative the slope of the function, as far as the differences themselves can tell?"""

from __future__ import annotations

import math
from collections.abc import Iterator

from gradvet.core.judgement import Reason
from gradvet.core.modes import FORWARD, REVERSE, Mode
from gradvet.core.outcome import Outcome
from gradvet.core.pinpoint import Entry
from gradvet.core.probes import Plan, miss_probability
from gradvet.core.results import Finding, Mismatch, Verdict
from gradvet.core.scrutiny import Scrutiny
from gradvet.core.spaces import Location
from gradvet.core.study import study
from gradvet.core.trial import Trial

MARGIN = 0.01
"""An error of a hundred times what the walks let pass is missed with the probability that is reported."""

WORTH_ASKING = 0.5
"""Errors up to this part of a typical entry are worth looking for."""

WORDS = {
    Reason.JUMP: "the function jumps at the point, so it has no derivative there",
    Reason.STAIRS: "the function moves in stairs, whose slope is zero",
    Reason.STEEP: "the function has a vertical tangent at the point",
    Reason.NOT_FINITE: "neither the derivative nor the function's slope is finite at the point",
    Reason.DOMAIN: "next to the point the function is not defined on either side",
    Reason.PRECISION: "the differences are too noisy to tell",
    Reason.KINK: "the function has kinks at the point that cannot be told apart",
    Reason.BUDGET: "the time that was given is spent",
}


def reverse(trial: Trial) -> Iterator[Finding]:
    """Backward passes against differences."""
    yield from _slopes(trial, REVERSE)


def forward(trial: Trial) -> Iterator[Finding]:
    """Dual numbers against differences."""
    yield from _slopes(trial, FORWARD)


def _slopes(trial: Trial, mode: Mode) -> Iterator[Finding]:
    subject = trial.subject
    if not subject.codomain.size or not subject.domain.size:
        yield Finding(mode.name, Verdict.PASS, "there is no entry to compare")
        return
    outcome = Scrutiny(trial, mode).outcome()
    if outcome.verdict is Verdict.FAIL:
        yield failure(trial, mode, outcome)
    elif outcome.verdict is Verdict.INCONCLUSIVE:
        headline = f"{WORDS.get(outcome.reason, outcome.reason.value)} ({mode.name} mode)"
        yield Finding(mode.name, Verdict.INCONCLUSIVE, headline, facts=_facts(outcome), advice=_advice(trial, outcome))
    else:
        miss = miss_probability(MARGIN, Plan(2, 2 if subject.codomain.size > 1 else None), spread=1.0)
        facts = {"reason": outcome.reason.value, "miss": miss, "resolution": dict(trial.record.resolution)}
        yield Finding(mode.name, Verdict.PASS, f"{mode.name} mode agrees with finite differences", facts=facts)


def failure(trial: Trial, mode: Mode, outcome: Outcome) -> Finding:
    """The finding about a mode that is wrong, with the entries around the wrong one."""
    entry = outcome.entry
    if outcome.reason is Reason.NOT_FINITE and entry is not None:
        headline = f"the derivative in {mode.name} mode is not finite at {entry.input}, where the function has a slope"
        advice = "Look for 0/0, 0·inf or a branch that is masked only after it was computed."
        return Finding(mode.name, Verdict.FAIL, headline, (_mismatch(trial, entry),), _facts(outcome), advice)
    headline = f"{mode.name} mode disagrees with finite differences"
    if outcome.reason is Reason.OUTSIDE:
        headline += ": the value is outside the slopes on both sides of a kink"
    if entry is None or entry.row < 0:
        return Finding(mode.name, Verdict.FAIL, headline, facts=_facts(outcome))
    found = study(trial, mode, entry)
    facts = {**_facts(outcome), "wrong": found.wrong, "entries": found.entries, **found.block, "sweep": entry.sweep}
    if found.entries > 1:
        headline += f" in at least {found.wrong} of the {found.entries} entries that were compared"
    mismatches = tuple(_mismatch(trial, e) for e in (entry, *found.others))
    return Finding(mode.name, Verdict.FAIL, headline, mismatches, facts, found.diagnosis)


def _mismatch(trial: Trial, entry: Entry) -> Mismatch:
    output = entry.output or Location(0, "a combination of outputs", "")
    return Mismatch(output, entry.input, entry.derivative, entry.numerical, entry.error, 1.5 * entry.error)


def _facts(outcome: Outcome) -> dict[str, object]:
    return {"reason": outcome.reason.value, "error": outcome.error, "bar": outcome.bar}


def _advice(trial: Trial, outcome: Outcome) -> str:
    if outcome.reason not in (Reason.PRECISION, Reason.KINK):
        return ""
    advice = "Try float64 inputs, inputs of moderate size, or a point away from kinks."
    known = trial.record.resolution
    seen = max((known.get(leaf.name, math.inf) for leaf in trial.subject.domain.leaves), default=math.inf)
    if not trial.options.power < seen <= WORTH_ASKING:
        return advice
    enough = math.ceil(110.0 * seen) / 100.0
    return f"What was seen agrees within {seen:.1g} of a typical entry; power={enough:g} asks for no more. {advice}"
