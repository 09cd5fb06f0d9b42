"""Results of one run in an SQLite database, each committed as it arrives, so that a killed run loses none of them.

A store holds the identity of the run, its cases in order, and at most one result per case. A store without a file is
kept in memory. The tables and columns are documented for SQL queries, so their names are part of the file format.
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
from gradvet.suite.case import CaseResult, Status

STORE_FORMAT = 1
SQLITE_SIGNATURE = b"SQLite format 3\0"
"""First bytes of every SQLite database."""

LOCK_TIMEOUT_SECONDS = 60.0
"""Time to wait for another process that writes to the same file."""

TABLES = (
    "CREATE TABLE run (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE cases (position INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)",
    # `document` is the report as compressed JSON; the other columns are for queries.
    """CREATE TABLE outcomes (
        position INTEGER PRIMARY KEY REFERENCES cases, ending TEXT NOT NULL, verdict TEXT, resolution REAL,
        seconds REAL NOT NULL, forwards INTEGER, attempts INTEGER NOT NULL, words TEXT NOT NULL, document BLOB)""",
)

QUERY = "SELECT name, ending, document, words, attempts, seconds FROM cases JOIN outcomes USING (position)"


class StoreError(InvalidProblemError):
    """A file cannot be used as the store of this run; the message says what to do."""


class Store:
    """The results of one run."""

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
        with connection:  # one transaction, so that a killed process leaves no incomplete store
            connection.execute("BEGIN IMMEDIATE")
            for table in TABLES:
                connection.execute(table)
            values = {"format": STORE_FORMAT, "identity": identity}
            connection.executemany("INSERT INTO run VALUES (?, ?)", [(k, json.dumps(v)) for k, v in values.items()])
            connection.executemany("INSERT INTO cases VALUES (?, ?)", enumerate(dict.fromkeys(names)))
        return cls(connection, str(path))

    @classmethod
    def open(cls, path: str | Path) -> Store:
        """The store in an existing file."""
        if not holds_run(path):
            raise StoreError(f"{path} holds no run of gradvet: give a file that --store wrote")
        return cls(_connected(path), str(path))

    def __len__(self) -> int:
        return len(self._positions)

    def require_identity(self, identity: Mapping[str, Any]) -> None:
        """Raise `StoreError` if the store belongs to another run."""
        for name, value in identity.items():
            stored = self.identity.get(name)
            if json.loads(json.dumps(value)) != stored:
                raise StoreError(
                    f"{self.path} holds another run ({name}: {_brief(stored)} there, {_brief(value)} here): repeat its "
                    "command, or name another file"
                )

    def names(self) -> list[str]:
        """The names of all cases, in order."""
        return list(self._positions)

    def missing(self) -> list[str]:
        """The names of the cases without a result, in order."""
        query = "SELECT name FROM cases WHERE position NOT IN (SELECT position FROM outcomes) ORDER BY position"
        return [name for (name,) in self._connection.execute(query)]

    def add(self, result: CaseResult) -> None:
        """Store a result. A second result of the same case is ignored."""
        verdict = resolution = forwards = document = None
        if (report := result.report) is not None:
            verdict, resolution, forwards = report.verdict.value, report.resolution, report.cost.forwards
            document = zlib.compress(json.dumps(report.to_dict()).encode())
        position = self._positions[result.name]
        timing = (result.seconds, forwards, result.attempts)
        row = (position, result.status.value, verdict, resolution, *timing, result.message, document)
        with self._connection:
            self._connection.execute(f"INSERT OR IGNORE INTO outcomes VALUES ({', '.join('?' * len(row))})", row)

    def result(self, name: str) -> CaseResult:
        """The stored result of a case."""
        return _result(self._connection.execute(f"{QUERY} WHERE name = ?", (name,)).fetchone())

    def results(self) -> Iterator[CaseResult]:
        """The stored results, in the order of the cases."""
        return map(_result, self._connection.execute(f"{QUERY} ORDER BY position"))

    def close(self) -> None:
        self._connection.close()

    def _value(self, name: str) -> str:
        (value,) = self._connection.execute("SELECT value FROM run WHERE name = ?", (name,)).fetchone()
        return str(value)


def _result(row: tuple[Any, ...]) -> CaseResult:
    name, status, document, message, attempts, seconds = row
    report = None if document is None else Report.from_dict(json.loads(zlib.decompress(document)))
    return CaseResult(name, Status(status), report, message, attempts, seconds)


def is_database(path: str | Path) -> bool:
    """Whether a file exists and begins with the signature of SQLite."""
    file = Path(path)
    if not file.is_file():
        return False
    with file.open("rb") as stream:
        return stream.read(len(SQLITE_SIGNATURE)) == SQLITE_SIGNATURE


def holds_run(path: str | Path) -> bool:
    """Whether a file is a store. An empty database does not count: the process that created it was killed."""
    file = Path(path)
    if not file.is_file() or file.stat().st_size == 0:
        return False
    if not is_database(path):
        raise StoreError(f"{path} is not a store but some other file: name another one")
    with closing(_connected(path)) as connection:
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    if tables and ("outcomes",) not in tables:
        raise StoreError(f"{path} is a database of something else: name another file")
    return bool(tables)


def _connected(path: str | Path | None) -> sqlite3.Connection:
    try:
        database = ":memory:" if path is None else path
        connection = sqlite3.connect(database, timeout=LOCK_TIMEOUT_SECONDS, isolation_level=None)
        # With a write-ahead log, committed results survive a kill, and readers do not wait for writers.
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
    except sqlite3.Error as error:
        raise StoreError(f"{path} cannot be opened as a store ({error}): name another file") from error
    return connection


def _brief(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
