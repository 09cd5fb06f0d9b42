"""Damages stores and JSON files of reports, and reads them with `gradvet report` and `gradvet compare`.

`python -m tests.faults.files SECONDS` goes on with random damage for that long.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import random
import sqlite3
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gradvet.cli import main as gradvet_command
from gradvet.core.results import FORMAT
from gradvet.suite import CaseResult
from gradvet.suite.store import Store
from tests.faults.options import arguments_of_a_fuzzer
from tests.reports.samples import failed, passed

SENTENCE_BYTES = 1000
"""Length of the longest message."""

VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 10**30, 0.5, 1e308, float("nan"), float("inf"), "", "pass", "\x1b[2J\x07", "[/bold]"),
    *("<script>alert(1)</script>", "x" * 5000, "\ud800", [], {}, [[]], [None], {"": None}, [1, 2, 3], [0.1] * 40),
    *([["a", "b"]], {"verdict": "pass"}, {"__class__": "object"}, "\u202e", "../../etc/passwd", "file:///etc/passwd"),
)
"""What takes the place of a value in a document."""

STATEMENTS = (
    "DROP TABLE {table}",
    "DELETE FROM {table}",
    "UPDATE {table} SET {column} = ?",
    "UPDATE {table} SET {column} = ? WHERE rowid = 1",
    "INSERT INTO cases VALUES (7, ?)",
    "INSERT INTO cases VALUES (?, 'more')",
    "CREATE TRIGGER hostile AFTER INSERT ON cases BEGIN DELETE FROM outcomes; END",
    "CREATE VIEW more AS SELECT * FROM cases",
    "ALTER TABLE {table} RENAME TO other",
    "ALTER TABLE {table} RENAME COLUMN {column} TO other",
    "PRAGMA user_version = 99",
)
COLUMNS = {
    "run": ("name", "value"),
    "cases": ("position", "name"),
    "outcomes": ("position", "ending", "verdict", "seconds", "attempts", "words", "document"),
}


def write_json(path: Path) -> None:
    document = {"format": FORMAT, "reports": [passed("a").to_dict(), failed("b").to_dict()]}
    path.write_text(json.dumps(document))


def write_store(path: Path) -> None:
    store = Store.create(path, {"seed": 1}, ["a", "b", "c"])
    for result in (CaseResult("a", passed("a")), CaseResult("b", failed("b"))):
        store.add(result)
    store.close()


def with_damaged_bytes(path: Path, source: random.Random) -> str:
    """Some bytes are others, or the end is missing, or a piece occurs twice."""
    content = bytearray(path.read_bytes())
    for _ in range(source.choice([1, 4, 64])):
        content[source.randrange(len(content))] = source.randrange(256)
    place, length = source.randrange(len(content)), source.randrange(1, 5000)
    kind = source.choice(["changed", "cut off", "with a piece twice", "without a piece", "empty"])
    if kind == "cut off":
        del content[place:]
    elif kind == "with a piece twice":
        content[place:place] = content[place : place + length]
    elif kind == "without a piece":
        del content[place : place + length]
    elif kind == "empty":
        content.clear()
    path.write_bytes(content)
    return f"bytes {kind}"


def with_changed_values(document: Any, source: random.Random) -> Any:
    """The document with up to three values replaced, removed or repeated."""
    document = copy.deepcopy(document)
    for _ in range(source.randint(1, 3)):
        places = list(_places(document))
        if not places:
            break
        owner, key = source.choice(places)
        what = source.choice(["replaced", "replaced", "removed", "deep"])
        if what == "removed":
            del owner[key]
        elif what == "deep":
            value: Any = owner[key]
            for _ in range(source.choice([3, 100, 400])):
                value = [value]
            owner[key] = value
        else:
            owner[key] = source.choice(VALUES)
    return document


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, (dict, list)):
        for key, inner in list(value.items() if isinstance(value, dict) else enumerate(value)):
            yield value, key
            yield from _places(inner)


def with_changed_document(path: Path, source: random.Random) -> str:
    path.write_text(json.dumps(with_changed_values(json.loads(path.read_text()), source)), errors="replace")
    return "values of the document changed"


def with_changed_report(path: Path, source: random.Random) -> str:
    """A report inside a store is changed, or compressed wrongly."""
    text = json.dumps(with_changed_values(failed("b").to_dict(), source)).encode(errors="replace")
    document: Any = source.choice([zlib.compress(text), zlib.compress(text)[:-3], text, "text", 7, bytes(100)])
    _execute(path, "UPDATE outcomes SET document = ? WHERE position = 1", document)
    return "values of a stored report changed"


def with_changed_tables(path: Path, source: random.Random) -> str:
    table = source.choice(list(COLUMNS))
    statement = source.choice(STATEMENTS).format(table=table, column=source.choice(COLUMNS[table]))
    values = [value for value in VALUES if isinstance(value, (int, float, str, type(None))) and value != 10**30]
    value = source.choice([one for one in values if one != "\ud800"])
    with contextlib.suppress(sqlite3.Error):  # the store refuses the statement
        _execute(path, statement, *[value] * statement.count("?"))
    return statement


def _execute(path: Path, statement: str, *values: Any) -> None:
    connection = sqlite3.connect(path)
    try:
        with connection:
            connection.execute(statement, values)
    finally:
        connection.close()


KINDS: tuple[tuple[Callable[[Path], None], Callable[[Path, random.Random], str]], ...] = (
    (write_json, with_damaged_bytes),
    (write_json, with_changed_document),
    (write_store, with_damaged_bytes),
    (write_store, with_changed_report),
    (write_store, with_changed_tables),
)
"""How a file is written, and how it is damaged."""


def ended(arguments: list[str]) -> tuple[int, str, str]:
    """Exit code, output and messages of the command."""
    out, messages = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(messages):
        try:
            gradvet_command(arguments)
        except SystemExit as end:
            return int(end.code or 0), out.getvalue(), messages.getvalue()
    return 0, out.getvalue(), messages.getvalue()


def complaint(folder: Path, source: random.Random) -> str:
    """What is wrong with how the commands read a damaged file; nothing if there are results or one sentence."""
    write, damage = source.choice(KINDS)
    path, right = folder / "damaged", folder / "right.json"
    write(path)
    write_json(right)
    how = f"{write.__name__}, {damage(path, source)}"
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    commands = [["report", str(path)], ["compare", str(right), str(path)]]
    if source.random() < 0.2:
        commands.append(["report", str(path), "--html", str(folder / "page.html"), "--json", str(folder / "all.json")])
    for arguments in commands:
        try:
            code, out, messages = ended(arguments)
            (out + messages).encode()
        except BaseException as error:
            return f"{how}: {arguments[0]} raised {type(error).__name__}: {error}"
        if code not in (0, 1, 2, 3):
            return f"{how}: {arguments[0]} ended with {code}"
        lines = [line for line in messages.splitlines() if not line.startswith("wrote ")]
        if len(lines) > 1 or len(messages) > SENTENCE_BYTES or "--debug" in messages:
            return f"{how}: {arguments[0]} gave no single sentence: {messages[:500]!r}"
        if not out and not lines:
            return f"{how}: {arguments[0]} said nothing"
        shown = [character for character in out + messages if not character.isprintable() and character != "\n"]
        if any(ord(character) < 32 or 127 <= ord(character) < 160 for character in shown):
            return f"{how}: {arguments[0]} printed control characters"
    for name in ("page.html", "all.json"):
        (folder / name).unlink(missing_ok=True)
    if {file.name: file.read_bytes() for file in folder.iterdir()} != before:
        return f"{how}: reading changed a file"
    path.unlink()
    return ""


def main(seconds: float, least: int, seed: int) -> int:
    deadline = time.monotonic() + seconds
    source, number, found = random.Random(seed), 0, 0
    while time.monotonic() < deadline or number < least:
        with tempfile.TemporaryDirectory() as folder:
            number += 1
            if what := complaint(Path(folder), source):
                found += 1
                print(what, flush=True)
    print(f"{number} damaged files, {found} not read as results or refused in one sentence")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*arguments_of_a_fuzzer(__doc__)))
