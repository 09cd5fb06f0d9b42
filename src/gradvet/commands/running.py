"""What commands that run cases share: where they run, within which limits, and where the outcomes are kept."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from gradvet.reports import terminal
from gradvet.reports.progress import progress

if TYPE_CHECKING:
    from rich.console import Console

    from gradvet.suite.engines import Place
    from gradvet.suite.job import Job, Outcome

UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


def size(text: str) -> int:
    """`500M`, `2G`, `2GiB`, or bytes."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if found is None or not float(found[1]):
        raise click.BadParameter(f"{text!r} is no amount of memory: write for example 500M or 2G")
    return int(float(found[1]) * 2 ** UNITS[found[2].upper()])


OPTIONS = (
    click.option("--seed", type=click.IntRange(0, 2**32 - 1), help="Draw the same inputs and directions again."),
    click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="So many processes."),
    click.option("--timeout", type=click.FloatRange(0, min_open=True), metavar="SECONDS", help="For each case."),
    click.option("--memory", type=size, metavar="SIZE", help="For each process, such as 2G."),
    click.option(
        "--retries", type=click.IntRange(0), default=1, show_default=True, help="Of a case whose process died."
    ),
    click.option("--cluster", metavar="ADDRESS", help="Run on a Dask cluster, such as tcp://10.0.0.1:8786."),
    click.option("--store", type=click.Path(dir_okay=False), metavar="FILE", help="Keep every result as it comes."),
    click.option("--resume", is_flag=True, help="Go on with the run in the store."),
)


def run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of every command that runs cases."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def seed_for(given: dict[str, Any]) -> int:
    """The seed asked for, that of the run that goes on, or a fresh one."""
    from gradvet.suite.runs import seed_in

    if given["seed"] is not None:
        return int(given["seed"])
    if given["resume"]:
        if given["store"] is None:
            raise click.UsageError("--resume goes on with the run in a store: name its file with --store")
        found = seed_in(given["store"])
        if found is not None:
            return found
    return int.from_bytes(os.urandom(4), "little")


def place_of(given: dict[str, Any], apart: bool) -> Place:
    """Where cases run. Alone and without limits they need no process of their own, unless they are to be kept apart."""
    from gradvet.suite.engines import Place
    from gradvet.suite.processes import Limits

    limits = Limits(given["timeout"], given["memory"])
    apart = apart or given["jobs"] > 1 or limits != Limits() or given["store"] is not None
    return Place(given["jobs"] if apart else None, limits, given["retries"], given["cluster"])


def performed(
    job: Job, place: Place, given: dict[str, Any], console: Console, *, telling: bool = False
) -> Iterator[Outcome]:
    """What becomes of each case, in order and as it comes; with `telling`, failures are told out of order too."""
    from gradvet.suite.runs import begin, carry_out, in_order

    store = begin(job, given["store"], given["resume"])
    missing = store.missing()
    if len(missing) < len(store):
        click.echo(f"{len(store) - len(missing)} of {len(store)} cases are in {store.path} already", err=True)
    shown = console if console.is_terminal else terminal.console_for(stderr=True)
    with closing(store), progress(missing, shown) as advance:

        def fresh() -> Generator[Outcome]:
            for outcome in carry_out(job, place, store):
                advance(outcome.name, *((outcome.report, outcome.words) if telling else ()))
                yield outcome

        with closing(fresh()) as outcomes:
            yield from in_order(store, outcomes)
