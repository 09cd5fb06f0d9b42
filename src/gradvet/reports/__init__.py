"""Ways to see a report. They read results and nothing else."""

from __future__ import annotations

from gradvet.core.results import RENDERERS, Report


def _notebook(report: Report) -> str:
    from gradvet.reports.html import fragment

    return fragment(report)


RENDERERS["html"] = _notebook
