"""A store keeps each outcome once, gives it back unchanged, and belongs to one run."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
import torch

import gradvet
from gradvet.suite.engines import Place
from gradvet.suite.job import Ending, Outcome
from gradvet.suite.runs import begin, carry_out
from gradvet.suite.store import Store, StoreError, holds_run
from tests.suite.runs import job_of, report_of, write_cases

IDENTITY = {"seed": 1, "versions": {"torch": "2.13.0"}}


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run.db"


def wrong(x: torch.Tensor) -> torch.Tensor:
    return 2 * x - x.detach()


def outcome(name: str = "a") -> Outcome:
    report = gradvet.check(wrong, torch.ones(2, dtype=torch.float64), seed=0)
    return Outcome(name, Ending.REPORTED, report, attempts=2, seconds=0.5)


def test_outcome_comes_back_as_it_was(path: Path) -> None:
    kept = outcome()
    Store.create(path, IDENTITY, ["a"]).add(kept)
    (found,) = Store.open(path).outcomes()
    assert (found.name, found.ending, found.attempts, found.seconds) == ("a", Ending.REPORTED, 2, 0.5)
    assert report_of(found).to_dict() == report_of(kept).to_dict()


def test_second_outcome_of_a_case_changes_nothing(path: Path) -> None:
    store = Store.create(path, IDENTITY, ["a"])
    store.add(Outcome("a", Ending.DIED, words="first"))
    store.add(Outcome("a", Ending.RAISED, words="second"))
    assert [one.words for one in store.outcomes()] == ["first"]


def test_outcomes_come_in_the_order_of_the_cases(path: Path) -> None:
    store = Store.create(path, IDENTITY, ["b", "a", "c"])
    for name in ("c", "b"):
        store.add(Outcome(name, Ending.DIED))
    assert [one.name for one in store.outcomes()] == ["b", "c"]
    assert store.missing() == ["a"]


def test_columns_answer_questions_in_sql(path: Path) -> None:
    Store.create(path, IDENTITY, ["a"]).add(outcome())
    query = "SELECT name, verdict, forwards > 0 FROM cases JOIN outcomes USING (position)"
    assert sqlite3.connect(path).execute(query).fetchall() == [("a", "fail", 1)]


def test_store_without_a_file_works_as_well() -> None:
    store = Store.create(None, IDENTITY, ["a"])
    store.add(Outcome("a", Ending.DIED))
    assert store.missing() == []


def test_new_run_does_not_overwrite_another(path: Path) -> None:
    Store.create(path, IDENTITY, ["a"])
    with pytest.raises(StoreError, match="holds a run already: go on with --resume"):
        Store.create(path, IDENTITY, ["a"])


@pytest.mark.parametrize("content", [b"something else", b"SQLite format 3\0"])
def test_other_file_is_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(StoreError, match="name another"):
        Store.create(path, IDENTITY, ["a"])


def test_other_database_is_refused(path: Path) -> None:
    sqlite3.connect(path).execute("CREATE TABLE people (name)").connection.commit()
    with pytest.raises(StoreError, match="is a database of something else"):
        Store.create(path, IDENTITY, ["a"])


def test_store_that_was_killed_while_it_was_made_holds_no_run(path: Path) -> None:
    sqlite3.connect(path).execute("PRAGMA journal_mode = WAL")
    assert not holds_run(path)
    assert len(Store.create(path, IDENTITY, ["a"])) == 1


def test_run_goes_on_where_it_stopped(path: Path) -> None:
    job = job_of(write_cases(path.parent, a="return x.sin()", b="return x.cos()", c="return x.exp()"))
    first = begin(job, path)
    running = carry_out(job, Place(), first)
    next(running)
    running.close()
    assert len(list(carry_out(job, Place(), begin(job, path, resume=True)))) == 2
    assert [one.name for one in Store.open(path).outcomes()] == ["ops.py::a", "ops.py::b", "ops.py::c"]
    assert list(carry_out(job, Place(), begin(job, path, resume=True))) == []


def test_run_that_was_never_begun_can_be_resumed(path: Path) -> None:
    job = job_of(write_cases(path.parent, a="return x.sin()"))
    assert begin(job, path, resume=True).missing() == ["ops.py::a"]


def test_another_run_is_not_gone_on_with(path: Path) -> None:
    target = write_cases(path.parent, a="return x.sin()")
    begin(job_of(target), path)
    with pytest.raises(StoreError, match=r"holds another run \(options: {} there, {\"order\": 2} here\)"):
        begin(job_of(target, {"order": 2}), path, resume=True)
    write_cases(path.parent, a="return x.sin()", b="return x.cos()")
    with pytest.raises(StoreError, match="holds a run of other cases"):
        begin(job_of(target), path, resume=True)
