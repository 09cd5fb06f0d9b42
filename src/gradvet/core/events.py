"""What stands around the checks of a run: who listens to their reports, and which seed their directions have.

The drop-in functions return True or raise, and tests call checks in many ways: here a run hears of all of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gradvet.core.results import Report

Listener = Callable[[Report], object]

_listeners: list[Listener] = []
_seeds: list[int] = []


@contextmanager
def listening(listen: Listener, seed: int | None = None) -> Iterator[None]:
    """Pass the report of every check inside to `listen`, whatever its verdict.

    A seed holds for every check that names none of its own.

    >>> import gradvet, torch
    >>> reports = []
    >>> with listening(reports.append, seed=7):
    ...     gradvet.gradcheck(torch.sin, torch.ones(3, dtype=torch.float64, requires_grad=True))
    True
    >>> [(report.title, report.verdict.value, report.seed) for report in reports]
    [('sin', 'pass', 7)]
    """
    seeds = [] if seed is None else [seed]
    _listeners.append(listen)
    _seeds.extend(seeds)
    try:
        yield
    finally:
        _listeners.remove(listen)
        for given in seeds:
            _seeds.remove(given)


def fresh_seed() -> int:
    """The seed that was asked for last, or a fresh one from the system's source of randomness."""
    return _seeds[-1] if _seeds else int.from_bytes(os.urandom(4), "little")


def has_listeners() -> bool:
    """Whether anybody listens."""
    return bool(_listeners)


def publish(report: Report) -> Report:
    """Tell all who listen."""
    for listen in list(_listeners):
        listen(report)
    return report
