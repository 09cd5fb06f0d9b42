"""`gradvet ops`: check PyTorch's operators on the samples of its own database."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from gradvet.commands.endings import DEBUG, DOCUMENT, INTERRUPTED, PAGE, exit_code, prepare, write
from gradvet.commands.running import performed, place_of, run_options, seed_for
from gradvet.core.results import Report, Verdict
from gradvet.reports import summary, terminal, words

if TYPE_CHECKING:
    from gradvet.suite.job import Outcome


@click.command(short_help="Check PyTorch's own operators.")
@click.option("--op", "glob", default="*", metavar="GLOB", help="Operators by full name, such as 'linalg.*'.")
@click.option("--case", "cases", multiple=True, metavar="NAME", help="A sample alone, such as addmm/float64/3.")
@click.option("--dtype", "dtypes", multiple=True, default=("float64",), show_default=True, help="Repeatable.")
@click.option("--device", default="cpu", show_default=True, help="Where the samples lie.")
@click.option("--order", type=click.IntRange(1, 2), default=1, show_default=True, help="2: second derivatives too.")
@click.option("--samples", type=click.IntRange(1), metavar="N", help="At most N of each operator, taken at random.")
@PAGE
@DOCUMENT
@run_options
@DEBUG
def ops(debug: bool, page: str | None, document: str | None, **given: Any) -> None:
    """Check PyTorch's own operators, on the samples with which PyTorch tests them.

    One line per operator and dtype, with what PyTorch's gradient tests skip or expect to fail beside what was found.
    """
    from gradvet.suite.job import Job
    from gradvet.suite.operators import Operators

    prepare(page, document)
    seconds = given["order"] != 1
    options, flags = ({"order": given["order"]}, f"--order {given['order']}") if seconds else ({}, "")
    source = Operators(given["glob"], given["dtypes"], given["device"], given["samples"], given["cases"], flags)
    console = terminal.console_for()
    gathered = _Gathered(given["device"], keep=page is not None or document is not None)
    interrupted = 0
    try:
        job = Job(source, seed_for(given), options)
        for outcome in performed(job, place_of(given, apart=not debug), given, console, telling=True):
            if debug and outcome.error is not None:
                raise outcome.error
            gathered.add(outcome)
    except KeyboardInterrupt:
        interrupted = INTERRUPTED
        click.echo("gradvet: interrupted; what was checked until then stands", err=True)
    found = gathered.summaries()
    summary.show(found, console)
    terminal.show(gathered.failed, console)
    broken = sum(len(one.troubles) for one in found)
    tally = words.counted(one.verdict for one in found if one.reports)
    click.echo(tally + (f"; {broken} samples could not be carried out" if broken else ""))
    write(gathered.reports, page, document)
    sys.exit(interrupted or exit_code((one.verdict for one in found), broken))


class _Gathered:
    """What is kept of the outcomes as they come: one summary of each operator, variant and dtype."""

    def __init__(self, device: str, keep: bool) -> None:
        self.device, self.keep = device, keep
        self.reports: list[Report] = []
        """All of them, where they are to be written."""
        self.failed: list[Report] = []
        """The first of each operator that fails: its other samples mostly say the same."""
        self._open: list[Outcome] = []
        self._summaries: list[summary.Summary] = []

    def add(self, outcome: Outcome) -> None:
        if self._open and _group(self._open[0]) != _group(outcome):
            self._close()
        self._open.append(outcome)

    def summaries(self) -> list[summary.Summary]:
        self._close()
        return self._summaries

    def _close(self) -> None:
        """The samples of one operator come one after the other; now they are all there."""
        from gradvet.frontends.torch.opdb.roster import group_named

        if not self._open:
            return
        name = _group(self._open[0])
        reports = [one.report for one in self._open if one.report is not None]
        troubles = [f"{one.ending.value}: {one.words}" for one in self._open if one.report is None]
        declared = map(str, group_named(name, self.device).marks())
        self._summaries.append(summary.Summary.of(name, reports, troubles, declared))
        self.failed += [report for report in reports if report.verdict is Verdict.FAIL][:1]
        self.reports += reports if self.keep else []
        self._open = []


def _group(outcome: Outcome) -> str:
    return outcome.name.rpartition("/")[0]
