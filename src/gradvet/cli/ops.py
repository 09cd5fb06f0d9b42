"""`gradvet ops`: check PyTorch's operators on samples of its operator database, with one row of a table for each."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gradvet.cli.common import (
    DEBUG_OPTION,
    HTML_OPTION,
    INTERRUPTED,
    JSON_OPTION,
    exit_code,
    run_cases,
    run_options,
    run_seed,
    write_files,
)
from gradvet.core.results import WORST_FIRST, Mismatch, Report, Verdict
from gradvet.reports import html, terminal, wording
from gradvet.reports.terminal import COLOURS

if TYPE_CHECKING:
    from gradvet.suite import CaseResult


@click.command("ops", short_help="Check PyTorch's own operators.")
@click.option("--op", "glob", default="*", metavar="GLOB", help="Operators by full name, such as 'linalg.*'.")
@click.option("--case", "cases", multiple=True, metavar="NAME", help="A single sample, such as addmm/float64/3.")
@click.option(
    "--dtype", "dtypes", multiple=True, default=("float64",), show_default=True, help="Dtype of samples; repeatable."
)
@click.option("--device", default="cpu", show_default=True, help="Device for the samples.")
@click.option(
    "--order", type=click.IntRange(1, 2), default=1, show_default=True, help="2 also checks second derivatives."
)
@click.option("--samples", type=click.IntRange(1), metavar="N", help="At most N random samples of each operator.")
@HTML_OPTION
@JSON_OPTION
@run_options
@DEBUG_OPTION
def ops_command(debug: bool, html_file: str | None, json_file: str | None, **options: Any) -> None:
    """Check PyTorch's own operators, on the samples with which PyTorch tests them.

    Prints one line per operator and dtype, and which of PyTorch's gradient tests are skipped or expected to fail.
    """
    from gradvet.suite.run import Run
    from gradvet.suite.sources import Operators

    html.require_writable(html_file, json_file)
    order = options["order"]
    check_options, flags = ({"order": order}, f"--order {order}") if order != 1 else ({}, "")
    selection = (options["glob"], options["dtypes"], options["device"], options["samples"], options["cases"])
    console = terminal.console_for()
    summaries = _Summaries(options["device"], keep_reports=html_file is not None or json_file is not None)
    run = Run(Operators(*selection, flags), run_seed(options), check_options)

    def use(result: CaseResult) -> None:
        if debug and result.error is not None:
            raise result.error
        summaries.add(result)

    was_interrupted = run_cases(run, options, console, use, isolated=not debug, publish=True)
    rows = summaries.finish()
    show(rows, console)
    terminal.show(summaries.first_failures, console)
    click.echo(wording.tally(row.verdict for row in rows))
    write_files(summaries.reports, html_file, json_file)
    sys.exit(INTERRUPTED if was_interrupted else exit_code(row.verdict for row in rows))


class _Summaries:
    """Collects results into one summary per operator, variant and dtype, whose samples are adjacent."""

    def __init__(self, device: str, keep_reports: bool) -> None:
        self.device, self.keep_reports = device, keep_reports
        self.reports: list[Report] = []
        """All reports, if output files need them."""
        self.first_failures: list[Report] = []
        """The first failing report of each group; its other samples mostly fail in the same way."""
        self._group: list[CaseResult] = []
        self._rows: list[Summary] = []

    def add(self, result: CaseResult) -> None:
        if self._group and _group_name(self._group[0]) != _group_name(result):
            self._summarise_group()
        self._group.append(result)

    def finish(self) -> list[Summary]:
        if self._group:
            self._summarise_group()
        return self._rows

    def _summarise_group(self) -> None:
        from gradvet.frontends.torch.opdb import group_named

        name = _group_name(self._group[0])
        reports = [result.report for result in self._group]
        upstream_marks = map(str, group_named(name, self.device).marks())
        self._rows.append(Summary.of(name, reports, upstream_marks))
        self.first_failures += [report for report in reports if report.verdict is Verdict.FAIL][:1]
        self.reports += reports if self.keep_reports else []
        self._group = []


def _group_name(result: CaseResult) -> str:
    return result.name.rpartition("/")[0]


COLUMN_HEADINGS = {
    "reverse": "reverse",
    "forward": "forward",
    "reverse-over-reverse": "r/r",
    "forward-over-reverse": "f/r",
    "reverse-over-forward": "r/f",
    "forward-over-forward": "f/f",
    "symmetry": "symmetry",
}
"""Checks with a column of their own, and the heading of the column."""

OTHERS = "others"
"""Heading of the column for all other checks."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The reports of one operator, or of another group of cases."""

    name: str
    reports: int
    verdicts: Mapping[str, Verdict]
    """The worst verdict of each mode; SKIPPED if no report exercised the mode."""
    worst: Mismatch | None
    resolution: float | None
    calls: int
    seconds: float
    errors: tuple[str, ...] = ()
    """One message for each report with the verdict ERROR."""
    upstream_marks: tuple[str, ...] = ()
    """Gradient tests of PyTorch that are skipped or expected to fail."""

    @property
    def verdict(self) -> Verdict:
        return next((one for one in WORST_FIRST if one in self.verdicts.values()), Verdict.SKIPPED)

    @classmethod
    def of(cls, name: str, reports: Sequence[Report], upstream_marks: Iterable[str] = ()) -> Summary:
        found: dict[str, set[Verdict]] = defaultdict(set)
        for report in reports:
            for finding in report.findings:
                found[_column(finding.check)].add(finding.verdict)
            if not report.is_complete:
                # Findings alone decide no verdict: what the ledger leaves open is inconclusive.
                for column in {_column(row.mode) for row in report.open_rows} or {OTHERS}:
                    found[column].add(Verdict.INCONCLUSIVE)
        resolutions = [report.resolution for report in reports if report.resolution is not None]
        costs = [report.cost for report in reports]
        return cls(
            name,
            len(reports),
            {mode: next(one for one in WORST_FIRST if one in verdicts) for mode, verdicts in found.items()},
            _worst(reports),
            max(resolutions, default=None),
            sum(cost.forwards + cost.vjps + cost.jvps for cost in costs),
            sum(report.seconds for report in reports),
            tuple(
                f"{one.check}: {one.headline}"
                for report in reports
                for one in report.findings
                if one.verdict is Verdict.ERROR
            ),
            tuple(upstream_marks),
        )


