"""`gradvet compare`: what changed between two runs, worst first, and the exit code of the worst change."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradvet.cli.compare import (
    ADDED,
    GONE,
    LOST_RESOLUTION,
    NEWLY_ERROR,
    NEWLY_FAILING,
    NEWLY_INCONCLUSIVE,
    NEWLY_PASSING,
    SLOWER,
    differences,
)
from gradvet.core.ledger import Cost
from gradvet.core.processes import Status
from gradvet.core.results import Finding, Report, Verdict
from gradvet.reports import json_files
from gradvet.suite import CaseResult
from gradvet.suite.store import Store
from tests.cli.command import exit_code
from tests.reports.samples import doubtful, failed, passed


def write(path: str, report: Report | None) -> None:
    """A store with one case, or a JSON file."""
    if path.endswith(".json"):
        json_files.save([] if report is None else [report], path)
        return
    Path(path).unlink(missing_ok=True)
    store = Store.create(path, {}, ["f"])
    store.add(CaseResult.of_error("f", Status.DIED, "SIGSEGV") if report is None else CaseResult("f", report))
    store.close()


@pytest.mark.parametrize("kind", ["db", "json"])
@pytest.mark.parametrize(
    ("old", "new", "code", "line"),
    [
        (passed("f"), passed("f"), 0, "before: 1 check: 1 pass"),
        (failed("f"), passed("f"), 0, "newly passing: 1"),
        (passed("f"), failed("f"), 1, "newly failing: 1"),
        (passed("f"), doubtful("f"), 3, "newly inconclusive: 1"),
    ],
)
def test_exit_code_is_that_of_the_worst_change(
    kind: str, old: Report, new: Report, code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(f"old.{kind}", old)
    write(f"new.{kind}", new)
    assert exit_code("compare", f"old.{kind}", f"new.{kind}") == code
    assert capsys.readouterr().out.splitlines()[0] == line


def test_case_that_died_in_both_runs_makes_them_incomplete(capsys: pytest.CaptureFixture[str]) -> None:
    write("old.db", None)
    write("new.db", None)
    assert exit_code("compare", "old.db", "new.db") == 2
    assert "incomplete: 1 of 1 cases in new.db have no result" in capsys.readouterr().out


def test_case_that_is_gone_makes_the_new_run_incomplete(capsys: pytest.CaptureFixture[str]) -> None:
    write("old.json", passed("f"))
    json_files.save([passed("g")], "new.json")
    assert exit_code("compare", "old.json", "new.json") == 2
    assert "gone: 1" in capsys.readouterr().out


def test_new_case_that_passes_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    json_files.save([], "old.json")
    json_files.save([passed("g")], "new.json")
    assert exit_code("compare", "old.json", "new.json") == 0
    assert "  g  pass" in capsys.readouterr().out.splitlines()


def test_case_that_has_no_verdict_any_more_is_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    write("old.db", passed("f"))
    write("new.db", None)
    assert exit_code("compare", "old.db", "new.db") == 2
    assert "  f  died: SIGSEGV" in capsys.readouterr().out


def test_file_that_cannot_be_read_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    write("old.db", passed("f"))
    assert exit_code("compare", "old.db", "none.db") == 2
    assert capsys.readouterr().err.startswith("gradvet: none.db cannot be read")


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
        (PASS, FAIL, NEWLY_FAILING),
        (UNSURE, FAIL, NEWLY_FAILING),
        (dead("a"), FAIL, NEWLY_FAILING),
        (FAIL, PASS, NEWLY_PASSING),
        (dead("a"), PASS, NEWLY_PASSING),
        (PASS, UNSURE, NEWLY_INCONCLUSIVE),
        (PASS, dead("a"), NEWLY_ERROR),
        (PASS, result("a", resolution=2e-5), LOST_RESOLUTION),
        (PASS, result("a", resolution=None), LOST_RESOLUTION),
        (PASS, result("a", seconds=0.3), SLOWER),
    ],
)
def test_change_is_named(old: CaseResult, new: CaseResult, change: str) -> None:
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
        (NEWLY_FAILING, "wrong"),
        (GONE, "gone"),
        (ADDED, "added"),
    ]


def test_worst_comes_first_with_its_reason() -> None:
    old = [result(name) for name in "abc"]
    new = [
        result("a", seconds=9.0),
        result("b", Verdict.FAIL),
        CaseResult.of_error("c", Status.DIED, "was ended by SIGABRT"),
    ]
    assert [(change, *cases.values()) for change, cases in differences(old, new).items()] == [
        (NEWLY_FAILING, "reverse: the headline of b"),
        (NEWLY_ERROR, "died: was ended by SIGABRT"),
        (SLOWER, "0.1 s to 9 s"),
    ]
