"""`gradvet ops`: check PyTorch's operators on the samples of its operator database."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

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
from gradvet.core.results import Report, Verdict
from gradvet.reports import html, summary, terminal, wording

if TYPE_CHECKING:
    from gradvet.suite.case import CaseResult


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
    from gradvet.suite.operators import Operators
    from gradvet.suite.run import Run

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
    summary.show(rows, console)
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
        self._rows: list[summary.Summary] = []

    def add(self, result: CaseResult) -> None:
        if self._group and _group_name(self._group[0]) != _group_name(result):
            self._summarise_group()
        self._group.append(result)

    def finish(self) -> list[summary.Summary]:
        if self._group:
            self._summarise_group()
        return self._rows

    def _summarise_group(self) -> None:
        from gradvet.frontends.torch.opdb.samples import group_named

        name = _group_name(self._group[0])
        reports = [result.report for result in self._group]
        upstream_marks = map(str, group_named(name, self.device).marks())
        self._rows.append(summary.Summary.of(name, reports, upstream_marks))
        self.first_failures += [report for report in reports if report.verdict is Verdict.FAIL][:1]
        self.reports += reports if self.keep_reports else []
        self._group = []


def _group_name(result: CaseResult) -> str:
    return result.name.rpartition("/")[0]
