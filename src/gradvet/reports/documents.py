"""Reports as JSON files: one report, or those of a whole run, with the version of the format."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from gradvet.core.results import FORMAT, Report
from gradvet.reports.files import prepared


class UnreadableReportError(ValueError):
    """A file that was expected to hold reports does not."""


def save(reports: Sequence[Report], path: str | Path) -> None:
    """Write reports so that `load` gives them back."""
    document = {"format": FORMAT, "reports": [report.to_dict() for report in reports]}
    prepared(path).write_text(json.dumps(document, indent=2), encoding="utf-8")


def load(path: str | Path) -> list[Report]:
    """The reports in a file that `save` or `Report.save` wrote."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
        entries = document.get("reports", [document])
        return [Report.from_dict(entry) for entry in entries]
    except OSError as error:
        raise UnreadableReportError(f"{path} cannot be read ({error.strerror}): give a file that exists") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnreadableReportError(
            f"{path} is not a gradvet report ({error}): give a JSON file that gradvet of this version wrote"
        ) from error
