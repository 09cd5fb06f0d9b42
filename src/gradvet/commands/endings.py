"""How a command ends: exit codes, one sentence for an error, the files that were asked for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import click

from gradvet.core.results import Report, Verdict
from gradvet.errors import InvalidProblemError
from gradvet.reports import documents, files, html

PASSED, FAILED, USAGE, INCONCLUSIVE, INTERRUPTED = 0, 1, 2, 3, 130

TOLD = (InvalidProblemError, documents.UnreadableReportError, html.MissingLibraryError, files.UnwritableFileError)
"""Exceptions whose message says what to do; it is the whole answer."""

DEBUG = click.option("--debug", is_flag=True, help="Show Python's traceback when something goes wrong.")
PAGE = click.option("--html", "page", type=click.Path(dir_okay=False), help="Write a page to this file.")
DOCUMENT = click.option("--json", "document", type=click.Path(dir_okay=False), help="Write all results to this file.")


def prepare(page: str | None, document: str | None) -> None:
    """What could not be written at the end is said at the beginning."""
    for path in filter(None, (page, document)):
        files.prepared(path)
    if page is not None:
        html.page([])


def write(reports: Sequence[Report], page: str | None, document: str | None) -> None:
    for path, save in ((document, documents.save), (page, html.write)):
        if path is not None:
            save(reports, path)
            click.echo(f"wrote {path}", err=True)


def exit_code(verdicts: Iterable[Verdict], broken: int = 0) -> int:
    """The worst of what was found; `broken` cases have no verdict."""
    found = set(verdicts)
    if Verdict.FAIL in found:
        return FAILED
    if broken:
        return USAGE
    return INCONCLUSIVE if Verdict.INCONCLUSIVE in found else PASSED


def sentence(error: BaseException) -> str:
    """One sentence, and for what nobody foresaw, how to learn more."""
    text = " ".join(str(error).split())
    if isinstance(error, TOLD):
        return text
    return f"{type(error).__name__}: {text[:300]} (--debug shows where)"
