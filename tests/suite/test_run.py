"""Runs: the store of a run, resuming it, and the order of the results."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradvet.errors import InvalidProblemError
from gradvet.suite import CaseResult, Status
from gradvet.suite.run import Run, in_case_order, open_store, run_missing, stored_seed
from gradvet.suite.store import Store
from tests.suite.case_files import run_of, write_cases


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run.db"


def store_of(run: Run, path: Path | None = None, resume: bool = False) -> Store:
    return open_store(run, run.source.open(), path, resume)


def resume(run: Run, path: Path) -> list[CaseResult]:
    return list(run_missing(run, run.source.open(), store_of(run, path, resume=True)))


def test_interrupted_run_is_resumed_where_it_stopped(path: Path) -> None:
    run = run_of(write_cases(path.parent, a="return x.sin()", b="return x.cos()", c="return x.exp()"))
    running = run_missing(run, run.source.open(), store_of(run, path))
    next(running)
    running.close()  # type: ignore[attr-defined]
    assert len(resume(run, path)) == 2
    assert [one.name for one in Store.open(path).results()] == ["ops.py::a", "ops.py::b", "ops.py::c"]
    assert resume(run, path) == []


def test_run_without_a_store_can_be_resumed(path: Path) -> None:
    run = run_of(write_cases(path.parent, a="return x.sin()"))
    assert store_of(run, path, resume=True).missing() == ["ops.py::a"]


def test_other_run_is_not_resumed(path: Path) -> None:
    target = write_cases(path.parent, a="return x.sin()")
    store_of(run_of(target), path)
    with pytest.raises(InvalidProblemError, match=r"holds another run \(options: {} there, {\"order\": 2} here\)"):
        store_of(run_of(target, {"order": 2}), path, resume=True)
    write_cases(path.parent, a="return x.sin()", b="return x.cos()")
    with pytest.raises(InvalidProblemError, match="holds a run of other cases"):
        store_of(run_of(target), path, resume=True)


def test_seed_of_a_stored_run_is_read(path: Path) -> None:
    assert stored_seed(path) is None
    store_of(run_of(write_cases(path.parent, a="return x.sin()")), path)
    assert stored_seed(path) == 5


def test_identity_of_a_run_keeps_its_keys(path: Path) -> None:
    identity = run_of(write_cases(path.parent, a="return x.sin()")).identity()
    assert list(identity) == ["targets", "options", "seed", "versions"]
    assert list(identity["targets"]) == ["names", "making", "flags"]
    expected = ["shapes", "dtype", "kwargs", "init", "seed", "below", "device", "reference", "dtypes", "domain"]
    assert list(identity["targets"]["making"]) == expected


def test_results_come_in_the_order_of_the_cases() -> None:
    store = Store.create(None, {}, ["a", "b", "c"])
    store.add(CaseResult.of_error("b", Status.DIED, ""))
    new = [CaseResult.of_error(name, Status.DIED, "") for name in ("c", "a")]
    assert [one.name for one in in_case_order(store, iter(new))] == ["a", "b", "c"]
