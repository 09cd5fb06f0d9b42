"""A store keeps one result per case and belongs to one run."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
import torch

import gradvet
from gradvet.errors import InvalidProblemError
from gradvet.suite import CaseResult, Status
from gradvet.suite.store import Store, holds_run
from tests.suite.case_files import report_of

IDENTITY = {"seed": 1, "versions": {"torch": "2.13.0"}}


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run.db"


def wrong(x: torch.Tensor) -> torch.Tensor:
    return 2 * x - x.detach()


def result(name: str = "a") -> CaseResult:
    report = gradvet.check(wrong, torch.ones(2, dtype=torch.float64), seed=0)
    return CaseResult(name, report, attempts=2, seconds=0.5)


def test_result_comes_back_as_it_was(path: Path) -> None:
    kept = result()
    Store.create(path, IDENTITY, ["a"]).add(kept)
    (found,) = Store.open(path).results()
    assert (found.name, found.status, found.attempts, found.seconds) == ("a", Status.REPORTED, 2, 0.5)
    assert report_of(found).to_dict() == report_of(kept).to_dict()


def test_second_result_of_a_case_changes_nothing(path: Path) -> None:
    store = Store.create(path, IDENTITY, ["a"])
    store.add(CaseResult.of_error("a", Status.DIED, "first"))
    store.add(CaseResult.of_error("a", Status.RAISED, "second"))
    assert [one.message for one in store.results()] == ["first"]


def test_results_come_in_the_order_of_the_cases(path: Path) -> None:
    store = Store.create(path, IDENTITY, ["b", "a", "c"])
    for name in ("c", "b"):
        store.add(CaseResult.of_error(name, Status.DIED, ""))
    assert [(one.name, one.status) for one in store.results()] == [
        ("b", Status.DIED),
        ("a", Status.UNFINISHED),
        ("c", Status.DIED),
    ]
    assert store.missing() == ["a"]


def test_columns_can_be_queried_with_sql(path: Path) -> None:
    Store.create(path, IDENTITY, ["a"]).add(result())
    query = "SELECT name, verdict, forwards > 0 FROM cases JOIN outcomes USING (position)"
    assert sqlite3.connect(path).execute(query).fetchall() == [("a", "fail", 1)]


def test_store_without_a_file_works_as_well() -> None:
    store = Store.create(None, IDENTITY, ["a"])
    store.add(CaseResult.of_error("a", Status.DIED, ""))
    assert store.missing() == []


def test_new_run_does_not_overwrite_another(path: Path) -> None:
    Store.create(path, IDENTITY, ["a"])
    with pytest.raises(InvalidProblemError, match="holds a run already: go on with --resume"):
        Store.create(path, IDENTITY, ["a"])


@pytest.mark.parametrize("content", [b"something else", b"SQLite format 3\0"])
def test_other_file_is_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(InvalidProblemError, match="name another"):
        Store.create(path, IDENTITY, ["a"])


def test_other_database_is_refused(path: Path) -> None:
    sqlite3.connect(path).execute("CREATE TABLE people (name)").connection.commit()
    with pytest.raises(InvalidProblemError, match="is a database of something else"):
        Store.create(path, IDENTITY, ["a"])


def test_empty_database_holds_no_run(path: Path) -> None:
    sqlite3.connect(path).execute("PRAGMA journal_mode = WAL")
    assert not holds_run(path)
    assert len(Store.create(path, IDENTITY, ["a"])) == 1
