"""`gradvet check`: check functions in files and modules, or any callable."""

from __future__ import annotations

import json
import math
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from gradvet.cli.common import (
    INTERRUPTED,
    VERBOSE_OPTION,
    exit_code,
    number_up_to,
    run_cases,
    run_options,
    run_seed,
    seconds,
    write_files,
)
from gradvet.core.results import Report
from gradvet.reports import json_files, terminal, wording
from gradvet.suite import CaseResult, require_file

if TYPE_CHECKING:
    from gradvet.suite.run import Run

FLAGS = ("thorough", "order", "modes", "resolution", "points", "domain", "compile", "budget")
"""Options that are arguments of `gradvet.check`."""

DTYPES = ("float64", "float32", "bfloat16", "float16", "complex128", "complex64")
"""Dtypes offered by the completion of the shell."""


def _completion(*words: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    return lambda context, parameter, prefix: [word for word in words if word.startswith(prefix)]


def shape(text: str) -> tuple[tuple[int, ...], int | None]:
    """`4x5`, `3`, `scalar`; `6:int:10` for integers from 0 to 9."""
    lengths, _, integers = text.partition(":int:")
    sizes = [] if lengths == "scalar" else lengths.split("x")
    is_bound = integers.isdecimal() and int(integers) > 0 if ":" in text else True
    if not is_bound or not all(size.isdecimal() for size in sizes):
        raise click.BadParameter(
            f"{text!r} is no shape: write the sizes with x between them, such as 4x5, or scalar; 6:int:10 for six "
            "integers below 10"
        )
    return tuple(map(int, sizes)), int(integers) if integers else None


def interval(text: str) -> tuple[float, float]:
    """`LOW,HIGH`"""
    try:
        low, high = map(float, text.split(","))
    except ValueError:
        low = high = math.nan
    if not low < high:
        raise click.BadParameter(f"{text!r} is no interval: write two numbers such as 0.1,2 or -1,1")
    return low, high


def fraction(text: str) -> float:
    """A number between 0 and 1."""
    return number_up_to(1.0, text, "is no relative error between 0 and 1: write for example 0.001")


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


def names(text: str) -> tuple[str, ...]:
    """Names separated by commas."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def modes(text: str) -> tuple[str, ...]:
    """`reverse`, `forward`, or both separated by a comma."""
    given = names(text)
    if not given or not set(given) <= {"reverse", "forward"}:
        raise click.BadParameter(f"{text!r} has an unknown mode: use reverse, forward or reverse,forward")
    return given


@click.command("check", short_help="Check functions in files and modules, or any callable.")
@click.argument("targets", nargs=-1, required=True, type=click.Path())
@click.option(
    "--input",
    "shapes",
    multiple=True,
    type=shape,
    metavar="SHAPE",
    help="Shape of an input, such as 4x5, or 6:int:10 for six integers below 10; repeatable.",
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
@click.option(
    "--reference",
    metavar="TARGET",
    default="",
    help="The same function in plain torch, with which values and gradients are compared: ops.py::name or "
    "package.module:callable.",
)
@click.option(
    "--dtypes",
    type=names,
    metavar="DTYPES",
    default="",
    help="With --reference: compare in each of these, e.g. float32,bfloat16,float16.",
    shell_complete=_completion("float32,bfloat16,float16", *DTYPES[:4]),
)
@click.option("--device", default="cpu", show_default=True, help="Device for the inputs.")
@click.option("--order", type=click.IntRange(1, 5), help="2 also checks second derivatives, 3 third ones, and so on.")
@click.option(
    "--modes",
    type=modes,
    metavar="MODES",
    help="reverse, forward, or both separated by a comma.",
    shell_complete=_completion("reverse", "forward", "reverse,forward"),
)
@click.option("--thorough", is_flag=True, help="Second order, all special points, and a finer resolution.")
@click.option("--resolution", type=fraction, help="Relative error that must be visible for a pass, such as 0.001.")
@click.option("--points", type=click.Choice(["small", "thorough", "none"]), help="Which special points are tried too.")
@click.option(
    "--domain", type=interval, metavar="LOW,HIGH", help="Values that inputs may have, here and at special points."
)
@click.option("--compile", is_flag=True, help="Also compare with the function that torch.compile makes.")
@click.option("--budget", type=seconds, metavar="SECONDS", help="Seconds after which a check compares nothing more.")
@click.option("-x", "--exitfirst", is_flag=True, help="Stop after the first failure or error.")
@run_options
@VERBOSE_OPTION
def check_command(targets: tuple[str, ...], html_file: str | None, json_file: str | None, **options: Any) -> None:
    """Check TARGETS: ops.py, package.module, ops.py::name, or package.module:callable with --input.

    In a file or module, the functions that @gradvet.case(inputs=...) marks are checked; with --input, any callable.

    \b
    gradvet check ops.py --html report.html
    gradvet check ops.py::Swish --input 3
    gradvet check torch:softmax --input 4x5 --kwargs '{"dim": -1}'
    gradvet check torch.nn:Linear --input 4x5 --init '[5, 3]' --dtype float32
    gradvet check ops.py::kernel --input 8x64 --reference ops.py::eager --dtypes float32,bfloat16
    """
    json_files.require_writable(html_file, json_file)
    for path in (target.partition("::")[0] for target in (*targets, options["reference"])):
        if path.endswith(".py"):
            require_file(path)  # before torch is loaded, which takes seconds
    console = terminal.console_for()
    reports: list[Report] = []

    def use(result: CaseResult) -> None:
        reports.append(result.report)
        if result.status != "unfinished":
            terminal.show([result.report], console, verbose=options["verbose"])

    was_interrupted = run_cases(_run(targets, options), options, console, use, isolated=False)
    verdicts = [report.verdict for report in reports]
    if len(reports) > 1:
        click.echo(wording.tally(verdicts))
    write_files(reports, html_file, json_file)
    sys.exit(INTERRUPTED if was_interrupted else exit_code(verdicts))


def _run(targets: Sequence[str], options: dict[str, Any]) -> Run:
    from gradvet.suite.run import Run
    from gradvet.suite.sources import InputSpec, Targets, as_arguments

    seed = run_seed(options)
    given = {name: options[name] for name in FLAGS if options[name] not in (None, False)}
    check_options = {**given, "points": None} if given.get("points") == "none" else given
    shapes, below = (tuple(part) for part in zip(*options["shapes"], strict=True)) if options["shapes"] else ((), ())
    same = {name: options[name] for name in ("dtype", "kwargs", "init", "device", "reference", "dtypes", "domain")}
    inputs = InputSpec(shapes, below=below, seed=seed, **same)
    return Run(Targets(tuple(targets), inputs, shlex.join(as_arguments(given))), seed, check_options)
