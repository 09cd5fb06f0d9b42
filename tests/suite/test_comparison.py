"""Two runs of the same cases: what changed is named, the worst first, and what did not change is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gradvet.core.problem import Cost
from gradvet.core.results import Finding, Report, Verdict
from gradvet.suite.comparison import Change, differences
from gradvet.suite.job import Ending, Outcome


def outcome(
    name: str, verdict: Verdict = Verdict.PASS, resolution: float | None = 1e-6, seconds: float = 0.1
) -> Outcome:
    finding = Finding("reverse", verdict, f"the headline of {name}")
    report = Report(name, (finding,), Cost(), seconds, seed=0, miss=0.0, resolution=resolution)
    return Outcome(name, Ending.REPORTED, report, seconds=seconds)


def dead(name: str) -> Outcome:
    return Outcome(name, Ending.DIED, words="was ended by SIGSEGV")


PASS, FAIL, UNSURE = (outcome("a", verdict) for verdict in (Verdict.PASS, Verdict.FAIL, Verdict.INCONCLUSIVE))


@pytest.mark.parametrize(
    ("old", "new", "change"),
    [
        (PASS, FAIL, Change.NEWLY_FAILING),
        (UNSURE, FAIL, Change.NEWLY_FAILING),
        (dead("a"), FAIL, Change.NEWLY_FAILING),
        (FAIL, PASS, Change.NEWLY_PASSING),
        (dead("a"), PASS, Change.NEWLY_PASSING),
        (PASS, UNSURE, Change.NEWLY_INCONCLUSIVE),
        (PASS, dead("a"), Change.NEWLY_UNFINISHED),
        (PASS, outcome("a", resolution=2e-5), Change.LOST_RESOLUTION),
        (PASS, outcome("a", resolution=None), Change.LOST_RESOLUTION),
        (PASS, outcome("a", seconds=0.3), Change.SLOWER),
    ],
)
def test_change_is_named(old: Outcome, new: Outcome, change: Change) -> None:
    assert [one.change for one in differences([old], [new])] == [change]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (PASS, PASS),
        (FAIL, FAIL),
        (dead("a"), dead("a")),
        (PASS, outcome("a", resolution=5e-6)),
        (PASS, outcome("a", resolution=1e-9)),
        (PASS, outcome("a", seconds=0.01)),
        (outcome("a", seconds=0.001), outcome("a", seconds=0.09)),
        (outcome("a", seconds=10.0), outcome("a", seconds=14.0)),
    ],
)
def test_what_stays_is_not_mentioned(old: Outcome, new: Outcome) -> None:
    assert differences([old], [new]) == []


def test_cases_of_one_run_alone_are_named_and_a_new_failure_is_a_failure() -> None:
    old = [outcome("kept"), outcome("gone")]
    new = [outcome("kept"), outcome("added"), outcome("wrong", Verdict.FAIL)]
    assert [(one.change, one.name) for one in differences(old, new)] == [
        (Change.NEWLY_FAILING, "wrong"),
        (Change.GONE, "gone"),
        (Change.ADDED, "added"),
    ]


def test_worst_comes_first_with_its_reason() -> None:
    old = [outcome(name) for name in "abc"]
    new = [outcome("a", seconds=9.0), outcome("b", Verdict.FAIL), replace(dead("c"), words="was ended by SIGABRT")]
    assert [(one.change, one.words) for one in differences(old, new)] == [
        (Change.NEWLY_FAILING, "reverse: the headline of b"),
        (Change.NEWLY_UNFINISHED, "died: was ended by SIGABRT"),
        (Change.SLOWER, "0.1 s to 9 s"),
    ]
