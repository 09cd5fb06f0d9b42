"""Reports as an HTML page: one file with scripts, styles and figures, which opens offline."""

from __future__ import annotations

import datetime
import importlib.metadata
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from gradvet.core.results import Report, SourceCode, Verdict
from gradvet.reports import ledger_table, wording
from gradvet.reports.figures import figures
from gradvet.reports.json_files import writable_path, write_text

INSTALL_HINT = "The HTML report needs Jinja2: install it with pip install 'gradvet[report]'."


class MissingLibraryError(ImportError):
    """A library of the extra `report` is not installed."""


def page(reports: Sequence[Report], title: str = "gradvet") -> str:
    """An HTML document about many checks, with search, filters and figures."""
    drawn = {
        (i, j): list(figures(finding))
        for i, report in enumerate(reports)
        for j, finding in enumerate(wording.illustrated_findings(report))
    }
    return str(
        templates()
        .get_template("page.html.j2")
        .render(
            title=title,
            reports=sorted(enumerate(reports), key=lambda pair: wording.VERDICT_ORDER.index(pair[1].verdict)),
            figures=drawn,
            counts=Counter(report.verdict for report in reports),
            verdicts=wording.VERDICT_ORDER[:4],
            version=importlib.metadata.version("gradvet"),
            created=datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        )
    )


def fragment(report: Report) -> str:
    """One report for a notebook, without scripts and figures."""
    try:
        template = templates().get_template("fragment.html.j2")
    except MissingLibraryError:
        from html import escape

        return f"<pre>{escape(str(report))}</pre>"
    return str(template.render(report=report))


def require_writable(html_file: str | None, json_file: str | None) -> None:
    """Fail early if an output file cannot be written, or if a library for the page is missing."""
    for path in filter(None, (html_file, json_file)):
        writable_path(path)
    if html_file is not None:
        page([])


def write(reports: Sequence[Report], path: str | Path, title: str = "gradvet") -> None:
    """Write the page to a file."""
    write_text(path, page(reports, title))


@cache
def templates() -> Any:
    try:
        import jinja2
    except ImportError as error:
        raise MissingLibraryError(INSTALL_HINT) from error
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.globals.update(wording=wording, Verdict=Verdict, styles=_code_styles)
    environment.globals.update(ledger_lines=ledger_table.ledger_lines, headings=ledger_table.HEADINGS)
    environment.globals.update(why_not_pass=ledger_table.why_not_pass, what_to_do=ledger_table.what_to_do)
    environment.globals.update(headline=ledger_table.headline)
    environment.filters.update(code=_code)
    return environment


def _code(source: SourceCode) -> Any:
    """Highlighted Python code with the line numbers of its file."""
    from markupsafe import Markup
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import PythonLexer

    formatter = HtmlFormatter(cssclass="code", linenos="inline", linenostart=source.line)
    return Markup(highlight(source.code, PythonLexer(), formatter))


def _code_styles(style: str) -> str:
    from pygments.formatters import HtmlFormatter

    return str(HtmlFormatter(style=style).get_style_defs(".code"))
