"""The command `gradvet`: its entry point `main`, and the commands `compare`, `report` and `completion`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import groupby

import click

from gradvet import __version__
from gradvet.cli.check import check_command
from gradvet.cli.common import (
    DEBUG_OPTION,
    ERROR,
    FAILED,
    HTML_OPTION,
    INCONCLUSIVE,
    INTERRUPTED,
    JSON_OPTION,
    PASSED,
    VERBOSE_OPTION,
    error_message,
    exit_code,
    load_results,
    write_files,
)
from gradvet.cli.ops import ops_command
from gradvet.reports import html, terminal, wording


@click.command("compare", short_help="Show what changed between two runs.")
@click.argument("old", type=click.Path(dir_okay=False))
@click.argument("new", type=click.Path(dir_okay=False))
@DEBUG_OPTION
def compare_command(old: str, new: str, debug: bool) -> None:
    """Show what changed from OLD to NEW, files that --store or --json wrote.

    Exit codes: 1 a case newly fails, 2 a case is newly an error or a run is incomplete (cases are gone, did not run,
    died, exceeded a limit or cannot be read), 3 a case became inconclusive or lost resolution, 0 otherwise.
    """
    from gradvet.suite import WITHOUT_RESULT
    from gradvet.suite.store import Change, differences

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


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="gradvet")
def cli() -> None:
    """Check whether gradients are right, and show which entries are wrong.

    Exit codes: 0 all pass, 1 a gradient is wrong, 2 an error (also a case that raised, died, exceeded a limit or has
    no result), 3 inconclusive, 130 interrupted. If several apply, 1 wins over 2, and 2 over 3.
    """


@cli.command("report", short_help="Show results that --json or --store wrote.")
@click.argument("results", nargs=-1, required=True, type=click.Path(dir_okay=False))
@HTML_OPTION
@JSON_OPTION
@VERBOSE_OPTION
@DEBUG_OPTION
def report_command(
    results: tuple[str, ...], verbose: bool, debug: bool, html_file: str | None, json_file: str | None
) -> None:
    """Show RESULTS, files that --json or --store wrote, in the terminal or as an HTML page."""
    html.require_writable(html_file, json_file)
    reports = [result.report for path in results for result in load_results(path)]
    if html_file is None and json_file is None:
        terminal.show(reports, verbose=verbose)
    write_files(reports, html_file, json_file)
    verdicts = [report.verdict for report in reports]
    click.echo(wording.tally(verdicts))
    sys.exit(exit_code(verdicts) if verdicts else ERROR)


@cli.command("completion", short_help="Print the completion script of a shell.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion_command(shell: str) -> None:
    """Print the completion script of a SHELL: eval "$(gradvet completion bash)" """
    from click.shell_completion import get_completion_class

    completion = get_completion_class(shell)
    assert completion is not None
    click.echo(completion(cli, {}, "gradvet", "_GRADVET_COMPLETE").source())


for _command in (check_command, ops_command, compare_command):
    cli.add_command(_command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command. An exception is printed as one line, unless --debug is given."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        sys.exit(cli.main(arguments, prog_name="gradvet", standalone_mode=False) or PASSED)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(INTERRUPTED)
    except Exception as error:
        if "--debug" in arguments:
            raise
        click.echo(f"gradvet: {error_message(error)}", err=True)
        sys.exit(ERROR)
