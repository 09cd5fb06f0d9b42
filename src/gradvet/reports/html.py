"""Reports as a page: one file that holds all it needs, so that it opens offline and can be sent by mail."""

from __future__ import annotations

import datetime
import importlib.metadata
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from gradvet.core.results import Finding, Report, SourceCode, Verdict
from gradvet.reports import words
from gradvet.reports.figures import figures
from gradvet.reports.files import prepared

EXTRA = "The HTML report needs Jinja2 and plotly: install them with pip install 'gradvet[report]'."


class MissingLibraryError(ImportError):
    """A library of the extra `report` is not installed."""


def page(reports: Sequence[Report], title: str = "gradvet") -> str:
    """A whole document about many checks, with search, filters and figures."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise MissingLibraryError(EXTRA) from error
    drawn = {(i, j): list(figures(finding)) for i, j, finding in _telling(reports)}
    return str(
        _templates()
        .get_template("page.html.j2")
        .render(
            title=title,
            reports=sorted(enumerate(reports), key=lambda pair: words.ORDER.index(pair[1].verdict)),
            figures=drawn,
            counts=Counter(report.verdict for report in reports),
            verdicts=words.ORDER[:3],
            version=importlib.metadata.version("gradvet"),
            made=datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
            plotly=get_plotlyjs() if any(drawn.values()) else "",
        )
    )


def fragment(report: Report) -> str:
    """One report for a notebook: no scripts and no figures."""
    try:
        template = _templates().get_template("fragment.html.j2")
    except MissingLibraryError:
        from html import escape

        return f"<pre>{escape(str(report))}</pre>"
    return str(template.render(report=report))


def write(reports: Sequence[Report], path: str | Path, title: str = "gradvet") -> None:
    """Write the page to a file."""
    prepared(path).write_text(page(reports, title), encoding="utf-8")


def _telling(reports: Sequence[Report]) -> Iterator[tuple[int, int, Finding]]:
    for i, report in enumerate(reports):
        for j, finding in enumerate(words.telling(report)):
            yield i, j, finding


@cache
def _templates() -> Any:
    try:
        import jinja2
    except ImportError as error:
        raise MissingLibraryError(EXTRA) from error
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.globals.update(words=words, Verdict=Verdict, styles=_code_styles)
    environment.filters.update(code=_code, script=_script, data=_data)
    return environment


def _code(source: SourceCode) -> Any:
    """Python code with colours and the line numbers of its file."""
    from markupsafe import Markup
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import PythonLexer

    formatter = HtmlFormatter(cssclass="code", linenos="inline", linenostart=source.line)
    return Markup(highlight(source.code, PythonLexer(), formatter))


def _code_styles(style: str) -> str:
    from pygments.formatters import HtmlFormatter

    return str(HtmlFormatter(style=style).get_style_defs(".code"))


def _script(text: str) -> Any:
    """JavaScript for a script element: what would end the element is written in another way."""
    from markupsafe import Markup

    return Markup(text.replace("</script", "<\\/script").replace("<!--", "<\\!--"))


def _data(text: str) -> Any:
    """JSON for a script element: no tag can begin in it."""
    from markupsafe import Markup

    return Markup(text.replace("<", "\\u003c"))
