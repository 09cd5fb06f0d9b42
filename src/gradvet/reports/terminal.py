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

ENDLESS = 10_000
"""The width where no terminal gives one: what is read by programs, or searched, is not broken into lines."""


def console_for(stream: IO[str] | None = None, *, stderr: bool = False) -> Console:
    """A console on a stream; what is not a terminal gets neither colours nor a terminal's narrow width."""
    console = Console(file=stream, stderr=stderr, highlight=False)
    return console if console.is_terminal else Console(file=stream, stderr=stderr, highlight=False, width=ENDLESS)


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


def plain(report: Report, width: int = ENDLESS) -> str:
    """The same as plain text, in lines of at most a width."""
    stream = io.StringIO()
    Console(file=stream, highlight=False, width=width, color_system=None).print(renderable(report))
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


def renderable(report: Report) -> RenderableType:
    """One line for a pass; more where there is more to say."""
    head = _head(report)
    if report.verdict is Verdict.PASS:
        return Group(head, *(_line("note", note) for note in report.notes))
    parts: list[RenderableType] = [head]
    for finding in words.telling(report):
        parts += _finding(finding)
    return Group(*parts, *_footer(report))


def _head(report: Report) -> Text:
    one_line = report.verdict is Verdict.PASS
    head = Text(overflow="ellipsis" if one_line else "fold", no_wrap=one_line)
    head.append(report.verdict.value.upper(), COLOURS[report.verdict])
    head.append(f" {report.title}", "bold")
    gaps = words.gaps(report) if one_line else ""
    details = [words.power(report), gaps and f"not exercised: {gaps}", words.cost(report)]
    return head.append(f"  {'; '.join(filter(None, details))}", "dim")


def _finding(finding: Finding) -> Iterator[RenderableType]:
    colour = COLOURS[finding.verdict]
    yield _indented(Text.assemble((finding.check, colour), f": {finding.headline}"))
    if finding.mismatches:
        yield _indented(_table(finding))
    if finding.advice:
        yield _indented(Text(finding.advice, "italic"), 4)


def _table(finding: Finding) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
    for title in ("output", "input"):
        table.add_column(title, overflow="fold")
    for title in ("derivative", "numerical ± error", "ratio"):
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
    if exercised := words.exercised(report):
        yield _line("exercised", exercised)
    for name, what in words.tried(report):
        yield _line(name, what)
    for reason, names in words.left_out(report).items():
        line = f"  not exercised: {': '.join(filter(None, (', '.join(names), reason)))}"
        yield Text(line, "dim", overflow="ellipsis", no_wrap=True)
    if report.source is not None:
        yield _line("code", f"{report.source.file}:{report.source.line}")
    if report.replay:
        yield _line("again", report.replay)


def _line(name: str, text: str) -> Padding:
    """A name and what belongs to it."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True, min_width=len(name) + 1)
    grid.add_column(overflow="fold")
    grid.add_row(Text(f"{name}:", "dim"), Text(text, "dim"))
    return _indented(grid)


def _indented(what: RenderableType, columns: int = 2) -> Padding:
    return Padding(what, (0, 0, 0, columns), expand=False)


def _in_ascii(text: str) -> str:
    """For streams that can say nothing else."""
    return text.replace("±", "+/-").replace("─", "-").encode("ascii", "replace").decode()
