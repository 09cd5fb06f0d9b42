"""A report for a terminal: one line if all is well, else the worst entries, the diagnosis and how to run it again.

The same words come out as plain text where nobody looks: in a file, in a pipe, in a log.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import IO

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gradvet.core.results import Finding, Report, Verdict
from gradvet.reports import words

COLOURS = {
    Verdict.PASS: "bold green",
    Verdict.FAIL: "bold red",
    Verdict.INCONCLUSIVE: "bold yellow",
    Verdict.SKIPPED: "dim",
}
WORST = 5
"""So many entries of a finding are shown."""

LINE = 140
"""The width where no terminal gives one."""


def console_for(stream: IO[str] | None = None, *, stderr: bool = False) -> Console:
    """A console on a stream; what is not a terminal gets neither colours nor a terminal's narrow width."""
    console = Console(file=stream, stderr=stderr, highlight=False)
    return console if console.is_terminal else Console(file=stream, stderr=stderr, highlight=False, width=LINE)


def show(reports: Iterable[Report], console: Console | None = None) -> None:
    """Print reports one below the other, as plain text where the console is not a terminal."""
    console = console or console_for()
    for report in reports:
        if console.options.ascii_only:
            console.out(_in_ascii(plain(report)), highlight=False)
        elif console.is_terminal:
            console.print(renderable(report))
        else:
            console.out(plain(report), highlight=False)


def plain(report: Report) -> str:
    """The same as plain text."""
    stream = io.StringIO()
    console_for(stream).print(renderable(report))
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


def renderable(report: Report) -> RenderableType:
    """One line for a pass; more where there is more to say."""
    head = _head(report)
    if report.verdict is Verdict.PASS:
        return Group(head, *(_line("note", note) for note in report.notes)) if report.notes else head
    parts: list[RenderableType] = [head]
    for finding in words.telling(report):
        parts += _finding(finding)
    return Group(*parts, *_footer(report))


def _head(report: Report) -> Text:
    head = Text(overflow="fold")
    head.append(report.verdict.value.upper(), COLOURS[report.verdict])
    head.append(f" {report.title}", "bold")
    details = [part for part in (words.power(report), words.cost(report)) if part]
    return head.append(f"  {'; '.join(details)}", "dim")


def _finding(finding: Finding) -> Iterator[RenderableType]:
    colour = COLOURS[finding.verdict]
    yield Padding(Text.assemble((finding.check, colour), f": {finding.headline}"), (0, 0, 0, 2))
    if finding.mismatches:
        yield Padding(_table(finding), (0, 0, 0, 2))
    if finding.advice:
        yield Padding(Text(finding.advice, "italic"), (0, 0, 0, 4))


def _table(finding: Finding) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
    for title in ("output", "input"):
        table.add_column(title, overflow="fold")
    for title in ("derivative", "finite differences ± error", "ratio"):
        table.add_column(title, justify="right", no_wrap=True)
    for entry in finding.mismatches[:WORST]:
        table.add_row(
            str(entry.output),
            str(entry.input),
            words.number(entry.derivative),
            words.bar(entry),
            words.ratio(entry),
        )
    return table


def _footer(report: Report) -> Iterator[RenderableType]:
    for note in report.notes:
        yield _line("note", note)
    for line in report.coverage:
        name, _, rest = line.partition(": ")
        yield _line(name, rest, brief=name == "not exercised") if rest else _line("coverage", line)
    if report.source is not None:
        yield _line("code", f"{report.source.file}:{report.source.line}")
    if report.replay:
        yield _line("again", report.replay)


def _line(name: str, text: str, brief: bool = False) -> Padding:
    """A name and what belongs to it; brief: cut at the end of the line."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True, min_width=len(name) + 1)
    grid.add_column(overflow="ellipsis" if brief else "fold", no_wrap=brief)
    grid.add_row(Text(f"{name}:", "dim"), Text(text, "dim"))
    return Padding(grid, (0, 0, 0, 2))


def _in_ascii(text: str) -> str:
    """For streams that can say nothing else."""
    return text.replace("±", "+/-").replace("─", "-").encode("ascii", "replace").decode()
