"""`gradvet compare`: the differences between two runs."""

from __future__ import annotations

import sys
from itertools import groupby

import click

from gradvet.cli.common import DEBUG_OPTION, ERROR, FAILED, INCONCLUSIVE, PASSED, load_results


@click.command("compare", short_help="Show what changed between two runs.")
@click.argument("old", type=click.Path(dir_okay=False))
@click.argument("new", type=click.Path(dir_okay=False))
@DEBUG_OPTION
def compare_command(old: str, new: str, debug: bool) -> None:
    """Show what changed from OLD to NEW, files that --store or --json wrote.

    Exit codes: 1 a case newly fails, 2 a case newly has no verdict, 3 a case became inconclusive or lost resolution, 0
    otherwise.
    """
    from gradvet.suite.comparison import Change, differences

    before, after = load_results(old), load_results(new)
    found = differences(before, after)
    for change, group in groupby(found, key=lambda difference: difference.change):
        changed = list(group)
        click.echo(f"{change.value}: {len(changed)}")
        for one in changed:
            click.echo(f"  {one.name}{f'  {one.details}' if one.details else ''}")
    click.echo(f"{len(before)} cases before, {len(after)} now, {len({one.name for one in found})} changed")
    codes = {
        Change.NEWLY_FAILING: FAILED,
        Change.NEWLY_UNFINISHED: ERROR,
        Change.NEWLY_INCONCLUSIVE: INCONCLUSIVE,
        Change.LOST_RESOLUTION: INCONCLUSIVE,
    }
    changes = {difference.change for difference in found}
    sys.exit(next((code for change, code in codes.items() if change in changes), PASSED))
