"""Options, exit codes, error messages and output files shared by the commands, and the loop that runs cases."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from gradvet.core.results import Report, Verdict
from gradvet.errors import InvalidProblemError
from gradvet.reports import html, json_files, terminal
from gradvet.reports.progress import progress
from gradvet.reports.wording import one_line

if TYPE_CHECKING:
    from rich.console import Console

    from gradvet.suite.case import CaseResult
    from gradvet.suite.executors import ExecutorSettings
    from gradvet.suite.run import Run

PASSED, FAILED, ERROR, INCONCLUSIVE, INTERRUPTED = 0, 1, 2, 3, 130
"""Exit codes."""

COMPLETE_ERRORS = (
    InvalidProblemError,
    json_files.UnreadableReportError,
    json_files.UnwritableFileError,
    html.MissingLibraryError,
)
"""Exceptions whose message says what to do, so that it is printed alone."""

SIZE_EXPONENTS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
"""Powers of two for the units of memory."""

DEBUG_OPTION = click.option("--debug", is_flag=True, help="Show the Python traceback of an error.")
HTML_OPTION = click.option(
    "--html", "html_file", type=click.Path(dir_okay=False), help="Write an HTML page to this file."
)
JSON_OPTION = click.option(
    "--json", "json_file", type=click.Path(dir_okay=False), help="Write all results to this file."
)


def memory_size(text: str) -> int:
    """`500M`, `2G`, `2GiB`, or bytes."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None or not float(match[1]):
        raise click.BadParameter(f"{text!r} is no amount of memory: write for example 500M or 2G")
    return int(float(match[1]) * 2 ** SIZE_EXPONENTS[match[2].upper()])


RUN_OPTIONS = (
    click.option("--seed", type=click.IntRange(0, 2**32 - 1), help="Seed of inputs and directions."),
    click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Number of worker processes."),
    click.option(
        "--timeout",
        type=click.FloatRange(0, min_open=True),
        metavar="SECONDS",
        help="Seconds allowed per case.",
    ),
    click.option("--memory", type=memory_size, metavar="SIZE", help="Memory limit per process, e.g. 2G."),
    click.option(
        "--retries",
        type=click.IntRange(0),
        default=1,
        show_default=True,
        help="Retries for a case whose process died.",
    ),
    click.option("--cluster", metavar="ADDRESS", help="Run on a Dask cluster, e.g. tcp://10.0.0.1:8786."),
    click.option(
        "--store",
        type=click.Path(dir_okay=False),
        metavar="FILE",
        help="Write each result to this database as it arrives.",
    ),
    click.option("--resume", is_flag=True, help="Run the cases that have no result in the store yet."),
)


def run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of every command that runs cases."""
    for option in reversed(RUN_OPTIONS):
        command = option(command)
    return command


def run_seed(options: dict[str, Any]) -> int:
    """The seed of the option, that of the run to resume, or a random one."""
    from gradvet.suite.run import stored_seed

    if options["seed"] is not None:
        return int(options["seed"])
    if options["resume"]:
        if options["store"] is None:
            raise click.UsageError("--resume goes on with the run in a store: name its file with --store")
        seed = stored_seed(options["store"])
        if seed is not None:
            return seed
    return int.from_bytes(os.urandom(4), "little")


def executor_settings(options: dict[str, Any], isolated: bool) -> ExecutorSettings:
    """Cases run in worker processes if they have limits, a store or several jobs, or must be `isolated`."""
    from gradvet.suite.executors import ExecutorSettings
    from gradvet.suite.processes import Limits

    limits = Limits(options["timeout"], options["memory"])
    isolated = isolated or options["jobs"] > 1 or limits != Limits() or options["store"] is not None
    return ExecutorSettings(options["jobs"] if isolated else None, limits, options["retries"], options["cluster"])


def run_cases(
    run: Run, settings: ExecutorSettings, options: dict[str, Any], console: Console, *, publish: bool = False
) -> Iterator[CaseResult]:
    """Run the cases and yield their results in order. With `announce`, failures are printed as soon as they arrive."""
    from gradvet.suite.executors import run_missing
    from gradvet.suite.run import in_case_order, open_store

    cases = run.source.open()
    store = open_store(run, cases, options["store"], options["resume"])
    missing = store.missing()
    if len(missing) < len(store):
        click.echo(f"{len(store) - len(missing)} of {len(store)} cases are in {store.path} already", err=True)
    progress_console = console if console.is_terminal else terminal.console_for(stderr=True)
    with closing(store), progress(missing, progress_console) as advance:

        def new_results() -> Generator[CaseResult]:
            for result in run_missing(run, cases, settings, store):
                advance(result.name, *((result.report, result.message) if publish else ()))
                yield result

        with closing(new_results()) as results:
            yield from in_case_order(store, results)


def load_results(path: str) -> list[CaseResult]:
    """The results in a store or a JSON file. A JSON file contains only cases with a report."""
    from gradvet.suite.case import CaseResult, Status
    from gradvet.suite.store import Store, is_database

    if is_database(path):
        with closing(Store.open(path)) as store:
            return list(store.results())
    return [CaseResult(one.title, Status.REPORTED, one, seconds=one.seconds) for one in json_files.load(path)]


def write_files(reports: Sequence[Report], html_file: str | None, json_file: str | None) -> None:
    for path, write in ((json_file, json_files.save), (html_file, html.write)):
        if path is not None:
            write(reports, path)
            click.echo(f"wrote {path}", err=True)


def exit_code(verdicts: Iterable[Verdict], errors: int = 0) -> int:
    """The exit code for the verdicts, and for the number of cases without one."""
    found = set(verdicts)
    if Verdict.FAIL in found:
        return FAILED
    if errors:
        return ERROR
    return INCONCLUSIVE if Verdict.INCONCLUSIVE in found else PASSED


def error_count(errors: int) -> str:
    """`; 2 errors`, or nothing."""
    return f"; {errors} error{'' if errors == 1 else 's'}" if errors else ""


def error_message(error: BaseException) -> str:
    """One line for an exception."""
    if isinstance(error, COMPLETE_ERRORS):
        return one_line(error, limit=None)
    return f"{type(error).__name__}: {one_line(error)} (--debug shows where)"
