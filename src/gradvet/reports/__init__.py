"""Renderers of reports: terminal, JSON files, HTML page. They import results and nothing else of gradvet."""

from __future__ import annotations

from gradvet.core.results import RENDERERS, Report


def _html(report: Report) -> str:
    from gradvet.reports.html import fragment

    return fragment(report)


def _text(report: Report) -> str:
    from gradvet.reports.terminal import plain

    return plain(report)


def _page(report: Report) -> str:
    from gradvet.reports.html import page

    return page([report], report.title)


RENDERERS.update(html=_html, text=_text, page=_page)
