"""Renderers of reports: terminal, JSON files, HTML page. They import results and nothing else of gradvet."""

from __future__ import annotations

from gradvet.core.blame import BlameReport
from gradvet.core.results import RENDERERS, Report


def _html(report: Report) -> str:
    from gradvet.reports.html import fragment

    return fragment(report)


def _text(report: Report) -> str:
    from gradvet.reports.terminal import plain

    return plain(report)


def _verbose(report: Report) -> str:
    from gradvet.reports.terminal import plain

    return plain(report, verbose=True)


def _page(report: Report) -> str:
    from gradvet.reports.html import page

    return page([report], report.title)


def _blame_html(report: BlameReport) -> str:
    from gradvet.reports.blame import fragment

    return fragment(report)


def _blame_text(report: BlameReport) -> str:
    from gradvet.reports.blame import text

    return text(report)


def _blame_page(report: BlameReport) -> str:
    from gradvet.reports.blame import page

    return page(report)


RENDERERS.update(html=_html, text=_text, verbose=_verbose, page=_page)
RENDERERS.update({"blame html": _blame_html, "blame text": _blame_text, "blame page": _blame_page})
