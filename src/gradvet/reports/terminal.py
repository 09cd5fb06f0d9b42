"""A report for a terminal, and the same as plain text for files, pipes and logs.

A pass is one line. An inconclusive report begins with what was not compared; a failure with the worst entries and the
diagnosis. The command that reproduces the report comes last. Text of the user is never read as markup.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import IO, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gradvet.core.results import Finding, Report, Verdict
from gradvet.reports import wording
from gradvet.reports.ledger_table import HEADINGS, LedgerLine, shown_in_terminal, what_to_do, why_not_pass

COLOURS = {
    Verdict.PASS: "bold green",
    Verdict.FAIL: "bold red",
    Verdict.INCONCLUSIVE: "bold yellow",
    Verdict.SKIPPED: "dim",
}
MAX_TABLE_ROWS = 5
"""Number of wrong entries shown for one finding."""

UNLIMITED_WIDTH = 10_000
"""Line width in columns for output that is not a terminal: programs and searches need unbroken lines."""


def console_for(stream: IO[str] | None = None, *, stderr: bool = False) -> Console:
    """A console on a stream; without colours and line breaks if the stream is not a terminal."""
    console = _console(file=stream, stderr=stderr)
    return console if console.is_terminal else _console(file=stream, stderr=stderr, width=UNLIMITED_WIDTH)


def _console(**settings: Any) -> Console:
    """A console that writes to its stream in Jupyter too, where rich would show its output as a cell's result."""
    return Console(highlight=False, markup=False, emoji=False, force_jupyter=False, **settings)


def show(reports: Iterable[Report], console: Console | None = None) -> None:
    """Print reports one after the other, as plain text if the console is not a terminal."""
    console = console or console_for()
    for report in reports:
        if console.options.ascii_only:
            console.out(_to_ascii(plain(report)), highlight=False)
        elif console.is_terminal:
            console.print(renderable(report))
        else:
            console.out(plain(report), highlight=False)


def plain(report: Report, width: int = UNLIMITED_WIDTH) -> str:
    """A report as plain text, in lines of at most `width` columns."""
    stream = io.StringIO()
    _console(file=stream, width=width, color_system=None).print(renderable(report))
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


def renderable(report: Report) -> RenderableType:
    """A report for rich: one line and the notes for a pass, all notable findings otherwise."""
    head = _head(report)
    if report.verdict is Verdict.PASS:
        return Group(head, *(_line("note", note) for note in report.notes))
    findings = [part for finding in wording.notable_findings(report) for part in _finding(finding)]
    ledger = list(_ledger(report))
    parts = [*findings, *ledger] if report.verdict is Verdict.FAIL else [*ledger, *findings]
    return Group(head, *parts, *_footer(report))


def _head(report: Report) -> Text:
    one_line = report.verdict is Verdict.PASS
    head = Text(overflow="ellipsis" if one_line else "fold", no_wrap=one_line)
    head.append(str(report.verdict), COLOURS[report.verdict])
    head.append(f" {report.title}", "bold")
    skipped = wording.not_exercised_names(report) if one_line else ""
    details = [wording.resolution(report), skipped and f"not exercised: {skipped}", wording.cost(report)]
    return head.append(f"  {'; '.join(filter(None, details))}", "dim")


def _ledger(report: Report) -> Iterator[RenderableType]:
    """Why the report is not a pass, the table of the ledger, and what to do."""
    for sentence in why_not_pass(report):
        yield _indented(Text(sentence, COLOURS[Verdict.INCONCLUSIVE]))
    if lines := shown_in_terminal(report):
        yield _indented(_ledger_table(lines))
    if advice := what_to_do(report):
        yield _indented(Text(advice, "italic"), 4)


def _ledger_table(lines: Iterable[LedgerLine]) -> Table:
    table = _empty_table()
    table.add_column(HEADINGS[0], overflow="fold")
    for title in HEADINGS[1:3]:
        table.add_column(title)
    for title in HEADINGS[3:5]:
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column(HEADINGS[5], overflow="fold")
    for line in lines:
        colour = COLOURS[Verdict.INCONCLUSIVE] if line.is_open else ""
        table.add_row(*map(Text, line.cells[:5]), Text(line.verdict, colour))
    return table


def _empty_table() -> Table:
    return Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)


def _finding(finding: Finding) -> Iterator[RenderableType]:
    colour = COLOURS[finding.verdict]
    yield _indented(Text.assemble((finding.check, colour), f": {finding.headline}"))
    if finding.mismatches:
        yield _indented(_table(finding))
    if finding.advice:
        yield _indented(Text(finding.advice, "italic"), 4)


def _table(finding: Finding) -> Table:
    table = _empty_table()
    for title in ("output", "input"):
        table.add_column(title, overflow="fold")
    for title in ("derivative", "numerical ± error", "ratio"):
        table.add_column(title, justify="right", no_wrap=True)
    for entry in finding.mismatches[:MAX_TABLE_ROWS]:
        table.add_row(
            Text(str(entry.output)),
            Text(str(entry.input)),
            Text(wording.number(entry.derivative)),
            Text(wording.numerical(entry)),
            Text(wording.ratio(entry)),
        )
    return table


def _footer(report: Report) -> Iterator[RenderableType]:
    for note in report.notes:
        yield _line("note", note)
    if exercised := wording.exercised(report):
        yield _line("exercised", exercised)
    for label, text in wording.other_coverage(report):
        yield _line(label, text)
    for reason, names in wording.not_exercised(report).items():
        line = f"  not exercised: {': '.join(filter(None, (', '.join(names), reason)))}"
        yield Text(line, "dim", overflow="ellipsis", no_wrap=True)
    if report.source is not None:
        yield _line("code", f"{report.source.file}:{report.source.line}")
    if report.replay:
        yield _line("reproduce", report.replay)


def _line(label: str, text: str) -> Padding:
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True, min_width=len(label) + 1)
    grid.add_column(overflow="fold")
    grid.add_row(Text(f"{label}:", "dim"), Text(text, "dim"))
    return _indented(grid)


def _indented(content: RenderableType, columns: int = 2) -> Padding:
    return Padding(content, (0, 0, 0, columns), expand=False)


def _to_ascii(text: str) -> str:
    return text.replace("±", "+/-").replace("─", "-").encode("ascii", "replace").decode()
