"""Ways to see a report. They read results and nothing else."""

from __future__ import annotations

from gradvet.core.results import RENDERERS, Report


def _notebook(report: Report) -> str:
    from gradvet.reports.html import fragment

    return fragment(report)


def _text(report: Report) -> str:
    from gradvet.reports.terminal import plain

    return plain(report)


RENDERERS.update(html=_notebook, text=_text)
