"""`gradvet check`: check functions in files and modules, or any callable."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from gradvet.cli.common import (
    DEBUG_OPTION,
    HTML_OPTION,
    INTERRUPTED,
    JSON_OPTION,
    error_count,
    error_message,
    executor_settings,
    exit_code,
    run_cases,
    run_options,
    run_seed,
    write_files,
)
from gradvet.core.results import Report
from gradvet.reports import html, terminal, wording

if TYPE_CHECKING:
    from gradvet.suite.run import Run

DTYPES = ("float64", "float32", "bfloat16", "float16", "complex128", "complex64")
"""Dtypes offered by the completion of the shell."""


def _completion(*words: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    return lambda context, parameter, prefix: [word for word in words if word.startswith(prefix)]


def shape(text: str) -> tuple[int, ...]:
    """`4x5`, `3`, `scalar`."""
    sizes = [] if text == "scalar" else text.split("x")
    if not all(size.isdecimal() for size in sizes):
        raise click.BadParameter(f"{text!r} is no shape: write the sizes with x between them, such as 4x5, or scalar")
    return tuple(map(int, sizes))


def json_object(text: str) -> Any:
    """Keyword arguments."""
    return _parse_json(text, "'{\"dim\": -1}'", dict)


def json_arguments(text: str) -> Any:
    """Named arguments as a JSON object, or positional ones as a list."""
    return _parse_json(text, "'[5, 3]' or '{\"in_features\": 5, \"out_features\": 3}'", dict, list)


def _parse_json(text: str, example: str, *types: type) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, types):
        raise click.BadParameter(f"{text!r} was not understood as JSON: write for example {example}")
    return value


def modes(text: str) -> tuple[str, ...]:
    """`reverse`, `forward`, or both separated by a comma."""
    names = tuple(part.strip() for part in text.split(","))
    if not set(names) <= {"reverse", "forward"}:
        raise click.BadParameter(f"{text!r} has an unknown mode: use reverse, forward or reverse,forward")
    return names


@click.command("check", short_help="Check functions in files and modules, or any callable.")
@click.argument("targets", nargs=-1, required=True, type=click.Path())
@click.option(
    "--input", "shapes", multiple=True, type=shape, metavar="SHAPE", help="Shape of an input, such as 4x5; repeatable."
)
@click.option(
    "--dtype", default="float64", show_default=True, help="Dtype of the inputs.", shell_complete=_completion(*DTYPES)
)
@click.option(
    "--kwargs", type=json_object, metavar="JSON", default="{}", help="Keyword arguments of the callable, as JSON."
)
@click.option(
    "--init",
    type=json_arguments,
    metavar="JSON",
    default="{}",
    help="Constructor arguments of a module class, as JSON.",
)
@click.option("--order", type=click.IntRange(1, 2), help="2 also checks second derivatives.")
@click.option(
    "--modes",
    type=modes,
    metavar="MODES",
    help="reverse, forward, or both separated by a comma.",
    shell_complete=_completion("reverse", "forward", "reverse,forward"),
)
@click.option("--thorough", is_flag=True, help="Second order, all special points, and a finer resolution.")
@HTML_OPTION
@JSON_OPTION
@run_options
@DEBUG_OPTION
def check_command(
    targets: tuple[str, ...], debug: bool, html_file: str | None, json_file: str | None, **options: Any
) -> None:
    """Check TARGETS: ops.py, package.module, ops.py::name, or package.module:callable with --input.

    In a file or module, the functions that @gradvet.case(inputs=...) marks are checked.

    \b
    gradvet check ops.py --html report.html
    gradvet check torch:softmax --input 4x5 --kwargs '{"dim": -1}'
    gradvet check torch.nn:Linear --input 4x5 --init '[5, 3]' --dtype float32
    """
    html.require_writable(html_file, json_file)
    console = terminal.console_for()
    reports: list[Report] = []
    errors = interrupted = 0
    try:
        settings = executor_settings(options, isolated=False)
        for result in run_cases(_run(targets, options), settings, options, console):
            if result.report is not None:
                reports.append(result.report)
                terminal.show([result.report], console)
                continue
            if debug and result.error is not None:
                raise result.error
            errors += 1
            message = error_message(result.error) if result.error else result.message
            click.echo(f"{result.name}: {message}", err=True)
    except KeyboardInterrupt:
        interrupted = INTERRUPTED
        click.echo("gradvet: interrupted; results so far are kept", err=True)
    verdicts = [report.verdict for report in reports]
    if len(reports) + errors > 1:
        click.echo(wording.tally(verdicts) + error_count(errors))
    write_files(reports, html_file, json_file)
    sys.exit(interrupted or exit_code(verdicts, errors))


def _run(targets: Sequence[str], options: dict[str, Any]) -> Run:
    from gradvet.suite.run import Run
    from gradvet.suite.targets import InputSpec, Targets

    seed = run_seed(options)
    check_options: dict[str, Any] = {"thorough": True} if options["thorough"] else {}
    check_options |= {name: options[name] for name in ("order", "modes") if options[name] is not None}
    inputs = InputSpec(options["shapes"], options["dtype"], options["kwargs"], options["init"], seed)
    return Run(Targets(tuple(targets), inputs, _flags(options)), seed, check_options)


def _flags(options: dict[str, Any]) -> str:
    """The options of `gradvet.check`, as on the command line."""
    flags = ["--thorough"] if options["thorough"] else []
    flags += [f"--order {options['order']}"] if options["order"] else []
    flags += [f"--modes {','.join(options['modes'])}"] if options["modes"] else []
    return " ".join(flags)
