"""CPU time of several checkers, taken in turn so that drift of the machine meets all of them alike."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from gradvet.frontends.torch.random_state import seeded

LONG = 0.5
"""Seconds above which one measurement is enough: neither the first call's extra cost nor the clock matters then, and
what other processes do to the caches matters less."""


def repeats(seconds: float) -> int:
    """How often to measure a call that took that long the first time."""
    if seconds < 0.005:
        return 31
    return 5 if seconds < LONG else 1


def interleaved(checkers: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Median CPU seconds of each checker, called in turn; every other round in reverse.

    Reversing, unlike rotating, varies who runs after whom: a call that has just emptied the caches slows its successor.
    The first round warms up; it counts for the checkers that take so long that they are measured once.
    """
    with quiet_collector():
        taken = {name: [cpu_seconds(call)] for name, call in checkers.items()}
        rounds = {name: repeats(first) for name, (first,) in taken.items()}
        for measured in taken.values():
            if measured[0] < LONG:
                measured.clear()
        for turn in range(max(rounds.values())):
            for name in list(checkers)[:: 1 if turn % 2 else -1]:
                if len(taken[name]) < rounds[name]:
                    taken[name].append(cpu_seconds(checkers[name]))
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


def cpu_seconds(call: Callable[[], object]) -> float:
    """Time of one call from a fixed random state: the work, and the verdict, are the same every time."""
    with seeded(0):
        started = time.process_time()
        call()
        return time.process_time() - started


@contextmanager
def quiet_collector() -> Iterator[None]:
    """No garbage collection while the clock runs: whom it meets is chance."""
    gc.collect(1)
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
