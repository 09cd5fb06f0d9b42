"""Renderers of reports: terminal, JSON files, HTML page. Of gradvet, they import results alone."""

from __future__ import annotations

from functools import partial

from gradvet.core.results import RENDERERS
from gradvet.reports import blame, html, terminal

RENDERERS.update(
    {
        "html": html.fragment,
        "page": lambda report: html.page([report], report.title),
        "text": terminal.plain,
        "verbose": partial(terminal.plain, verbose=True),
        "blame html": blame.fragment,
        "blame page": blame.page,
        "blame text": blame.text,
    }
)
