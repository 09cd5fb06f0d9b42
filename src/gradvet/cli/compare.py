"""`gradvet compare`: the differences between two runs."""

from __future__ import annotations

import sys
from itertools import groupby

import click

from gradvet.cli.common import DEBUG_OPTION, ERROR, FAILED, INCONCLUSIVE, PASSED, load_results
from gradvet.reports import wording


@click.command("compare", short_help="Show what changed between two runs.")
@click.argument("old", type=click.Path(dir_okay=False))
@click.argument("new", type=click.Path(dir_okay=False))
@DEBUG_OPTION
def compare_command(old: str, new: str, debug: bool) -> None:
    """Show what changed from OLD to NEW, files that --store or --json wrote.

    Exit codes: 1 a case newly fails, 2 a case is newly an error or a run is incomplete (cases are gone, did not run,
    died, exceeded a limit or cannot be read), 3 a case became inconclusive or lost resolution, 0 otherwise.
    """
    from gradvet.suite.case import WITHOUT_RESULT
    from gradvet.suite.comparison import Change, differences

    before, after = load_results(old), load_results(new)
    found = differences(before, after)
    for change, group in groupby(found, key=lambda difference: difference.change):
        changed = list(group)
        click.echo(f"{change.value}: {len(changed)}")
        for one in changed:
            click.echo(f"  {one.name}{f'  {one.details}' if one.details else ''}")
    incomplete = False
    for path, label, results in ((old, "before", before), (new, "now", after)):
        click.echo(f"{label}: {wording.tally(result.verdict for result in results)}")
        if missing := sum(result.status in WITHOUT_RESULT for result in results):
            incomplete = True
            click.echo(f"incomplete: {missing} of {len(results)} cases in {path} have no result")
    click.echo(f"{len({one.name for one in found})} changed")
    changes = {difference.change for difference in found}
    incomplete = incomplete or Change.GONE in changes
    if Change.NEWLY_FAILING in changes:
        sys.exit(FAILED)
    if incomplete or Change.NEWLY_ERROR in changes:
        sys.exit(ERROR)
    sys.exit(INCONCLUSIVE if changes & {Change.NEWLY_INCONCLUSIVE, Change.LOST_RESOLUTION} else PASSED)
