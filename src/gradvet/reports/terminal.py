"""A report for a terminal, and the same as plain text for files, pipes and logs.

A pass is one line. An inconclusive report begins with what was not compared; a failure with the worst entries and the
diagnosis. The command that reproduces the report comes last. Without `verbose`, a report fits one screen. Text of the
user is never read as markup.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any, Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gradvet.core.results import Finding, Report, Verdict
from gradvet.reports import wording
from gradvet.reports.ledger_table import (
    HEADINGS,
    LedgerLine,
    brief_findings,
    shown_in_terminal,
    what_to_do,
    why_not_pass,
)

COLOURS = {
    Verdict.PASS: "bold green",
    Verdict.FAIL: "bold red",
    Verdict.INCONCLUSIVE: "bold yellow",
    Verdict.ERROR: "bold magenta",
    Verdict.SKIPPED: "dim",
}
MAX_TABLE_ROWS = 5
"""Number of wrong entries shown for one finding."""

MAX_NOTES = 4
"""Number of notes in a report that fits one screen."""

UNLIMITED_WIDTH = 10_000
"""Line width in columns for output that is not a terminal: programs and searches need unbroken lines."""


def console_for(stream: IO[str] | None = None, *, stderr: bool = False) -> Console:
    """A console on a stream; without colours and line breaks if the stream is not a terminal."""
    console = console_without_markup(file=stream, stderr=stderr)
    return console if console.is_terminal else console_without_markup(file=stream, stderr=stderr, width=UNLIMITED_WIDTH)


def console_without_markup(**settings: Any) -> Console:
    """A console that writes to its stream in Jupyter too, where rich would show its output as a cell's result."""
    return Console(highlight=False, markup=False, emoji=False, force_jupyter=False, **settings)


def show(reports: Iterable[Report], console: Console | None = None, *, verbose: bool = False) -> None:
    """Print reports one after the other, as plain text if the console is not a terminal."""
    console = console or console_for()
    for report in reports:
        if console.options.ascii_only:
            console.out(_to_ascii(plain(report, verbose=verbose)), highlight=False)
        elif console.is_terminal:
            console.print(renderable(report, verbose=verbose))
        else:
            console.out(plain(report, verbose=verbose), highlight=False)


def plain(report: Report, width: int = UNLIMITED_WIDTH, *, verbose: bool = False) -> str:
    """A report as plain text, in lines of at most `width` columns."""
    return plain_text(renderable(report, verbose=verbose), width)


def plain_text(shown: RenderableType, width: int = UNLIMITED_WIDTH) -> str:
    """The output of rich as plain text in lines of at most `width` columns."""
    stream = io.StringIO()
    console_without_markup(file=stream, width=width, color_system=None).print(shown)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


def renderable(report: Report, *, verbose: bool = False) -> RenderableType:
    """A report for rich: one line and the notes for a pass; otherwise what fits one screen, or all if `verbose`."""
    head = _head(report)
    if report.verdict is Verdict.PASS and not verbose:
        return Group(head, *(labelled("note", note) for note in report.notes))
    notable, others = (wording.notable_findings(report), []) if verbose else brief_findings(report)
    findings = [part for finding in notable for part in _finding(finding)]
    findings += [labelled(label, text) for label, text in others]
    ledger = list(_ledger(report, verbose=verbose))
    parts = [*findings, *ledger] if report.verdict is Verdict.FAIL else [*ledger, *findings]
    return Group(head, *parts, *(_details(report) if verbose else _brief_details(report)), *_footer(report))


def _head(report: Report) -> Text:
    one_line = report.verdict is Verdict.PASS
    head = Text(overflow="ellipsis" if one_line else "fold", no_wrap=one_line)
    head.append(str(report.verdict), COLOURS[report.verdict])
    head.append(f" {report.title}", "bold")
    skipped = wording.not_exercised_names(report) if one_line else ""
    if report.verdict is Verdict.ERROR:
        return head
    details = [wording.resolution(report), skipped and f"not exercised: {skipped}", wording.cost(report)]
    return head.append(f"  {'; '.join(filter(None, details))}", "dim")


def _ledger(report: Report, *, verbose: bool) -> Iterator[RenderableType]:
    """Why the report is not a pass, the table of the ledger, and what to do. In a failure, the table says why."""
    for sentence in why_not_pass(report) if verbose or not report.failures else ():
        yield indented(Text(sentence, COLOURS[Verdict.INCONCLUSIVE]))
    if lines := shown_in_terminal(report):
        yield indented(_ledger_table(lines))
    if advice := what_to_do(report):
        yield indented(Text(advice, "italic"), 4)


def _ledger_table(lines: Iterable[LedgerLine]) -> Table:
    table = empty_table(dict(zip(HEADINGS, (False, False, False, True, True, False), strict=True)))
    for line in lines:
        colour = COLOURS[Verdict.INCONCLUSIVE] if line.is_open else ""
        table.add_row(*map(Text, line[:5]), Text(line.verdict, colour))
    return table


def empty_table(columns: Mapping[str, bool]) -> Table:
    """A table with these headings. Numbers are aligned at the right and not broken into lines."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
    for heading, has_numbers in columns.items():
        justify: Literal["left", "right"] = "right" if has_numbers else "left"
        table.add_column(heading, justify=justify, no_wrap=has_numbers, overflow="fold")
    return table


def _finding(finding: Finding) -> Iterator[RenderableType]:
    colour = COLOURS[finding.verdict]
    yield indented(Text.assemble((finding.check, colour), f": {finding.headline}"))
    if finding.mismatches:
        yield indented(mismatch_table(finding))
    if finding.advice:
        yield indented(Text(finding.advice, "italic"), 4)


def mismatch_table(finding: Finding) -> Table:
    numbers = dict.fromkeys(("derivative", "numerical ± error", "ratio"), True)
    table = empty_table({"output": False, "input": False, **numbers})
    for entry in finding.mismatches[:MAX_TABLE_ROWS]:
        cells = (entry.output, entry.input, wording.number(entry.derivative), wording.numerical(entry))
        table.add_row(*(Text(str(cell)) for cell in cells), Text(wording.ratio(entry)))
    return table


def _brief_details(report: Report) -> Iterator[RenderableType]:
    """The first notes, and the names of what did not run."""
    for note in report.notes[:MAX_NOTES]:
        yield labelled("note", note)
    more = len(report.notes) - MAX_NOTES
    hidden = [f"shows {wording.counted(more, 'more note')}"] if more > 0 else []
    if names := wording.not_exercised_names(report):
        yield labelled("not exercised", names)
        hidden.append("says why checks did not run")
    if hidden:
        yield labelled("more", f"report.text(verbose=True), or -v on the command line, {' and '.join(hidden)}")


def _details(report: Report) -> Iterator[RenderableType]:
    for note in report.notes:
        yield labelled("note", note)
    for label, text in wording.coverage(report):
        yield labelled(label, text)


def _footer(report: Report) -> Iterator[RenderableType]:
    if report.source is not None:
        yield labelled("code", f"{report.source.file}:{report.source.definition_line}")
    if report.replay:
        yield labelled("reproduce", report.replay)


def labelled(label: str, text: str) -> Padding:
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True, min_width=len(label) + 1)
    grid.add_column(overflow="fold")
    grid.add_row(Text(f"{label}:", "dim"), Text(text, "dim"))
    return indented(grid)


def indented(content: RenderableType, columns: int = 2) -> Padding:
    return Padding(content, (0, 0, 0, columns), expand=False)


def _to_ascii(text: str) -> str:
    return text.replace("±", "+/-").replace("─", "-").encode("ascii", "replace").decode()
