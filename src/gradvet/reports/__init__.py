"""Renderers of reports: terminal, JSON files, HTML page. Of gradvet, they import results alone."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from gradvet.core.results import RENDERERS


def _renderer(module: str, name: str, **settings: bool) -> Callable[[Any], str]:
    """A function of a module of this package, which is imported when it is first called."""

    def render(report: Any) -> str:
        text: str = getattr(import_module(f"{__name__}.{module}"), name)(report, **settings)
        return text

    return render


RENDERERS.update(
    {
        "html": _renderer("html", "fragment"),
        "page": _renderer("html", "page_of"),
        "text": _renderer("terminal", "plain"),
        "verbose": _renderer("terminal", "plain", verbose=True),
        "blame html": _renderer("blame", "fragment"),
        "blame page": _renderer("blame", "page"),
        "blame text": _renderer("blame", "text"),
    }
)
