"""The command `gradvet`: it reads arguments, hands them on, and turns what comes back into words and an exit code."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from gradvet import __version__
from gradvet.commands.compare import compare
from gradvet.commands.endings import (
    DEBUG,
    DOCUMENT,
    INTERRUPTED,
    PAGE,
    PASSED,
    USAGE,
    exit_code,
    prepare,
    sentence,
    write,
)
from gradvet.commands.ops import ops
from gradvet.commands.running import performed, place_of, run_options, seed_for
from gradvet.commands.stored import reports_in
from gradvet.core.results import Report
from gradvet.reports import terminal, words

if TYPE_CHECKING:
    from gradvet.suite.job import Job


DTYPES = ("float64", "float32", "bfloat16", "float16", "complex128", "complex64")


def _completing(*words: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """What the shell offers."""
    return lambda context, parameter, begun: [word for word in words if word.startswith(begun)]


def shape(text: str) -> tuple[int, ...]:
    """`4x5`, `3`, `scalar`."""
    sizes = [] if text == "scalar" else text.split("x")
    if not all(size.isdecimal() for size in sizes):
        raise click.BadParameter(f"{text!r} is no shape: write the sizes with x between them, such as 4x5, or scalar")
    return tuple(map(int, sizes))


def keywords(text: str) -> Any:
    """A JSON object."""
    return _json(text, "'{\"dim\": -1}'", dict)


def arguments(text: str) -> Any:
    """A JSON object for named arguments, or a list for positional ones."""
    return _json(text, "'[5, 3]' or '{\"in_features\": 5, \"out_features\": 3}'", dict, list)


def _json(text: str, example: str, *kinds: type) -> Any:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, kinds):
        raise click.BadParameter(f"{text!r} was not understood as JSON: write for example {example}")
    return found


def modes(text: str) -> tuple[str, ...]:
    """`reverse`, `forward`, or both with a comma."""
    found = tuple(part.strip() for part in text.split(","))
    if not set(found) <= {"reverse", "forward"}:
        raise click.BadParameter(f"{text!r} has an unknown mode: use reverse, forward or reverse,forward")
    return found


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="gradvet")
def cli() -> None:
    """Tells whether gradients are right, and if not, which entry is wrong.

    Exit codes: 0 all pass, 1 a gradient is wrong, 2 the request could not be carried out, 3 inconclusive.
    """


@cli.command(short_help="Check functions in files, or anything that can be imported.")
@click.argument("targets", nargs=-1, required=True, type=click.Path())
@click.option(
    "--input", "shapes", multiple=True, type=shape, metavar="SHAPE", help="Shape of an input, such as 4x5; repeatable."
)
@click.option(
    "--dtype", default="float64", show_default=True, help="Dtype of the inputs.", shell_complete=_completing(*DTYPES)
)
@click.option(
    "--kwargs", type=keywords, metavar="JSON", default="{}", help="Keyword arguments of the callable, as JSON."
)
@click.option(
    "--init", type=arguments, metavar="JSON", default="{}", help="Arguments of a class that is made, as JSON."
)
@click.option("--order", type=click.IntRange(1, 2), help="2 also checks second derivatives.")
@click.option(
    "--modes",
    type=modes,
    metavar="MODES",
    help="reverse, forward, or both with a comma.",
    shell_complete=_completing("reverse", "forward", "reverse,forward"),
)
@click.option("--thorough", is_flag=True, help="Second order, all special points, and a finer resolution.")
@PAGE
@DOCUMENT
@run_options
@DEBUG
def check(targets: tuple[str, ...], debug: bool, page: str | None, document: str | None, **given: Any) -> None:
    """Check TARGETS: ops.py, package.module, ops.py::name, or package.module:callable with --input.

    In a file or module, the functions that @gradvet.case(inputs=...) marks are checked.

    \b
    gradvet check ops.py --html report.html
    gradvet check torch:softmax --input 4x5 --kwargs '{"dim": -1}'
    gradvet check torch.nn:Linear --input 4x5 --init '[5, 3]' --dtype float32
    """
    prepare(page, document)
    console = terminal.console_for()
    reports: list[Report] = []
    broken = interrupted = 0
    try:
        for outcome in performed(_job(targets, given), place_of(given, apart=False), given, console):
            if outcome.report is not None:
                reports.append(outcome.report)
                terminal.show([outcome.report], console)
                continue
            if debug and outcome.error is not None:
                raise outcome.error
            broken += 1
            click.echo(f"{outcome.name}: {sentence(outcome.error) if outcome.error else outcome.words}", err=True)
    except KeyboardInterrupt:
        interrupted = INTERRUPTED
        click.echo("gradvet: interrupted; what was checked until then stands", err=True)
    if len(reports) + broken > 1:
        click.echo(words.tally(reports) + (f"; {broken} could not be carried out" if broken else ""))
    write(reports, page, document)
    sys.exit(interrupted or exit_code((report.verdict for report in reports), broken))


@cli.command(short_help="Show results that --json or --store wrote, here or as a page.")
@click.argument("results", nargs=-1, required=True, type=click.Path(dir_okay=False))
@PAGE
@DOCUMENT
@DEBUG
def report(results: tuple[str, ...], debug: bool, page: str | None, document: str | None) -> None:
    """Show RESULTS, files that --json or --store wrote, in the terminal or as a page."""
    prepare(page, document)
    reports = [one for path in results for one in reports_in(path)]
    if page is None and document is None:
        terminal.show(reports)
    write(reports, page, document)
    click.echo(words.tally(reports))
    sys.exit(exit_code(report.verdict for report in reports))


@cli.command(short_help="Print the completion script of a shell.")
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
        sys.exit(cli.main(given, prog_name="gradvet", standalone_mode=False) or PASSED)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(INTERRUPTED)
    except Exception as error:
        if "--debug" in given:
            raise
        click.echo(f"gradvet: {sentence(error)}", err=True)
        sys.exit(USAGE)


cli.add_command(ops)
cli.add_command(compare)


def _job(targets: Sequence[str], given: dict[str, Any]) -> Job:
    from gradvet.suite.job import Job
    from gradvet.suite.targets import Making, Targets

    seed = seed_for(given)
    options: dict[str, Any] = {"thorough": True} if given["thorough"] else {}
    options |= {name: given[name] for name in ("order", "modes") if given[name] is not None}
    making = Making(given["shapes"], given["dtype"], given["kwargs"], given["init"], seed)
    return Job(Targets(tuple(targets), making, _flags(given)), seed, options)


def _flags(given: dict[str, Any]) -> str:
    """The options that hold for every case, as they were typed."""
    found = ["--thorough"] if given["thorough"] else []
    found += [f"--order {given['order']}"] if given["order"] else []
    found += [f"--modes {','.join(given['modes'])}"] if given["modes"] else []
    return " ".join(found)
