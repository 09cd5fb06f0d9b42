"""Reports as JSON files, with the version of the format."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradvet.core.results import FORMAT, Report, escape_controls, read_report, replace_file
from gradvet.reports.wording import one_line

MALFORMED = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""Exceptions of reading a document that is not what it should be."""


MAX_FILE_BYTES = 2**29
"""Size of a file that is read."""


class ReportFileError(OSError):
    """A file cannot be written, or does not contain reports of this version of gradvet; the message says what to do."""


def writable_path(path: str | Path) -> Path:
    """The path of an output file. Creates its folder; raises `ReportFileError` if the file cannot be written."""
    file = Path(path)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        is_writable = not file.resolve().is_dir() and os.access(file if file.exists() else file.parent, os.W_OK)
    except (OSError, RuntimeError):  # RuntimeError: links that lead to themselves, in early versions of Python
        is_writable = False
    if not is_writable:
        raise ReportFileError(f"{path} cannot be written: name a file in a folder that is writable")
    return file


def require_writable(*paths: str | None) -> None:
    """Fail early if an output file cannot be written."""
    for path in filter(None, paths):
        writable_path(path)


def write_text(path: str | Path, text: str) -> None:
    """Write an output file whole or not at all."""
    file = writable_path(path)
    try:
        replace_file(file, text)
    except OSError as error:
        message = f"{path} was not written ({error.strerror}): free some space, or name another file"
        raise ReportFileError(message) from error


def save(reports: Sequence[Report], path: str | Path) -> None:
    """Write reports to a file that `load` reads."""
    document = {"format": FORMAT, "reports": [report.to_dict() for report in reports]}
    write_text(path, json.dumps(document, indent=2))


def load(path: str | Path) -> list[Report]:
    """Read the reports in a file that `save` or `Report.save` wrote. Of several, a damaged one is an ERROR."""
    try:
        document = json.loads(_content(path))
        if isinstance(document, dict) and document.get("kind") == "blame":
            raise ReportFileError(
                f"{path} is the report of gradvet.blame or gradvet.watch, which this command does not show: "
                "save it as .html to look at it"
            )
        if "reports" not in document:
            return [read_report(document)]
        if document.get("format") != FORMAT:
            raise ValueError(f"format {FORMAT} was expected, found format {document.get('format')!r}")
        return [_entry(entry, number) for number, entry in enumerate(list(document["reports"]))]
    except ReportFileError:
        raise
    except OSError as error:
        raise ReportFileError(f"{path} cannot be read ({error.strerror}): give a file that exists") from error
    except MALFORMED as error:
        raise ReportFileError(
            f"{path} is not a gradvet report ({one_line(error)}): give a JSON file that this version of gradvet wrote"
        ) from error


def _content(path: str | Path) -> str:
    """The text of a file. Raises ValueError if it is too long, or if it is a pipe, which may never end."""
    if os.path.exists(path) and not os.path.isfile(path) and Path("/dev") not in Path(path).parents:
        raise ValueError("it is no regular file")
    with open(path, "rb") as stream:
        content = stream.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise ValueError(f"it has more than {MAX_FILE_BYTES} bytes")
    return content.decode()


def _entry(data: Any, number: int) -> Report:
    try:
        return read_report(data)
    except MALFORMED as error:
        title = data.get("title") if isinstance(data, dict) else None
        message = f"this report cannot be read ({one_line(error)})"
        return Report.of_error(escape_controls(str(title or f"report {number}")), "damaged", message)
