"""Stores that are damaged, unfinished, in use, or made to harm: reading one writes nothing and always ends."""

from __future__ import annotations

import json
import sqlite3
import tracemalloc
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest

from gradvet.core.processes import Status
from gradvet.errors import InvalidProblemError
from gradvet.suite import CaseResult
from gradvet.suite import store as module
from gradvet.suite.store import Store
from tests.reports.samples import failed, passed


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with two results, the second a failure."""
    file = tmp_path / "run.db"
    store = Store.create(file, {"seed": 1}, ["a", "b"])
    store.add(CaseResult("a", passed("a")))
    store.add(CaseResult("b", failed("b")))
    store.close()
    return file


def change(path: Path, statement: str, *values: Any) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(statement, values)
    connection.close()


def with_report(path: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    """Edit the stored report of `b`."""
    document = failed("b").to_dict()
    edit(document)
    change(path, "UPDATE outcomes SET document = ? WHERE position = 1", zlib.compress(json.dumps(document).encode()))


def statuses(path: Path) -> dict[str, str]:
    return {one.name: one.status for one in Store.open(path).results()}


def test_reading_writes_nothing(path: Path) -> None:
    before = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    path.chmod(0o400)
    assert len(list(Store.open(path).results())) == 2
    assert {file.name: file.read_bytes() for file in path.parent.iterdir()} == before


@pytest.mark.parametrize(
    "document",
    [
        b"no compressed text",
        zlib.compress(b"{}"),
        zlib.compress(b"[" * 100_000),
        zlib.compress(json.dumps(failed().to_dict()).encode())[:-9],
        7,
        None,
    ],
)
def test_damaged_row_is_an_error_of_its_case(path: Path, document: Any) -> None:
    change(path, "UPDATE outcomes SET document = ? WHERE position = 1", document)
    assert statuses(path) == {"a": Status.REPORTED, "b": Status.DAMAGED}


def test_emptied_findings_are_not_a_pass(path: Path) -> None:
    with_report(path, lambda report: report.update(findings=[]))
    assert statuses(path)["b"] == Status.DAMAGED
    with_report(path, lambda report: report.update(findings=[], verdict="pass"))
    assert statuses(path)["b"] == Status.DAMAGED


def test_damaged_page_of_the_file_costs_no_other_case(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    names = [f"case{number}" for number in range(60)]
    store = Store.create(path, {}, names)
    for name in names:
        store.add(CaseResult(name, failed(name)))
    store.close()
    content = bytearray(path.read_bytes())
    middle = len(content) // 2 // 4096 * 4096
    content[middle : middle + 4096] = b"\xff" * 4096
    path.write_bytes(content)
    found = list(statuses(path).values())
    assert len(found) == 60
    assert 0 < found.count(Status.DAMAGED) < 30


def test_large_report_is_not_unpacked(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert module.MAX_REPORT_BYTES <= 2**26
    monkeypatch.setattr(module, "MAX_REPORT_BYTES", 2**16)
    change(path, "UPDATE outcomes SET document = ? WHERE position = 1", zlib.compress(bytes(2**24)))
    tracemalloc.start()
    try:
        *_, found = Store.open(path).results()
        assert found.message == "the stored result cannot be read (too large, or cut off)"
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()


def test_all_reports_together_are_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert module.MAX_UNPACKED_BYTES <= 2**30
    first, second = (len(json.dumps(report.to_dict())) for report in (passed("a"), failed("b")))
    monkeypatch.setattr(module, "MAX_UNPACKED_BYTES", max(first, second) + 1)
    assert statuses(path) == {"a": Status.REPORTED, "b": Status.DAMAGED}


ENDLESS = "WITH RECURSIVE n(position, name) AS (SELECT 1, 'x' UNION ALL SELECT position + 1, name FROM n)"
HOSTILE = {
    "a view without end": f"CREATE VIEW cases AS {ENDLESS} SELECT position, name FROM n",
    "a computed column": "CREATE TABLE cases (position INTEGER PRIMARY KEY, name TEXT AS (hex(zeroblob(400000000))))",
    "a trigger": "CREATE TRIGGER more AFTER INSERT ON outcomes BEGIN DELETE FROM cases; END",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_store_with_other_tables_is_refused(path: Path, kind: str) -> None:
    if "cases AS" in HOSTILE[kind] or "TABLE cases" in HOSTILE[kind]:
        change(path, "DROP TABLE cases")
    change(path, HOSTILE[kind])
    for writable in (False, True):
        with pytest.raises(InvalidProblemError, match="is a database of something else"):
            Store.open(path, writable=writable)


def test_query_that_takes_too_long_ends(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert module.STEPS_PER_CALL * module.MAX_CALLS <= 10**9
    monkeypatch.setattr(module, "MAX_CALLS", 3)
    with closing(module._readable(path)) as connection, pytest.raises(sqlite3.OperationalError, match="interrupted"):
        connection.execute(f"{ENDLESS} SELECT count(*) FROM n").fetchone()


def test_functions_with_effects_are_not_called_by_a_schema(path: Path) -> None:
    for writable in (False, True):
        store = Store.open(path, writable=writable)
        assert store._connection.execute("PRAGMA trusted_schema").fetchone() == (0,)
        store.close()


def test_other_format_is_refused(path: Path) -> None:
    change(path, "UPDATE run SET value = '99' WHERE name = 'format'")
    with pytest.raises(InvalidProblemError, match=r"has format 99; this version of gradvet reads format 1"):
        Store.open(path)


def test_control_characters_are_escaped(path: Path) -> None:
    change(path, "UPDATE cases SET name = ? WHERE position = 1", "b\x1b[2J")
    with_report(path, lambda report: report.update(title="\x1b]0;title\x07", notes=["\x9b31m", "line\nbreak"]))
    *_, found = Store.open(path).results()
    assert found.name == r"b\x1b[2J"
    assert found.report.title == r"\x1b]0;title\x07"
    assert found.report.notes == (r"\x9b31m", "line\nbreak")


def test_second_run_into_a_store_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    first = Store.create(path, {}, ["a"])
    for again in (lambda: Store.create(path, {}, ["a"]), lambda: Store.open(path, writable=True)):
        with pytest.raises(InvalidProblemError, match="is in use by another run"):
            again()
    assert [one.status for one in Store.open(path).results()] == [Status.UNFINISHED]
    first.close()
    Store.open(path, writable=True).close()


def test_any_damage_ends_in_results_or_a_sentence(path: Path) -> None:
    content, random = path.read_bytes(), Random(0)
    unreadable = 0
    for _ in range(300):
        damaged = bytearray(content)
        for _ in range(random.choice([1, 4, 64])):
            damaged[random.randrange(16, len(damaged))] = random.randrange(256)
        path.write_bytes(damaged[: random.choice([len(damaged), random.randrange(16, len(damaged))])])
        try:
            for one in Store.open(path).results():
                assert one.verdict.value in ("pass", "fail", "error", "inconclusive")
        except InvalidProblemError:
            unreadable += 1
    assert unreadable < 300
