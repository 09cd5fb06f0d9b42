"""Options, exit codes, error messages and output files shared by the commands, and the loop that runs cases."""

from __future__ import annotations

import re
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from gradvet.core.events import fresh_seed
from gradvet.core.results import Report, Verdict
from gradvet.errors import InvalidProblemError
from gradvet.options import Budget
from gradvet.reports import html, json_files, terminal
from gradvet.reports.progress import Advance, progress
from gradvet.reports.wording import one_line
from gradvet.suite import CaseResult
from gradvet.suite.store import Store, is_database

if TYPE_CHECKING:
    from rich.console import Console

    from gradvet.suite.run import Run

PASSED, FAILED, ERROR, INCONCLUSIVE, INTERRUPTED = 0, 1, 2, 3, 130
"""Exit codes."""

COMPLETE_ERRORS = (InvalidProblemError, json_files.ReportFileError)
"""Exceptions whose message says what to do, so that it is printed alone."""

SIZE_EXPONENTS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
"""Powers of two for the units of memory."""

VERBOSE_OPTION = click.option(
    "-v", "--verbose", is_flag=True, help="Show all failures and notes, and why checks did not run."
)
DEBUG_OPTION = click.option("--debug", is_flag=True, help="Show the Python traceback of an error.")


def memory_size(text: str) -> int:
    """`500M`, `2G`, `2GiB`, or bytes."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None or not float(match[1]):
        raise click.BadParameter(f"{text!r} is no amount of memory: write for example 500M or 2G")
    return int(float(match[1]) * 2 ** SIZE_EXPONENTS[match[2].upper()])


def seconds(text: str) -> float:
    """A positive number."""
    return number_up_to(sys.float_info.max, text, "is no time: write a number of seconds above 0, such as 60")


def number_up_to(limit: float, text: str, otherwise: str) -> float:
    """A number above 0 and up to a limit; `otherwise` says what is wrong with the text if it is none."""
    with suppress(ValueError):
        if 0.0 < (value := float(text)) <= limit:
            return value
    raise click.BadParameter(f"{text!r} {otherwise}")


def file_name(text: str) -> str:
    """The name of a file, which cannot be empty."""
    if not text.strip():
        raise click.BadParameter("the name of a file was expected, found nothing")
    return text


HTML_OPTION = click.option(
    "--html", "html_file", type=file_name, metavar="FILE", help="Write an HTML page to this file."
)
JSON_OPTION = click.option(
    "--json", "json_file", type=file_name, metavar="FILE", help="Write all results to this file."
)
RUN_OPTIONS = (
    click.option("--seed", type=click.IntRange(0, 2**32 - 1), help="Seed of inputs and directions."),
    click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Number of worker processes."),
    click.option("--timeout", type=seconds, metavar="SECONDS", help="Seconds allowed per case."),
    click.option("--memory", type=memory_size, metavar="SIZE", help="Memory limit per process, e.g. 2G."),
    click.option(
        "--retries",
        type=click.IntRange(0),
        default=1,
        show_default=True,
        help="Retries for a case whose process died.",
    ),
    click.option("--cluster", metavar="ADDRESS", help="Run on a Dask cluster, e.g. tcp://10.0.0.1:8786."),
    click.option("--store", type=file_name, metavar="FILE", help="Write each result to this database as it arrives."),
    click.option("--resume", is_flag=True, help="Run the cases that have no result in the store yet."),
    HTML_OPTION,
    JSON_OPTION,
    DEBUG_OPTION,
)


def run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of every command that runs cases."""
    for option in reversed(RUN_OPTIONS):
        command = option(command)
    return command


def run_seed(options: dict[str, Any]) -> int:
    """The seed of the option, that of the run to resume, or a random one."""
    from gradvet.suite.run import stored_seed

    if options["resume"] and options["store"] is None:
        raise click.UsageError("--resume goes on with the run in a store: name its file with --store")
    seed = options["seed"]
    if seed is None and options["resume"]:
        seed = stored_seed(options["store"])
    return fresh_seed() if seed is None else int(seed)


def run_cases(
    run: Run,
    options: dict[str, Any],
    console: Console,
    use: Callable[[CaseResult], None],
    *,
    isolated: bool,
    publish: bool = False,
) -> bool:
    """Run the cases and pass their results to `use`, in order. Returns whether the run was interrupted.

    Cases run in worker processes if they have limits, a store or several jobs, or must be `isolated`. After an
    interruption, cases without a result are passed too, as errors. With `publish`, failures are printed as soon as they
    arrive.
    """
    from gradvet.suite.run import in_case_order, open_store, run_missing

    limits = Budget(options["timeout"], options["memory"])
    isolated = isolated or options["jobs"] > 1 or limits != Budget() or options["store"] is not None
    jobs = options["jobs"] if isolated else None
    run = replace(run, jobs=jobs, limits=limits, retries=options["retries"], cluster=options["cluster"])
    used: set[str] = set()
    with (
        _sigterm_as_interrupt(),
        closing(open_store(run, cases := run.source.open(), options["store"], options["resume"])) as store,
    ):
        missing = store.missing()
        if len(missing) < len(store):
            click.echo(f"{len(store) - len(missing)} of {len(store)} cases are in {store.path} already", err=True)
        progress_console = console if console.is_terminal else terminal.console_for(stderr=True)

        def new_results(advance: Advance) -> Generator[CaseResult]:
            for result in run_missing(run, cases, store):
                advance(result.name, *((result.report,) if publish else ()))
                yield result

        try:
            with progress(missing, progress_console) as advance, closing(new_results(advance)) as results:
                for result in in_case_order(store, results):
                    if options["debug"] and result.error is not None:
                        raise result.error
                    used.add(result.name)
                    use(result)
                    if options.get("exitfirst") and result.verdict in (Verdict.FAIL, Verdict.ERROR):
                        left = len(store) - len(used)
                        click.echo(f"gradvet: stopped; {left} of {len(store)} cases did not run", err=True)
                        break
        except KeyboardInterrupt:
            click.echo("gradvet: interrupted; results so far are kept", err=True)
            for name in store.names():
                if name not in used:
                    use(store.result(name))
            return True
        finally:
            if options["store"] is not None and missing:
                click.echo(f"wrote {options['store']}", err=True)
    return False


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """SIGTERM ends a run as Ctrl-C does: workers are killed, output files are written."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def load_results(path: str) -> list[CaseResult]:
    """The results in a store or a JSON file."""
    if is_database(path):
        with closing(Store.open(path)) as store:
            return list(store.results())
    return [CaseResult(report.title, report, seconds=report.seconds) for report in json_files.load(path)]


def write_files(reports: Sequence[Report], html_file: str | None, json_file: str | None) -> None:
    for path, write in ((json_file, json_files.save), (html_file, html.write)):
        if path is not None:
            write(reports, path)
            click.echo(f"wrote {path}", err=True)


def exit_code(verdicts: Iterable[Verdict]) -> int:
    """The exit code of the worst verdict."""
    codes = {Verdict.FAIL: FAILED, Verdict.ERROR: ERROR, Verdict.INCONCLUSIVE: INCONCLUSIVE}
    found = set(verdicts)
    return next((code for verdict, code in codes.items() if verdict in found), PASSED)


def error_message(error: BaseException) -> str:
    """One line for an exception."""
    if isinstance(error, COMPLETE_ERRORS):
        return one_line(error, limit=None)
    return f"{type(error).__name__}: {one_line(error)} (--debug shows where)"
