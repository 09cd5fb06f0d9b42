"""`gradvet compare`: what changed between two runs of the same cases."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

import click

from gradvet.cli.common import DEBUG_OPTION, ERROR, FAILED, INCONCLUSIVE, PASSED, load_results
from gradvet.core.results import Verdict
from gradvet.reports import wording
from gradvet.reports.ledger_table import why_not_pass
from gradvet.suite import WITHOUT_RESULT, CaseResult

MIN_SLOWDOWN = 1.5
"""Ratio of the times from which a case counts as slower; smaller ratios are usual variation."""

MIN_SLOWDOWN_SECONDS = 0.1
"""Difference of the times from which a case counts as slower."""

MIN_RESOLUTION_LOSS = 10.0
"""Ratio of the resolutions from which resolution counts as lost."""


NEWLY_FAILING, NEWLY_ERROR, NEWLY_INCONCLUSIVE = "newly failing", "newly an error", "newly inconclusive"
LOST_RESOLUTION, SLOWER, GONE, NEWLY_PASSING, ADDED = "lost resolution", "slower", "gone", "newly passing", "new"
CHANGES = (NEWLY_FAILING, NEWLY_ERROR, NEWLY_INCONCLUSIVE, LOST_RESOLUTION, SLOWER, GONE, NEWLY_PASSING, ADDED)
"""The kinds of changes, worst first."""


@click.command("compare", short_help="Show what changed between two runs.")
@click.argument("old", type=click.Path(dir_okay=False))
@click.argument("new", type=click.Path(dir_okay=False))
@DEBUG_OPTION
def compare_command(old: str, new: str, debug: bool) -> None:
    """Show what changed from OLD to NEW, files that --store or --json wrote.

    Exit codes: 1 a case newly fails, 2 a case is newly an error or a run is incomplete (cases are gone, did not run,
    died, exceeded a limit or cannot be read), 3 a case became inconclusive or lost resolution, 0 otherwise.
    """
    before, after = load_results(old), load_results(new)
    changes = differences(before, after)
    for change, cases in changes.items():
        click.echo(f"{change}: {len(cases)}")
        for name, details in cases.items():
            click.echo(f"  {name}{f'  {details}' if details else ''}")
    is_incomplete = GONE in changes
    for path, label, results in ((old, "before", before), (new, "now", after)):
        click.echo(f"{label}: {wording.tally(result.verdict for result in results)}")
        if missing := sum(result.status in WITHOUT_RESULT for result in results):
            is_incomplete = True
            click.echo(f"incomplete: {missing} of {len(results)} cases in {path} have no result")
    click.echo(f"{len({name for cases in changes.values() for name in cases})} changed")
    if NEWLY_FAILING in changes:
        sys.exit(FAILED)
    if is_incomplete or NEWLY_ERROR in changes:
        sys.exit(ERROR)
    sys.exit(INCONCLUSIVE if changes.keys() & {NEWLY_INCONCLUSIVE, LOST_RESOLUTION} else PASSED)


def differences(old: Iterable[CaseResult], new: Iterable[CaseResult]) -> dict[str, dict[str, str]]:
    """The changed cases by kind of change, worst first: by name, in the order of the new run, with details."""
    before, after = ({one.name: one for one in results} for results in (old, new))
    found: dict[str, dict[str, str]] = {change: {} for change in CHANGES}
    found[GONE] = {name: "" for name in before if name not in after}
    for name, result in after.items():
        for change, details in _changes(before.get(name), result):
            found[change][name] = details
    return {change: cases for change, cases in found.items() if cases}


def _changes(old: CaseResult | None, new: CaseResult) -> Iterator[tuple[str, str]]:
    """The changes of a case. One that the old run did not have counts as newly failing if it fails."""
    if old is not None and old.verdict is new.verdict:
        was, is_ = old.report.resolution, new.report.resolution
        if was is not None and (is_ is None or is_ > MIN_RESOLUTION_LOSS * was):
            yield LOST_RESOLUTION, f"{was:.1g} to {'nothing' if is_ is None else format(is_, '.1g')}"
        if new.seconds > MIN_SLOWDOWN * old.seconds and new.seconds - old.seconds > MIN_SLOWDOWN_SECONDS:
            yield SLOWER, f"{old.seconds:.3g} s to {new.seconds:.3g} s"
    elif old is not None and new.verdict is Verdict.PASS:
        yield NEWLY_PASSING, f"was {old.verdict.value}"
    else:
        bad = {Verdict.FAIL: NEWLY_FAILING, Verdict.ERROR: NEWLY_ERROR}
        yield bad.get(new.verdict, ADDED if old is None else NEWLY_INCONCLUSIVE), _headline(new)


def _headline(result: CaseResult) -> str:
    """The verdict of a pass; otherwise the first finding with that verdict, or what the ledger leaves open."""
    if result.verdict is Verdict.PASS:
        return str(result.verdict.value)
    findings = [f"{one.check}: {one.headline}" for one in result.report.findings if one.verdict is result.verdict]
    return next(iter((*findings, *why_not_pass(result.report))), "")