def _column(check: str) -> str:
    return check if check in COLUMN_HEADINGS else OTHERS


def _worst(reports: Iterable[Report]) -> Mismatch | None:
    """The wrong entry with the largest relative error."""
    entries = [entry for report in reports for finding in report.failures for entry in finding.mismatches]
    return max(entries, key=_relative_error, default=None)


def _relative_error(entry: Mismatch) -> float:
    error = abs(entry.derivative - entry.numerical)
    return error / (abs(entry.derivative) + abs(entry.numerical)) if error else 0.0


def show(summaries: Sequence[Summary], console: Console) -> None:
    """Print a table with one row per summary, then the remarks."""
    modes = [mode for mode in (*COLUMN_HEADINGS, OTHERS) if any(mode in summary.verdicts for summary in summaries)]
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 2, 0, 0))
    table.add_column("operator", overflow="fold")
    table.add_column("samples", justify="right")
    for mode in modes:
        table.add_column(COLUMN_HEADINGS.get(mode, mode), no_wrap=True)
    for heading in ("resolution", "calls", "time"):
        table.add_column(heading, justify="right", no_wrap=True)
    for summary in summaries:
        table.add_row(*_row(summary, modes))
    console.print(table)
    for summary in summaries:
        for remark in _remarks(summary):
            console.print(Text.assemble((summary.name, "bold"), f": {remark}"))


def _row(summary: Summary, modes: Sequence[str]) -> list[Text]:
    resolution = "" if summary.resolution is None else f"{summary.resolution:.0e}"
    verdicts = [_verdict(summary.verdicts.get(mode, Verdict.SKIPPED)) for mode in modes]
    cost = [str(summary.calls), wording.seconds(summary.seconds)]
    return [Text(summary.name), Text(str(summary.reports)), *verdicts, Text(resolution), *map(Text, cost)]


def _verdict(verdict: Verdict) -> Text:
    shown = {Verdict.SKIPPED: "-", Verdict.INCONCLUSIVE: "unsure", Verdict.FAIL: "FAIL", Verdict.ERROR: "ERROR"}
    return Text(shown.get(verdict, verdict.value), COLOURS[verdict])


def _remarks(summary: Summary) -> Iterable[str]:
    if summary.worst is not None:
        entry = summary.worst
        derivative, numerical = wording.number(entry.derivative), wording.numerical(entry)
        yield f"worst entry: {entry} is {derivative}, finite differences give {numerical}"
    for error, count in Counter(summary.errors).items():
        yield f"{error} (in {count} sample{'' if count == 1 else 's'})"
    if summary.upstream_marks:
        yield f"PyTorch's own tests: {', '.join(summary.upstream_marks)}"
