"""Reports as JSON files, with the version of the format."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from gradvet.core.results import FORMAT, Report


class UnreadableReportError(ValueError):
    """A file does not contain reports of this version of gradvet."""


class UnwritableFileError(OSError):
    """An output file cannot be written; the message says what to do."""


def writable_path(path: str | Path) -> Path:
    """The path of an output file. Creates its folder; raises `UnwritableFileError` if the file cannot be written."""
    file = Path(path)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        is_writable = not file.is_dir() and os.access(file if file.exists() else file.parent, os.W_OK)
    except OSError:
        is_writable = False
    if not is_writable:
        raise UnwritableFileError(f"{path} cannot be written: name a file in a folder that is writable")
    return file


def save(reports: Sequence[Report], path: str | Path) -> None:
    """Write reports to a file that `load` reads."""
    document = {"format": FORMAT, "reports": [report.to_dict() for report in reports]}
    writable_path(path).write_text(json.dumps(document, indent=2), encoding="utf-8")


def load(path: str | Path) -> list[Report]:
    """Read the reports in a file that `save` or `Report.save` wrote."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
        entries = document.get("reports", [document])
        return [Report.from_dict(entry) for entry in entries]
    except OSError as error:
        raise UnreadableReportError(f"{path} cannot be read ({error.strerror}): give a file that exists") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnreadableReportError(
            f"{path} is not a gradvet report ({error}): give a JSON file that this version of gradvet wrote"
        ) from error
