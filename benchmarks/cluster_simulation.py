"""Simulation of a run on a cluster: how long many cases take, what limits the run, and what failures cost.

All times are given; nothing is measured here. One scheduler hands out batches one after the other, one process stores
the results one after the other, and workers die at random. A batch whose worker died is repeated as `gradvet.suite`
and Dask do it: the batch four times, then each of its cases alone, each of those four times per attempt.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass

DEATHS = 4
"""Workers that may die with a call before Dask gives it up."""


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
    """The storing process's, for one result: to receive and to store it."""


@dataclass(frozen=True)
class Cluster:
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


def simulate(costs: Costs, cluster: Cluster, seed: int = 0) -> Result:
    """Simulate until every case has a result."""
    chance = random.Random(seed)
    rate = cluster.deaths_per_hour / 3600.0
    drawn = chance.choices(costs.cases, k=cluster.cases)
    waiting = [_Call(tuple(drawn[start : start + cluster.batch])) for start in range(0, cluster.cases, cluster.batch)]
    waiting.reverse()
    result = Result()
    scheduler = writer = 0.0  # when each is free again
    free = [costs.start] * cluster.workers  # when each worker is
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
            waiting += _after_death(call, cluster, result)
            continue
        result.worked += work
        done = scheduler + work
        heapq.heappush(free, done)
        writer = max(writer, done) + costs.store * len(call.cases)
        result.storing += costs.store * len(call.cases)
    result.seconds = max(*free, writer)
    return result


def _after_death(call: _Call, cluster: Cluster, result: Result) -> list[_Call]:
    if call.deaths + 1 < DEATHS:
        return [_Call(call.cases, call.deaths + 1, call.attempts)]
    if len(call.cases) > 1:
        return [_Call((case,)) for case in call.cases]
    if call.attempts <= cluster.retries:
        return [_Call(call.cases, 0, call.attempts + 1)]
    result.given_up += 1
    return []
