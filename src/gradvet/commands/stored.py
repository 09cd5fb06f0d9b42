"""Results of earlier runs, whichever kind of file they are in."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gradvet.core.results import Report
from gradvet.reports import documents

if TYPE_CHECKING:
    from gradvet.suite.job import Outcome

MAGIC = b"SQLite format 3\0"


def reports_in(path: str) -> list[Report]:
    """The reports in a JSON file or a store."""
    return [outcome.report for outcome in outcomes_in(path) if outcome.report is not None]


def outcomes_in(path: str) -> list[Outcome]:
    """What became of each case; a JSON file knows only of those with a report."""
    from gradvet.suite.job import Ending, Outcome
    from gradvet.suite.store import Store

    if not _is_store(path):
        return [Outcome(one.title, Ending.REPORTED, one, seconds=one.seconds) for one in documents.load(path)]
    store = Store.open(path)
    try:
        return list(store.outcomes())
    finally:
        store.close()


def _is_store(path: str) -> bool:
    file = Path(path)
    if not file.is_file():
        return False
    with file.open("rb") as stream:
        return stream.read(len(MAGIC)) == MAGIC
