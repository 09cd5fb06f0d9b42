"""Listeners for reports and for stages of a check, the seed of a run, and the lock that lets one check run at a time.

The drop-in functions return True or raise, and tests call checks in many ways: a listener receives all their reports.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ContextDecorator, contextmanager

from gradvet.core.results import Report

_LOCK = threading.RLock()


class _OneAtATime(ContextDecorator):
    """Lets one thread at a time run the functions that it decorates, and that thread run one inside another.

    The lock's own methods, written in C, are used: an interruption comes before or after them.
    """

    __enter__ = staticmethod(_LOCK.__enter__)
    __exit__ = staticmethod(_LOCK.__exit__)


one_at_a_time = _OneAtATime()
"""Decorates what runs a check: inputs, parameters, random generators and warnings filters belong to all threads."""

Listener = Callable[[Report], object]

ReportFilter = Callable[[Report], Report]

ShowStage = Callable[[str], object]

_listeners: list[Listener] = []
_filters: list[ReportFilter] = []
_seeds: list[list[int]] = []


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
    _seeds.append(seeds)
    try:
        yield
    finally:
        _listeners.remove(listen)
        _seeds[:] = [others for others in _seeds if others is not seeds]


@contextmanager
def filtering_reports(change: ReportFilter) -> Iterator[None]:
    """Let every `check` inside return `change(report)` in place of its report."""
    _filters.append(change)
    try:
        yield
    finally:
        _filters.remove(change)


def filtered(report: Report) -> Report:
    """The report to hand to the user."""
    for change in list(_filters):
        report = change(report)
    return report


def fresh_seed() -> int:
    """The seed that was asked for last, or a fresh one from the system's source of randomness."""
    asked = [seed for seeds in _seeds for seed in seeds]
    return asked[-1] if asked else int.from_bytes(os.urandom(4), "little")


def has_listeners() -> bool:
    """Whether there is a listener."""
    return bool(_listeners)


def publish(report: Report) -> Report:
    """Pass the report to every listener."""
    for listen in list(_listeners):
        listen(report)
    return report


class ShowingStages:
    """Passes the stages of a long check inside to `show`. `check` enters it twice, as its end may be interrupted."""

    def __init__(self, show: ShowStage) -> None:
        self.show = show

    def __enter__(self) -> None:
        if self not in _stages:
            _stages.append(self)

    def __exit__(self, *exception: object) -> None:
        if self in _stages:
            _stages.remove(self)


_stages: list[ShowingStages] = []


def announce_stage(stage: str) -> None:
    """Pass the name of the stage that begins to every progress bar."""
    for one in list(_stages):
        one.show(stage)
