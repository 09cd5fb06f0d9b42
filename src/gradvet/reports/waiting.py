"""A sign of life for somebody who waits at a prompt; programs, notebooks and tests are left alone."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def waiting(title: str) -> Iterator[None]:
    """In an interactive session on a terminal, what takes longer than a second shows its name and the time."""
    if not (hasattr(sys, "ps1") and sys.stderr.isatty()):
        yield
        return
    from gradvet.reports.progress import progress
    from gradvet.reports.terminal import console_for

    with progress([title], console_for(stderr=True)):
        yield
