"""A fleet of workers, simulated: how long many cases take, who waits for whom, and what failures cost.

Time is what was measured elsewhere; nothing here is. One scheduler hands out batches one after the other, one writer
keeps the outcomes one after the other, and workers die at random. Work that dies with its worker is begun again as
`gradvet.suite` and Dask do it: a batch four times, then each of its cases alone, each of those four times per attempt.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass

DEATHS = 4
"""Workers that a call may take down before Dask calls it bad."""


@dataclass(frozen=True)
class Costs:
    """Measured seconds."""

    cases: Sequence[float]
    """Of cases, each as probable as any other."""
    start: float
    """Of a new worker, until it can run its first case."""
    schedule: float
    """The scheduler's, for one call."""
    store: float
    """The writer's, for one outcome: to receive and to keep it."""


@dataclass(frozen=True)
class Fleet:
    cases: int
    workers: int
    batch: int
    deaths_per_hour: float = 0.0
    """Of each worker."""
    retries: int = 1


@dataclass
class Result:
    seconds: float = 0.0
    worked: float = 0.0
    """Seconds of workers spent on cases that counted."""
    wasted: float = 0.0
    """Seconds of workers spent on work that died with them, and on starting again."""
    scheduling: float = 0.0
    storing: float = 0.0
    deaths: int = 0
    given_up: int = 0


@dataclass(order=True)
class _Call:
    """Cases that travel together, and how often they have died."""

    cases: tuple[float, ...]
    deaths: int = 0
    attempts: int = 1


def simulate(costs: Costs, fleet: Fleet, seed: int = 0) -> Result:
    """Run a fleet until every case has an outcome."""
    chance = random.Random(seed)
    rate = fleet.deaths_per_hour / 3600.0
    drawn = chance.choices(costs.cases, k=fleet.cases)
    waiting = [_Call(tuple(drawn[start : start + fleet.batch])) for start in range(0, fleet.cases, fleet.batch)]
    waiting.reverse()
    result = Result()
    scheduler = writer = 0.0  # when each is free again
    free = [costs.start] * fleet.workers  # when each worker is
    while waiting:
        call = waiting.pop()
        ready = heapq.heappop(free)
        scheduler = max(scheduler, ready) + costs.schedule
        result.scheduling += costs.schedule
        work = sum(call.cases)
        life = chance.expovariate(rate) if rate else float("inf")
        if life < work:
            result.deaths += 1
            result.wasted += life + costs.start
            heapq.heappush(free, scheduler + life + costs.start)
            waiting += _after_death(call, fleet, result)
            continue
        result.worked += work
        done = scheduler + work
        heapq.heappush(free, done)
        writer = max(writer, done) + costs.store * len(call.cases)
        result.storing += costs.store * len(call.cases)
    result.seconds = max(*free, writer)
    return result


def _after_death(call: _Call, fleet: Fleet, result: Result) -> list[_Call]:
    if call.deaths + 1 < DEATHS:
        return [_Call(call.cases, call.deaths + 1, call.attempts)]
    if len(call.cases) > 1:
        return [_Call((case,)) for case in call.cases]
    if call.attempts <= fleet.retries:
        return [_Call(call.cases, 0, call.attempts + 1)]
    result.given_up += 1
    return []
