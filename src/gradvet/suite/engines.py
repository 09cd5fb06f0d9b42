"""Where cases run: in this process, in processes of this machine, or on a Dask cluster. Each is an executor."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from gradvet.errors import InvalidProblemError
from gradvet.suite.execution import Engine, outcomes
from gradvet.suite.job import Job, Outcome, Runner, run
from gradvet.suite.processes import Limits, Processes

Result = TypeVar("Result")

BATCH = 16
"""Cases that travel to a cluster together: its scheduler has that much less to do, and an operator is drawn once."""

AHEAD = 3
"""Calls per worker that are handed over: none waits for work, and millions of cases need no memory at once."""


CONNECT = 10.0
"""Seconds that a scheduler may take to answer."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where, and within which limits."""

    jobs: int | None = None
    """None is this process, without limits."""
    limits: Limits = field(default_factory=Limits)
    retries: int = 1
    """How often a case is begun again after its process died or was ended."""
    cluster: str | None = None
    """The address of a Dask scheduler."""


@contextmanager
def engine_at(place: Place, job: Job) -> Iterator[Engine]:
    """The engine of a place; whatever still runs when the block is left early is ended."""
    if place.cluster is not None:
        with _cluster(place, job) as engine:
            yield engine
    elif place.jobs is None:
        yield Engine(_Here(), functools.partial(_run_here, job), ahead=1)
    else:
        processes = Processes(place.jobs, place.limits, Runner.prepare, (job,))
        try:
            yield Engine(processes, _run_in_child, ahead=AHEAD * place.jobs, retries=place.retries)
        finally:
            processes.shutdown(cancel_futures=True)


class _Here(Executor):
    """Runs each call at once."""

    def submit(self, fn: Callable[..., Result], /, *args: Any, **kwargs: Any) -> Future[Result]:
        future: Future[Result] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def _run_here(job: Job, names: Sequence[str]) -> list[Outcome]:
    return [run(job, name) for name in names]


def _run_in_child(names: Sequence[str]) -> list[Outcome]:
    return [Runner.run(name) for name in names]


@contextmanager
def _cluster(place: Place, job: Job) -> Iterator[Engine]:
    try:
        from distributed import Client
    except ImportError:
        raise InvalidProblemError("--cluster needs dask.distributed: pip install 'gradvet[cluster]'") from None
    try:
        client = Client(place.cluster, timeout=CONNECT)
    except OSError as error:
        raise InvalidProblemError(f"no Dask scheduler answers at {place.cluster} ({error})") from error
    with client:
        workers = sum(client.nthreads().values())
        if not workers:
            raise InvalidProblemError(f"the Dask cluster at {place.cluster} has no workers: start some first")
        executor = client.get_executor(pure=False)
        try:
            call = functools.partial(_run_on_worker, job, place)
            yield Engine(executor, call, ahead=AHEAD * workers, batch=BATCH, retries=place.retries)
        finally:
            executor.shutdown(wait=False)


def _run_on_worker(job: Job, place: Place, names: Sequence[str]) -> list[Outcome]:
    """Runs on a worker of the cluster, in processes of its own: a crash there must not cost the worker."""
    engine = Engine(_processes(job, place), _run_in_child, ahead=1, retries=place.retries)
    return list(outcomes(names, engine))


@functools.lru_cache(maxsize=2)
def _processes(job: Job, place: Place) -> Processes:
    """Those of a run on this worker. When another run's take their place they end as their pipes are closed."""
    return Processes(os.cpu_count() or 1, place.limits, Runner.prepare, (job,))
