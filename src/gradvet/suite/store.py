"""Results of one run in an SQLite database, each committed as it arrives, so that a killed run loses none of them.

A store holds the identity of the run, its cases in order, and at most one result per case. A store without a file is
kept in memory. The tables and columns are documented for SQL queries, so their names are part of the file format.
A file may come from someone else: it is opened read-only for reading, and what it may take to read it is limited.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import IO, Any

from gradvet.core.documents import shortened
from gradvet.core.processes import Status
from gradvet.core.results import escape_controls, read_report
from gradvet.errors import InvalidProblemError
from gradvet.reports.wording import one_line
from gradvet.suite import CaseResult

STORE_FORMAT = 1
SQLITE_SIGNATURE = b"SQLite format 3\0"
"""First bytes of every SQLite database."""

LOCK_TIMEOUT_SECONDS = 60.0
"""Time to wait for another process that writes to the same file."""

MAX_REPORT_BYTES = 2**26
"""Size of one stored report after decompression."""

MAX_UNPACKED_BYTES = 2**30
"""Size of all reports that are read from one store, after decompression."""

STEPS_PER_CALL, MAX_CALLS = 10**6, 10**3
"""Queries end with an error after this number of SQLite's steps times this number of calls: seconds, where a million
cases take 25 million steps."""

TABLES = {
    "run": "CREATE TABLE run (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "cases": "CREATE TABLE cases (position INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)",
    # `document` is the report as compressed JSON; the other columns are for queries.
    "outcomes": """CREATE TABLE outcomes (
        position INTEGER PRIMARY KEY REFERENCES cases, ending TEXT NOT NULL, verdict TEXT, resolution REAL,
        seconds REAL NOT NULL, forwards INTEGER, attempts INTEGER NOT NULL, words TEXT NOT NULL, document BLOB)""",
}

QUERY = "SELECT document, attempts, seconds FROM outcomes WHERE position = ?"
NO_RESULT = "there is no result: the run ended before this case, or still runs; go on with --resume"
CANNOT_OPEN = ("cannot be opened as a store", "name another file")
CANNOT_WRITE = ("cannot be written", "free some space, then go on with --resume, or name another file")


class Store:
    """The results of one run."""

    def __init__(self, connection: sqlite3.Connection, path: str, lock: IO[bytes] | None = None) -> None:
        self._connection, self._lock = connection, lock
        self._unpacked_bytes = 0
        self.path = path
        try:
            version = json.loads(self._value("format"))
            self.identity: Mapping[str, Any] = json.loads(self._value("identity"))
            rows = connection.execute("SELECT name, position FROM cases ORDER BY position")
            self._positions: dict[str, int] = {str(name): position for name, position in rows}
        except (sqlite3.Error, ValueError, TypeError) as error:
            self.close()
            raise InvalidProblemError(
                f"{path} is damaged ({error}): restore a copy, or run again into another file"
            ) from error
        if version != STORE_FORMAT:
            self.close()
            raise InvalidProblemError(
                f"{path} has format {version!r}; this version of gradvet reads format {STORE_FORMAT}"
            )

    @classmethod
    def create(cls, path: str | Path | None, identity: Mapping[str, Any], names: Sequence[str]) -> Store:
        """A new store for a run of these cases."""
        with ExitStack() as on_error:
            lock = None if path is None else on_error.enter_context(_lock(path))
            if path is not None and holds_run(path):
                raise InvalidProblemError(f"{path} holds a run already: go on with --resume, or name another file")
            connection = _writable(path)
            with (
                _refused(path, CANNOT_WRITE),
                connection,
            ):  # one transaction: a killed process leaves no incomplete store
                connection.execute("BEGIN IMMEDIATE")
                for table in TABLES.values():
                    connection.execute(table)
                values = {"format": json.dumps(STORE_FORMAT), "identity": json.dumps(identity)}
                connection.executemany("INSERT INTO run VALUES (?, ?)", values.items())
                connection.executemany("INSERT INTO cases VALUES (?, ?)", enumerate(dict.fromkeys(names)))
            on_error.pop_all()
            return cls(connection, str(path), lock)

    @classmethod
    def open(cls, path: str | Path, *, writable: bool = False) -> Store:
        """The store in an existing file, for reading alone unless `writable`."""
        with ExitStack() as on_error:
            lock = on_error.enter_context(_lock(path)) if writable else None
            if not holds_run(path):
                raise InvalidProblemError(f"{path} holds no run of gradvet: give a file that --store wrote")
            connection = _writable(path) if writable else _readable(path)
            on_error.pop_all()
            return cls(connection, str(path), lock)

    def __len__(self) -> int:
        return len(self._positions)

    def require_identity(self, identity: Mapping[str, Any]) -> None:
        """Raise `InvalidProblemError` if the store belongs to another run."""
        for name, value in identity.items():
            stored = self.identity.get(name)
            if json.loads(json.dumps(value)) != stored:
                raise InvalidProblemError(
                    f"{self.path} holds another run ({name}: {shortened(json.dumps(stored))} there, "
                    f"{shortened(json.dumps(value))} here): repeat its command, or name another file"
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
        report = result.report
        document = zlib.compress(json.dumps(report.to_dict()).encode())
        numbers = (report.resolution, result.seconds, report.cost.forwards, result.attempts)
        row = (self._positions[result.name], result.status, report.verdict.value, *numbers, result.message, document)
        with _refused(self.path, CANNOT_WRITE), self._connection:
            self._connection.execute(f"INSERT OR IGNORE INTO outcomes VALUES ({', '.join('?' * len(row))})", row)

    def result(self, name: str) -> CaseResult:
        """The result of a case. One that is missing, or cannot be read, is an error of that case."""
        shown = escape_controls(name)
        try:
            row = self._connection.execute(QUERY, (self._positions[name],)).fetchone()
            return self._unpacked(shown, *row) if row else CaseResult.of_error(shown, Status.UNFINISHED, NO_RESULT)
        except (sqlite3.Error, zlib.error, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            return CaseResult.of_error(shown, Status.DAMAGED, f"the stored result cannot be read ({one_line(error)})")

    def results(self) -> Iterator[CaseResult]:
        """The results of all cases in order, also of those without a result."""
        return map(self.result, self._positions)

    def close(self) -> None:
        self._connection.close()
        if self._lock is not None:
            self._lock.close()

    def _value(self, name: str) -> str:
        (value,) = self._connection.execute("SELECT value FROM run WHERE name = ?", (name,)).fetchone()
        return str(value)

    def _unpacked(self, name: str, document: bytes, attempts: int, seconds: float) -> CaseResult:
        limit = min(MAX_REPORT_BYTES, MAX_UNPACKED_BYTES - self._unpacked_bytes)
        unpacker = zlib.decompressobj()
        content = unpacker.decompress(document, limit + 1)
        self._unpacked_bytes += len(content)
        if len(content) > limit or not unpacker.eof:
            raise ValueError("too large, or cut off")
        return CaseResult(name, read_report(json.loads(content)), int(attempts), float(seconds))


def is_database(path: str | Path) -> bool:
    """Whether a file exists and begins with the signature of SQLite."""
    if not os.path.isfile(path):
        return False
    with _refused(path, ("cannot be read", "give another file")), open(path, "rb") as stream:
        return stream.read(len(SQLITE_SIGNATURE)) == SQLITE_SIGNATURE


def holds_run(path: str | Path) -> bool:
    """Whether a file is a store. An empty database does not count: the process that created it was killed."""
    file = Path(path)
    if not file.is_file() or file.stat().st_size == 0:
        return False
    if not is_database(path):
        raise InvalidProblemError(f"{path} is not a store but some other file: name another one")
    with _refused(path, CANNOT_OPEN), closing(_readable(path)) as connection:
        found = connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    # Views, triggers and computed columns could take any time and memory.
    if found and {_words(sql) for (sql,) in found} != {_words(sql) for sql in TABLES.values()}:
        raise InvalidProblemError(f"{path} is a database of something else: name another file")
    return bool(found)


def _words(statement: Any) -> tuple[str, ...]:
    return tuple(str(statement).split())


def _readable(path: str | Path) -> sqlite3.Connection:
    """A connection that cannot write, for a file that may come from someone else."""
    has_log = Path(f"{path}-wal").exists()  # another process writes to the file, or was killed
    address = f"{Path(path).resolve().as_uri()}?mode=ro{'' if has_log else '&immutable=1'}"
    connection = sqlite3.connect(address, timeout=LOCK_TIMEOUT_SECONDS, isolation_level=None, uri=True)
    connection.text_factory = lambda content: content.decode(errors="replace")
    connection.execute("PRAGMA trusted_schema = OFF")
    calls = iter(range(MAX_CALLS))
    connection.set_progress_handler(lambda: next(calls, None) is None, STEPS_PER_CALL)
    return connection


@contextmanager
def _refused(path: str | Path | None, words: tuple[str, str]) -> Iterator[None]:
    """Say in one sentence what cannot be done with a file, why, and what to do."""
    try:
        yield
    except (sqlite3.Error, OSError, UnicodeDecodeError) as error:  # sqlite3 may fail to decode its own message
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidProblemError(f"{path} {words[0]} ({reason}): {words[1]}") from error


def _writable(path: str | Path | None) -> sqlite3.Connection:
    with _refused(path, CANNOT_OPEN):
        database = ":memory:" if path is None else path
        connection = sqlite3.connect(database, timeout=LOCK_TIMEOUT_SECONDS, isolation_level=None)
        # With a write-ahead log, committed results survive a kill, and readers do not wait for writers.
        for setting in ("journal_mode = WAL", "synchronous = NORMAL", "trusted_schema = OFF"):
            connection.execute(f"PRAGMA {setting}")
    return connection


def _lock(path: str | Path) -> IO[bytes]:
    """The file, locked until it is closed, so that two runs do not write to it; not locked where that is impossible."""
    with _refused(path, CANNOT_OPEN):
        stream = open(path, "ab")  # noqa: SIM115, closed with the store
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        stream.close()
        raise InvalidProblemError(f"{path} is in use by another run: wait for its end, or name another file") from None
    except OSError:
        pass
    return stream
