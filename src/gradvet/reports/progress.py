"""A progress bar for what takes longer than a second, on terminals alone; it leaves nothing behind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

PATIENCE = 1.0
"""Seconds that nobody minds."""


@contextmanager
def progress(names: Sequence[str], console: Console) -> Iterator[Callable[[], None]]:
    """Count through what has these names, showing the one that is under way; the bar appears after a second."""
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
    coming = iter([*names[1:], ""])
    task = bar.add_task(next(iter(names), ""), total=len(names))
    timer = threading.Timer(PATIENCE, bar.start)
    timer.daemon = True

    def advance() -> None:
        bar.update(task, advance=1, description=next(coming, ""))

    timer.start()
    try:
        yield advance
    finally:
        timer.cancel()
        timer.join()
        bar.stop()
