"""Differences between two runs of the same cases, worst first."""

from __future__ import annotations

import pytest

from gradvet.cli.compare import Change, differences
from gradvet.core.problem import Cost
from gradvet.core.results import Finding, Report, Verdict
from gradvet.suite import CaseResult, Status


def result(
    name: str, verdict: Verdict = Verdict.PASS, resolution: float | None = 1e-6, seconds: float = 0.1
) -> CaseResult:
    finding = Finding("reverse", verdict, f"the headline of {name}")
    report = Report(name, (finding,), Cost(), seconds, seed=0, miss=0.0, resolution=resolution)
    return CaseResult(name, report, seconds=seconds)


def dead(name: str) -> CaseResult:
    return CaseResult.of_error(name, Status.DIED, "was ended by SIGSEGV")


PASS, FAIL, UNSURE = (result("a", verdict) for verdict in (Verdict.PASS, Verdict.FAIL, Verdict.INCONCLUSIVE))


@pytest.mark.parametrize(
    ("old", "new", "change"),
    [
        (PASS, FAIL, Change.NEWLY_FAILING),
        (UNSURE, FAIL, Change.NEWLY_FAILING),
        (dead("a"), FAIL, Change.NEWLY_FAILING),
        (FAIL, PASS, Change.NEWLY_PASSING),
        (dead("a"), PASS, Change.NEWLY_PASSING),
        (PASS, UNSURE, Change.NEWLY_INCONCLUSIVE),
        (PASS, dead("a"), Change.NEWLY_ERROR),
        (PASS, result("a", resolution=2e-5), Change.LOST_RESOLUTION),
        (PASS, result("a", resolution=None), Change.LOST_RESOLUTION),
        (PASS, result("a", seconds=0.3), Change.SLOWER),
    ],
)
def test_change_is_named(old: CaseResult, new: CaseResult, change: Change) -> None:
    assert list(differences([old], [new])) == [change]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (PASS, PASS),
        (FAIL, FAIL),
        (dead("a"), dead("a")),
        (PASS, result("a", resolution=5e-6)),
        (PASS, result("a", resolution=1e-9)),
        (PASS, result("a", seconds=0.01)),
        (result("a", seconds=0.001), result("a", seconds=0.09)),
        (result("a", seconds=10.0), result("a", seconds=14.0)),
    ],
)
def test_unchanged_case_is_not_listed(old: CaseResult, new: CaseResult) -> None:
    assert differences([old], [new]) == {}


def test_cases_of_one_run_alone_are_named_and_a_new_failure_is_a_failure() -> None:
    old = [result("kept"), result("gone")]
    new = [result("kept"), result("added"), result("wrong", Verdict.FAIL)]
    assert [(change, *cases) for change, cases in differences(old, new).items()] == [
        (Change.NEWLY_FAILING, "wrong"),
        (Change.GONE, "gone"),
        (Change.ADDED, "added"),
    ]


def test_worst_comes_first_with_its_reason() -> None:
    old = [result(name) for name in "abc"]
    new = [
        result("a", seconds=9.0),
        result("b", Verdict.FAIL),
        CaseResult.of_error("c", Status.DIED, "was ended by SIGABRT"),
    ]
    assert [(change, *cases.values()) for change, cases in differences(old, new).items()] == [
        (Change.NEWLY_FAILING, "reverse: the headline of b"),
        (Change.NEWLY_ERROR, "died: was ended by SIGABRT"),
        (Change.SLOWER, "0.1 s to 9 s"),
    ]
