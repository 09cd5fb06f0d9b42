"""The command `gradvet`: its entry point `main`, and the commands `report` and `completion`."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence

import click

from gradvet import __version__
from gradvet.cli.check import check_command
from gradvet.cli.common import (
    DEBUG_OPTION,
    ERROR,
    HTML_OPTION,
    INTERRUPTED,
    JSON_OPTION,
    PASSED,
    VERBOSE_OPTION,
    error_message,
    exit_code,
    load_results,
    write_files,
)
from gradvet.cli.compare import compare_command
from gradvet.cli.ops import ops_command
from gradvet.reports import json_files, terminal, wording


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
    json_files.require_writable(html_file, json_file)
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
    """Run the command. An exception is printed as one line, with --debug as a traceback."""
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
            traceback.print_exception(error)
        else:
            click.echo(f"gradvet: {error_message(error)}", err=True)
        sys.exit(ERROR)
