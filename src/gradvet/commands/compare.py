"""`gradvet compare`: what changed between two runs."""

from __future__ import annotations

import sys
from itertools import groupby

import click

from gradvet.commands.endings import DEBUG, FAILED, INCONCLUSIVE, PASSED, USAGE
from gradvet.commands.stored import outcomes_in


@click.command(short_help="Show what changed between two runs.")
@click.argument("old", type=click.Path(dir_okay=False))
@click.argument("new", type=click.Path(dir_okay=False))
@DEBUG
def compare(old: str, new: str, debug: bool) -> None:
    """Show what changed from OLD to NEW, files that --store or --json wrote.

    Exit codes: 1 something fails that did not, 2 something has no verdict that had one, 3 something became
    inconclusive or lost resolution, 0 otherwise.
    """
    from gradvet.suite.comparison import Change, differences

    before, after = outcomes_in(old), outcomes_in(new)
    found = differences(before, after)
    for change, group in groupby(found, key=lambda difference: difference.change):
        some = list(group)
        click.echo(f"{change.value}: {len(some)}")
        for one in some:
            click.echo(f"  {one.name}{f'  {one.words}' if one.words else ''}")
    kinds = {difference.change for difference in found}
    click.echo(f"{len(before)} cases before, {len(after)} now, {len({one.name for one in found})} changed")
    codes = {
        Change.NEWLY_FAILING: FAILED,
        Change.NEWLY_UNFINISHED: USAGE,
        Change.NEWLY_INCONCLUSIVE: INCONCLUSIVE,
        Change.LOST_RESOLUTION: INCONCLUSIVE,
    }
    sys.exit(next((code for change, code in codes.items() if change in kinds), PASSED))
