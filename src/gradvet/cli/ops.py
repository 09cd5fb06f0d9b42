"""`gradvet ops`: check PyTorch's operators on samples of its operator database, with one row of a table for each."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from gradvet.cli.common import (
    INTERRUPTED,
    exit_code,
    run_cases,
    run_options,
    run_seed,
    write_files,
)
from gradvet.core.results import WORST_FIRST, Mismatch, Report, Verdict
from gradvet.reports import json_files, terminal, wording
from gradvet.reports.ledger_table import headline
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
@run_options
def ops_command(html_file: str | None, json_file: str | None, **options: Any) -> None:
    """Check PyTorch's own operators, on the samples with which PyTorch tests them.

    Prints one line per operator and dtype, and which of PyTorch's gradient tests are skipped or expected to fail.
    """
    from gradvet.frontends.torch.opdb import group_named
    from gradvet.suite.run import Run
    from gradvet.suite.sources import Operators

    json_files.require_writable(html_file, json_file)
    order, device = options["order"], options["device"]
    check_options, flags = ({"order": order}, f"--order {order}") if order != 1 else ({}, "")
    source = Operators(options["glob"], options["dtypes"], device, options["samples"], options["cases"], flags)
    console = terminal.console_for()
    summaries: dict[str, Summary] = {}
    reports: list[Report] = []
    first_failures: dict[str, Report] = {}  # other samples of an operator mostly fail in the same way

    def use(result: CaseResult) -> None:
        name = result.name.rpartition("/")[0]
        if name not in summaries:
            summaries[name] = Summary(name, group_named(name, device).marks())
        summaries[name].add(result.report)
        if result.verdict is Verdict.FAIL:
            first_failures.setdefault(name, result.report)
        if html_file is not None or json_file is not None:
            reports.append(result.report)

    run = Run(source, run_seed(options), check_options)
    was_interrupted = run_cases(run, options, console, use, isolated=not options["debug"], publish=True)
    show(summaries.values(), console)
    terminal.show(first_failures.values(), console)
    verdicts = [summary.verdict for summary in summaries.values()]
    click.echo(wording.tally(verdicts))
    write_files(reports, html_file, json_file)
    sys.exit(INTERRUPTED if was_interrupted else exit_code(verdicts))


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

MAX_REASONS = 3
"""Number of errors and reasons that are printed for one operator."""


@dataclass
class Summary:
    """The reports about the samples of one operator, variant and dtype."""

    name: str
    upstream_marks: Sequence[str] = ()
    """Gradient tests of PyTorch that are skipped or expected to fail."""
    samples: int = 0
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    """The worst verdict of each column; SKIPPED if no report exercised it."""
    worst: Mismatch | None = None
    """The wrong entry with the largest relative error."""
    resolution: float | None = None
    calls: int = 0
    seconds: float = 0.0
    reasons: Counter[str] = field(default_factory=Counter)
    """The messages of reports with the verdict ERROR, and why reports are inconclusive."""

    @property
    def verdict(self) -> Verdict:
        return min(self.verdicts.values(), key=WORST_FIRST.index, default=Verdict.SKIPPED)

    def add(self, report: Report) -> None:
        found = [(one.check, one.verdict) for one in report.findings]
        if not report.is_complete:
            # Findings alone decide no verdict: what the ledger leaves open is inconclusive.
            found += [(mode, Verdict.INCONCLUSIVE) for mode in {row.mode for row in report.open_rows} or {OTHERS}]
        for check, verdict in found:
            column = check if check in COLUMN_HEADINGS else OTHERS
            self.verdicts[column] = min(verdict, self.verdicts.get(column, verdict), key=WORST_FIRST.index)
        entries = [entry for finding in report.failures for entry in finding.mismatches]
        self.worst = max(filter(None, (self.worst, *entries)), key=_relative_error, default=None)
        known = [value for value in (self.resolution, report.resolution) if value is not None]
        self.resolution = max(known, default=None)
        self.samples += 1
        self.calls += report.cost.forwards + report.cost.vjps + report.cost.jvps
        self.seconds += report.seconds
        self.reasons.update(f"{one.check}: {one.headline}" for one in report.findings if one.verdict is Verdict.ERROR)
        if report.verdict is Verdict.INCONCLUSIVE:
            self.reasons[f"inconclusive: {headline(report)}"] += 1


def _relative_error(entry: Mismatch) -> float:
    error = abs(entry.derivative - entry.numerical)
    return error / (abs(entry.derivative) + abs(entry.numerical)) if error else 0.0


def show(summaries: Collection[Summary], console: Console) -> None:
    """Print a table with one row per summary, then the remarks."""
    modes = [mode for mode in (*COLUMN_HEADINGS, OTHERS) if any(mode in summary.verdicts for summary in summaries)]
    headings = [COLUMN_HEADINGS.get(mode, mode) for mode in modes]
    numbers = dict.fromkeys(("resolution", "calls", "time"), True)
    table = terminal.empty_table({"operator": False, "samples": True, **dict.fromkeys(headings, False), **numbers})
    for summary in summaries:
        table.add_row(*_row(summary, modes))
    console.print(table)
    for summary in summaries:
        for remark in _remarks(summary):
            console.print(Text.assemble((summary.name, "bold"), f": {remark}"))


def _row(summary: Summary, modes: Sequence[str]) -> list[Text]:
    resolution = "" if summary.resolution is None else f"{summary.resolution:.0e}"
    verdicts = [summary.verdicts.get(mode, Verdict.SKIPPED) for mode in modes]
    names = {Verdict.SKIPPED: "-", Verdict.FAIL: "FAIL", Verdict.ERROR: "ERROR"}
    shown = [Text(names.get(verdict, verdict.value), terminal.COLOURS[verdict]) for verdict in verdicts]
    cost = [str(summary.calls), wording.seconds(summary.seconds)]
    return [Text(summary.name), Text(str(summary.samples)), *shown, Text(resolution), *map(Text, cost)]


def _remarks(summary: Summary) -> Iterator[str]:
    if summary.worst is not None:
        entry = summary.worst
        derivative, numerical = wording.number(entry.derivative), wording.numerical(entry)
        yield f"worst entry: {entry} is {derivative}, finite differences give {numerical}"
    for reason, count in summary.reasons.most_common(MAX_REASONS):
        yield f"{reason} (in {wording.counted(count, 'sample')})"
    if summary.upstream_marks:
        yield f"PyTorch's own tests: {', '.join(summary.upstream_marks)}"
