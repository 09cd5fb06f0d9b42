"""Progress of a run: a bar on a terminal, a line at intervals in a log file."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gradvet.core.results import WORST_FIRST, Report, Verdict
from gradvet.reports.wording import notable_findings

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

BAR_DELAY_SECONDS = 1.0
"""Time before the progress bar appears: shorter runs print nothing."""

LOG_INTERVAL_SECONDS = 10.0
"""Time between two lines of a log, also before the first one."""

Advance = Callable[..., None]
"""Called with the name of a case that is done; with its report too, failures and errors are printed and counted."""


@contextmanager
def progress(names: Sequence[str], console: Console, clock: Callable[[], float] = time.monotonic) -> Iterator[Advance]:
    """Show how many of the named cases are done, and the first one that is not."""
    counts: Counter[Verdict] = Counter()
    pending = dict.fromkeys(names)
    with _bar(names, console) if console.is_terminal else _log(len(names), console, clock) as show:

        def advance(name: str = "", report: Report | None = None) -> None:
            pending.pop(name or next(iter(pending), ""), None)
            failure = ""
            if report is not None:
                counts[report.verdict] += 1
                if report.verdict in (Verdict.FAIL, Verdict.ERROR):
                    worst = notable_findings(report)[0]
                    failure = f"{report.verdict} {name}: {worst.check}: {worst.headline}"
            counted = [f"{counts[verdict]} {verdict.value}" for verdict in WORST_FIRST if counts[verdict]]
            show(next(iter(pending), ""), counted, failure)

        yield advance


@contextmanager
def interactive_progress(title: str) -> Iterator[Callable[[str], object]]:
    """A progress bar in an interactive Python session on a terminal, nothing elsewhere. Yields what shows a stage."""
    if not (hasattr(sys, "ps1") and sys.stderr.isatty()):
        yield lambda stage: None
        return
    from gradvet.reports.terminal import console_for

    with _delayed_bar([title], console_for(stderr=True)) as (bar, task):
        yield lambda stage: bar.update(task, description=f"{title}: {stage}")


Show = Callable[[str, Sequence[str], str], None]
"""Shows that one more case is done: the name of the next one, the verdicts so far, and the failure if it failed."""


@contextmanager
def _delayed_bar(names: Sequence[str], console: Console) -> Iterator[tuple[Progress, TaskID]]:
    """A live line on a terminal, which appears after a delay."""
    from rich import progress as rich_progress

    bar = rich_progress.Progress(
        rich_progress.SpinnerColumn(),
        rich_progress.BarColumn(),
        rich_progress.MofNCompleteColumn(),
        rich_progress.TextColumn("{task.fields[rate]}", markup=False),
        rich_progress.TimeElapsedColumn(),
        rich_progress.TextColumn("left"),
        rich_progress.TimeRemainingColumn(),
        rich_progress.TextColumn("{task.fields[counts]}{task.description}", markup=False),
        console=console,
        transient=True,
    )
    timer = threading.Timer(BAR_DELAY_SECONDS, bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield bar, bar.add_task(next(iter(names), ""), total=len(names), rate="", counts="")
    finally:
        timer.cancel()
        timer.join()
        bar.stop()


@contextmanager
def _bar(names: Sequence[str], console: Console) -> Iterator[Show]:
    from rich.text import Text

    with _delayed_bar(names, console) as (bar, task):

        def show(next_name: str, counted: Sequence[str], failure: str) -> None:
            if failure and bar.live.is_started:
                bar.console.print(Text(failure, "red"), overflow="ellipsis", no_wrap=True)
            speed = bar.tasks[0].speed
            counts = "".join(f"{part}, " for part in counted)
            rate = f"{speed:.3g}/s" if speed else ""
            bar.update(task, advance=1, description=next_name, rate=rate, counts=counts)

        yield show


@contextmanager
def _log(total: int, console: Console, clock: Callable[[], float]) -> Iterator[Show]:
    """Lines for a file. Failures are held back until the first interval is over, so that a short run prints nothing."""
    started = printed = clock()
    done, held_lines = 0, []

    def show(next_name: str, counted: Sequence[str], failure: str) -> None:
        nonlocal printed, done
        done += 1
        now = clock()
        held_lines.extend([failure] if failure else [])
        if now >= printed + LOG_INTERVAL_SECONDS:
            printed = now
            rate = done / (now - started)
            line = f"{done} of {total}, {rate:.3g}/s, {_duration((total - done) / rate)} left"
            held_lines.append("; ".join(filter(None, (line, ", ".join(counted)))))
        if printed > started:
            for line in held_lines:
                console.out(line, highlight=False)
            held_lines.clear()

    yield show


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
