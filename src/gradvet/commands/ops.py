"""`gradvet ops`: check PyTorch's operators on the samples of its own database."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

import click

from gradvet.commands.endings import DEBUG, DOCUMENT, PAGE, exit_code, write
from gradvet.commands.running import performed, place_of, run_options, seed_for
from gradvet.core.results import Report, Verdict
from gradvet.reports import summary, terminal, words


@click.command()
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

    source = Operators(
        given["glob"], given["dtypes"], given["device"], given["samples"], given["cases"], given["order"]
    )
    options = {"order": given["order"]} if given["order"] != 1 else {}
    job = Job(source, seed_for(given), options)
    with performed(job, place_of(given, apart=not debug), given) as (store, raised):
        if debug and raised:
            raise next(iter(raised.values()))
        found = list(_summaries(store.outcomes(), given["device"]))
        summary.show(found, terminal.console_for())
        wanted = page is not None or document is not None
        reports = list(_reports(store.outcomes())) if wanted else []
        failed = [one for one in _reports(store.outcomes()) if one.verdict is Verdict.FAIL]
    for report in _one_each(failed):
        terminal.show([report])
    click.echo(words.counted(one.verdict for one in found if one.reports), nl=False)
    troubles = sum(len(one.troubles) for one in found)
    click.echo(f"; {troubles} without a verdict" if troubles else "")
    write(reports, page, document)
    sys.exit(exit_code({one.verdict for one in found}, troubles))


def _summaries(outcomes: Iterable[Any], device: str) -> Iterator[summary.Summary]:
    """One of each operator, variant and dtype; their cases come one after the other."""
    from gradvet.frontends.torch.opdb.roster import group_named

    for name, group in groupby(outcomes, key=lambda outcome: outcome.name.rpartition("/")[0]):
        some = list(group)
        reports = list(_reports(some))
        troubles = [f"{one.ending.value}: {one.words}" for one in some if one.report is None]
        declared = map(str, group_named(name, device).marks())
        yield summary.Summary.of(name, reports, troubles, declared)


def _reports(outcomes: Iterable[Any]) -> Iterator[Report]:
    return (outcome.report for outcome in outcomes if outcome.report is not None)


def _one_each(reports: Iterable[Report]) -> Iterator[Report]:
    """The first report of each operator: its other samples mostly say the same."""
    for _, group in groupby(reports, key=lambda report: report.title.rpartition("/")[0]):
        yield next(iter(group))
