"""The command `gradvet`: it reads arguments, hands them on, and turns what comes back into words and an exit code."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from gradvet import __version__
from gradvet.commands.compare import compare
from gradvet.commands.endings import DEBUG, DOCUMENT, PAGE, USAGE, exit_code, sentence, write
from gradvet.commands.ops import ops
from gradvet.commands.running import performed, place_of, run_options, seed_for
from gradvet.commands.stored import reports_in
from gradvet.reports import terminal, words

if TYPE_CHECKING:
    from gradvet.suite.job import Job

THOROUGH = {"order": 2, "power": 1e-4}
"""Second order, and no pass unless errors a hundred times smaller than by default would have been seen."""


def shape(text: str) -> tuple[int, ...]:
    """`4x5`, `3`, `scalar`."""
    try:
        return () if text == "scalar" else tuple(int(size) for size in text.split("x"))
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is no shape: write the sizes with x between them, such as 4x5, or scalar"
        ) from None


def keywords(text: str) -> Any:
    """A JSON object."""
    return _json(text, dict)


def arguments(text: str) -> Any:
    """A JSON object for named arguments, or a list for positional ones."""
    return _json(text, dict, list)


def _json(text: str, *kinds: type) -> Any:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, kinds):
        raise click.BadParameter(f"{text!r} is no JSON object: write for example '{{\"dim\": -1}}'")
    return found


def modes(text: str) -> tuple[str, ...]:
    """`reverse`, `forward`, or both with a comma."""
    found = tuple(text.split(","))
    if not set(found) <= {"reverse", "forward"}:
        raise click.BadParameter(f"{text!r} has an unknown mode: use reverse, forward or reverse,forward")
    return found


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="gradvet")
def cli() -> None:
    """Tells whether gradients are right, and if not, which entry is wrong.

    Exit codes: 0 all pass, 1 a gradient is wrong, 2 the request could not be carried out, 3 inconclusive.
    """


@cli.command()
@click.argument("targets", nargs=-1, required=True, type=click.Path())
@click.option(
    "--input", "shapes", multiple=True, type=shape, metavar="SHAPE", help="Shape of an input, such as 4x5; repeatable."
)
@click.option("--dtype", default="float64", show_default=True, help="Dtype of the inputs.")
@click.option(
    "--kwargs", type=keywords, metavar="JSON", default="{}", help="Keyword arguments of the callable, as JSON."
)
@click.option(
    "--init", type=arguments, metavar="JSON", default="{}", help="Arguments of a class that is made, as JSON."
)
@click.option("--order", type=click.IntRange(1, 2), help="2 also checks second derivatives.")
@click.option("--modes", type=modes, metavar="MODES", help="reverse, forward, or both with a comma.")
@click.option("--thorough", is_flag=True, help="Second order as well, and a finer resolution.")
@PAGE
@DOCUMENT
@run_options
@DEBUG
def check(targets: tuple[str, ...], debug: bool, page: str | None, document: str | None, **given: Any) -> None:
    """Check TARGETS: ops.py, ops.py::name, package.module, or package.module:callable with --input.

    In a file or module, the functions that @gradvet.case(inputs=...) marks are checked.
    """
    job = _job(targets, given)
    reports, troubles = [], 0
    with performed(job, place_of(given, apart=False), given) as (store, raised):
        for outcome in store.outcomes():
            if outcome.report is not None:
                reports.append(outcome.report)
                terminal.show([outcome.report])
                continue
            error = raised.get(outcome.name)
            if debug and error is not None:
                raise error
            troubles += 1
            click.echo(f"{outcome.name}: {sentence(error) if error else outcome.words}", err=True)
    if len(reports) > 1:
        click.echo(words.tally(reports))
    write(reports, page, document)
    sys.exit(exit_code((report.verdict for report in reports), troubles))


@cli.command()
@click.argument("results", nargs=-1, required=True, type=click.Path(dir_okay=False))
@PAGE
@DOCUMENT
@DEBUG
def report(results: tuple[str, ...], debug: bool, page: str | None, document: str | None) -> None:
    """Show RESULTS, files that --json or --store wrote, in the terminal or as a page."""
    reports = [one for path in results for one in reports_in(path)]
    if page is None and document is None:
        terminal.show(reports)
    write(reports, page, document)
    click.echo(words.tally(reports))
    sys.exit(exit_code(report.verdict for report in reports))


cli.add_command(ops)
cli.add_command(compare)


@cli.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a SHELL: eval "$(gradvet completion bash)" """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(cli, {}, "gradvet", "_GRADVET_COMPLETE").source())


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; whatever goes wrong is one sentence, unless --debug is given."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        cli.main(given, prog_name="gradvet")
    except Exception as error:
        if "--debug" in given:
            raise
        click.echo(f"gradvet: {sentence(error)}", err=True)
        sys.exit(USAGE)


def _job(targets: Sequence[str], given: dict[str, Any]) -> Job:
    from gradvet.suite.job import Job
    from gradvet.suite.targets import Making, Targets

    seed = seed_for(given)
    options = dict(THOROUGH) if given["thorough"] else {}
    options |= {name: given[name] for name in ("order", "modes") if given[name] is not None}
    making = Making(given["shapes"], given["dtype"], given["kwargs"], given["init"], seed)
    return Job(Targets(tuple(targets), making), seed, options)
