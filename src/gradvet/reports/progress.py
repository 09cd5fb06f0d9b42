"""A progress bar for what takes longer than a second, on terminals alone; it leaves nothing behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

PATIENCE = 1.0
"""Seconds that nobody minds."""


class Advance(Protocol):
    """Says that one more is done, and what comes next."""

    def __call__(self, done: str = "") -> None: ...


@contextmanager
def progress(total: int, console: Console) -> Iterator[Advance]:
    """Count to `total`; the bar appears after a second."""
    bar = Progress(
        SpinnerColumn(),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    task = bar.add_task("", total=total)
    timer = threading.Timer(PATIENCE, bar.start)
    timer.daemon = True

    def advance(done: str = "") -> None:
        bar.update(task, advance=1, description=done)

    timer.start()
    try:
        yield advance
    finally:
        timer.cancel()
        timer.join()
        bar.stop()
