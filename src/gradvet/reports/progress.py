"""Progress of a run: a bar on a terminal, a line at intervals in a log file."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from gradvet.core.results import WORST_FIRST, Report, Verdict
from gradvet.reports.wording import notable_findings

if TYPE_CHECKING:
    from rich.console import Console

BAR_DELAY_SECONDS = 1.0
"""Time before the progress bar appears: shorter runs print nothing."""

LOG_INTERVAL_SECONDS = 10.0
"""Time between two lines of a log, also before the first one."""


Advance = Callable[..., None]
"""Called with the name of a case that is done; with its report too, failures and errors are printed and counted."""


@contextmanager
def progress(names: Sequence[str], console: Console, clock: Callable[[], float] = time.monotonic) -> Iterator[Advance]:
    """Show how many of the named cases are done, and the first one that is not."""
    with _Bar(names, console) if console.is_terminal else nullcontext(_Log(len(names), console, clock)) as view:
        counts: Counter[str] = Counter()
        pending = dict.fromkeys(names)

        def advance(name: str = "", report: Report | None = None) -> None:
            pending.pop(name or next(iter(pending), ""), None)
            if report is not None:
                counts[report.verdict.value] += 1
                if report.verdict in (Verdict.FAIL, Verdict.ERROR):
                    worst = notable_findings(report)[0]
                    view.print(f"{report.verdict} {name}: {worst.check}: {worst.headline}", "red")
            view.update(next(iter(pending), ""), counts)

        yield advance


@contextmanager
def interactive_progress(title: str) -> Iterator[Callable[[str], object]]:
    """A progress bar in an interactive Python session on a terminal, nothing elsewhere. Yields what shows a stage."""
    if not (hasattr(sys, "ps1") and sys.stderr.isatty()):
        yield lambda stage: None
        return
    from gradvet.reports.terminal import console_for

    with _Bar([title], console_for(stderr=True)) as bar:
        yield lambda stage: bar.describe(f"{title}: {stage}")


class _Bar:
    """A live line on a terminal, which appears after a delay."""

    def __init__(self, names: Sequence[str], console: Console) -> None:
        from rich import progress as rich_progress

        self.bar = rich_progress.Progress(
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
        self.task = self.bar.add_task(next(iter(names), ""), total=len(names), rate="", counts="")
        self.timer = threading.Timer(BAR_DELAY_SECONDS, self.bar.start)
        self.timer.daemon = True

    def __enter__(self) -> _Bar:
        self.timer.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.timer.cancel()
        self.timer.join()
        self.bar.stop()

    def update(self, next_name: str, counts: Counter[str]) -> None:
        speed = self.bar.tasks[0].speed
        rate = f"{speed:.3g}/s" if speed else ""
        shown = "".join(f"{part}, " for part in _counted(counts))
        self.bar.update(self.task, advance=1, description=next_name, rate=rate, counts=shown)

    def describe(self, text: str) -> None:
        self.bar.update(self.task, description=text)

    def print(self, line: str, style: str) -> None:
        from rich.text import Text

        if self.bar.live.is_started:
            self.bar.console.print(Text(line, style), overflow="ellipsis", no_wrap=True)


class _Log:
    """Lines for a file. Failures are held back until the first interval is over, so that a short run prints nothing."""

    def __init__(self, total: int, console: Console, clock: Callable[[], float]) -> None:
        self.total, self.console, self.clock = total, console, clock
        self.started = self.last_printed = clock()
        self.done = 0
        self.held_lines: list[str] = []

    def update(self, next_name: str, counts: Counter[str]) -> None:
        self.done += 1
        now = self.clock()
        if now < self.last_printed + LOG_INTERVAL_SECONDS:
            return
        self.last_printed = now
        rate = self.done / (now - self.started)
        left = _duration((self.total - self.done) / rate)
        shown = ", ".join(_counted(counts))
        line = f"{self.done} of {self.total}, {rate:.3g}/s, {left} left"
        self.held_lines.append(f"{line}; {shown}" if shown else line)
        self._flush()

    def print(self, line: str, style: str) -> None:
        self.held_lines.append(line)
        if self.last_printed > self.started:
            self._flush()

    def _flush(self) -> None:
        for line in self.held_lines:
            self.console.out(line, highlight=False)
        self.held_lines.clear()


def _counted(counts: Counter[str]) -> list[str]:
    return [f"{counts[verdict.value]} {verdict.value}" for verdict in WORST_FIRST if counts[verdict.value]]


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
