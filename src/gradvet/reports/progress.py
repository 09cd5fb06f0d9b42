"""How far a run is: a live view on terminals that leaves only failures behind, a line now and then in a log."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from gradvet.core.results import Report, Verdict
from gradvet.reports.words import ORDER, telling

PATIENCE = 1.0
"""Seconds that nobody minds."""

LOG = 10.0
"""Seconds between two lines of a log."""

TROUBLE = "no verdict"


class Advance(Protocol):
    """Says that one more is done, and of what is to be told and counted, what came of it."""

    def __call__(self, done: str = "", report: Report | None = None, trouble: str = "") -> None: ...


class _View(Protocol):
    def count(self, coming: str, tally: Counter[str]) -> None: ...

    def tell(self, line: str, style: str) -> None: ...


@contextmanager
def progress(names: Sequence[str], console: Console) -> Iterator[Advance]:
    """Count through what has these names, showing the one that is under way; the bar appears after a second."""
    with (_bar if console.is_terminal else _log)(names, console) as view:
        tally: Counter[str] = Counter()
        coming = dict.fromkeys(names)

        def advance(done: str = "", report: Report | None = None, trouble: str = "") -> None:
            coming.pop(done or next(iter(coming), ""), None)
            if report is not None:
                tally[report.verdict.value] += 1
                if report.verdict is Verdict.FAIL:
                    worst = telling(report)[0]
                    view.tell(f"FAIL {done}: {worst.check}: {worst.headline}", "red")
            elif trouble:
                tally[TROUBLE] += 1
                view.tell(f"{done}: {trouble}", "yellow")
            view.count(next(iter(coming), ""), tally)

        yield advance


class _Bar:
    """A live line on a terminal."""

    def __init__(self, names: Sequence[str], console: Console) -> None:
        self.bar = Progress(
            SpinnerColumn(),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}", markup=False),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[tally]}{task.description}", markup=False),
            console=console,
            transient=True,
        )
        self.task = self.bar.add_task(next(iter(names), ""), total=len(names), rate="", tally="")

    def count(self, coming: str, tally: Counter[str]) -> None:
        speed = self.bar.tasks[0].speed
        rate = f"{speed:.3g}/s" if speed else ""
        self.bar.update(self.task, advance=1, description=coming, rate=rate, tally=_counted(tally))

    def tell(self, line: str, style: str) -> None:
        if self.bar.live.is_started:
            self.bar.console.print(Text(line, style), overflow="ellipsis", no_wrap=True)


@contextmanager
def _bar(names: Sequence[str], console: Console) -> Iterator[_View]:
    view = _Bar(names, console)
    timer = threading.Timer(PATIENCE, view.bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield view
    finally:
        timer.cancel()
        timer.join()
        view.bar.stop()


class _Log:
    """Lines for a file. A run that is over before the first is due leaves none."""

    def __init__(self, total: int, console: Console, clock: Callable[[], float]) -> None:
        self.total, self.console, self.clock = total, console, clock
        self.started = self.due = clock()
        self.done = 0
        self.held: list[str] = []

    def count(self, coming: str, tally: Counter[str]) -> None:
        self.done += 1
        elapsed = self.clock() - self.started
        if self.clock() < self.due + LOG:
            return
        self.due = self.clock()
        rate = self.done / elapsed
        left = (self.total - self.done) / rate
        self.held.append(f"{self.done} of {self.total}, {rate:.3g}/s, {_duration(left)} left{_told(tally)}")
        self._flush()

    def tell(self, line: str, style: str) -> None:
        self.held.append(line)
        if self.due > self.started:
            self._flush()

    def _flush(self) -> None:
        for line in self.held:
            self.console.out(line, highlight=False)
        self.held.clear()


@contextmanager
def _log(names: Sequence[str], console: Console) -> Iterator[_View]:
    yield _Log(len(names), console, time.monotonic)


def _counted(tally: Counter[str]) -> str:
    return "".join(
        f"{tally[name]} {name}, " for name in (*(verdict.value for verdict in ORDER), TROUBLE) if tally[name]
    )


def _told(tally: Counter[str]) -> str:
    told = _counted(tally).removesuffix(", ")
    return f"; {told}" if told else ""


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
