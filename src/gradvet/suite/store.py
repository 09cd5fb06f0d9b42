"""Outcomes in a file that survives a kill at any moment: an SQLite database, written as each outcome arrives.

A store holds one run: what it is (its identity), its cases in order, and at most one outcome of each. A store without
a file lives in memory.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from gradvet.core.results import Report
from gradvet.errors import InvalidProblemError
from gradvet.suite.job import Ending, Outcome

FORMAT = 1
MAGIC = b"SQLite format 3\0"

TABLES = (
    "CREATE TABLE run (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE cases (position INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)",
    # The columns are for people with questions in SQL; the report itself is the compressed JSON of `document`.
    """CREATE TABLE outcomes (
        position INTEGER PRIMARY KEY REFERENCES cases, ending TEXT NOT NULL, verdict TEXT, resolution REAL,
        seconds REAL NOT NULL, forwards INTEGER, attempts INTEGER NOT NULL, words TEXT NOT NULL, document BLOB)""",
)

QUERY = "SELECT name, ending, document, words, attempts, seconds FROM cases JOIN outcomes USING (position)"


class StoreError(InvalidProblemError):
    """A file that cannot serve as the store of this run; the message says what to do."""


class Store:
    """The outcomes of one run."""

    def __init__(self, connection: sqlite3.Connection, path: str) -> None:
        self._connection = connection
        self.path = path
        self.identity: Mapping[str, Any] = json.loads(self._value("identity"))
        rows = connection.execute("SELECT name, position FROM cases ORDER BY position")
        self._positions: dict[str, int] = dict(rows.fetchall())

    @classmethod
    def create(cls, path: str | Path | None, identity: Mapping[str, Any], names: Sequence[str]) -> Store:
        """A new store for a run of these cases."""
        if path is not None and holds_run(path):
            raise StoreError(f"{path} holds a run already: go on with --resume, or name another file")
        connection = _connected(path)
        with connection:  # one transaction: a store is whole, or it is none
            connection.execute("BEGIN IMMEDIATE")
            for table in TABLES:
                connection.execute(table)
            values = {"format": FORMAT, "identity": identity}
            connection.executemany("INSERT INTO run VALUES (?, ?)", [(k, json.dumps(v)) for k, v in values.items()])
            connection.executemany("INSERT INTO cases VALUES (?, ?)", enumerate(dict.fromkeys(names)))
        return cls(connection, str(path))

    @classmethod
    def open(cls, path: str | Path) -> Store:
        """The store in a file."""
        if not holds_run(path):
            raise StoreError(f"{path} holds no run of gradvet: give a file that --store wrote")
        return cls(_connected(path), str(path))

    def __len__(self) -> int:
        return len(self._positions)

    def require(self, identity: Mapping[str, Any]) -> None:
        """Refuse to go on with another run than the one that was begun."""
        for name, value in identity.items():
            found = self.identity.get(name)
            if json.loads(json.dumps(value)) != found:
                raise StoreError(
                    f"{self.path} holds another run ({name}: {_brief(found)} there, {_brief(value)} here): repeat its "
                    "command, or name another file"
                )

    def names(self) -> list[str]:
        """All cases, in order."""
        return list(self._positions)

    def missing(self) -> list[str]:
        """The cases that have no outcome, in order."""
        query = "SELECT name FROM cases WHERE position NOT IN (SELECT position FROM outcomes) ORDER BY position"
        return [name for (name,) in self._connection.execute(query)]

    def add(self, outcome: Outcome) -> None:
        """Keep an outcome; a second one of the same case changes nothing."""
        report = outcome.report
        known = (None, None, None, None)
        if report is not None:
            document = zlib.compress(json.dumps(report.to_dict()).encode())
            known = (report.verdict.value, report.resolution, report.cost.forwards, document)  # type: ignore[assignment]
        verdict, resolution, forwards, content = known
        row = (
            self._positions[outcome.name],
            outcome.ending.value,
            verdict,
            resolution,
            outcome.seconds,
            forwards,
            outcome.attempts,
            outcome.words,
            content,
        )
        with self._connection:
            self._connection.execute(f"INSERT OR IGNORE INTO outcomes VALUES ({', '.join('?' * len(row))})", row)

    def outcome(self, name: str) -> Outcome:
        """That of a case which has one."""
        return _outcome(self._connection.execute(f"{QUERY} WHERE name = ?", (name,)).fetchone())

    def outcomes(self) -> Iterator[Outcome]:
        """Those that are known, in the order of the cases."""
        return map(_outcome, self._connection.execute(f"{QUERY} ORDER BY position"))

    def close(self) -> None:
        self._connection.close()

    def _value(self, name: str) -> str:
        (value,) = self._connection.execute("SELECT value FROM run WHERE name = ?", (name,)).fetchone()
        return str(value)


def _outcome(row: tuple[Any, ...]) -> Outcome:
    name, ending, document, words, attempts, seconds = row
    report = None if document is None else Report.from_dict(json.loads(zlib.decompress(document)))
    return Outcome(name, Ending(ending), report, words, attempts, seconds)


def holds_run(path: str | Path) -> bool:
    """Whether a file is a store. One that was killed while it was made holds nothing yet."""
    file = Path(path)
    if not file.is_file() or file.stat().st_size == 0:
        return False
    with file.open("rb") as stream:
        if stream.read(len(MAGIC)) != MAGIC:
            raise StoreError(f"{path} is not a store but some other file: name another one")
    with closing(_connected(path)) as connection:
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    if tables and ("outcomes",) not in tables:
        raise StoreError(f"{path} is a database of something else: name another file")
    return bool(tables)


def _connected(path: str | Path | None) -> sqlite3.Connection:
    try:
        connection = sqlite3.connect(":memory:" if path is None else path, timeout=60.0, isolation_level=None)
        # A write-ahead log: what was committed outlives the process, and nobody who reads waits for who writes.
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
    except sqlite3.Error as error:
        raise StoreError(f"{path} cannot be opened as a store ({error}): name another file") from error
    return connection


def _brief(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
