"""`gradvet compare`: the list of changes, and the exit code of the worst one."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradvet.core.results import Report
from gradvet.reports import json_files
from gradvet.suite import CaseResult, Status
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


def test_case_that_has_no_verdict_any_more_is_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    write("old.db", passed("f"))
    write("new.db", None)
    assert exit_code("compare", "old.db", "new.db") == 2
    assert "  f  died: SIGSEGV" in capsys.readouterr().out


def test_file_that_cannot_be_read_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    write("old.db", passed("f"))
    assert exit_code("compare", "old.db", "none.db") == 2
    assert capsys.readouterr().err.startswith("gradvet: none.db cannot be read")
