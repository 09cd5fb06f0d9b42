"""Runs cases on an executor: in this process, in worker processes, or on a Dask cluster.

Each case yields one result. A case whose process died is retried, and no case is counted twice.
"""

from __future__ import annotations

import functools
import operator
import os
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Executor, Future, wait
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from gradvet.api import check
from gradvet.core.results import Verdict
from gradvet.errors import InvalidProblemError
from gradvet.frontends.torch.inputs import random_inputs
from gradvet.reports.wording import one_line
from gradvet.suite.case import Case, CaseResult, Status
from gradvet.suite.processes import Limits, MemoryLimitError, ProcessExecutor, TimeLimitError
from gradvet.suite.run import Run, run_case
from gradvet.suite.store import Store

CALLS_PER_WORKER = 3
"""Calls submitted per worker: no worker waits for work, and a run of any length needs little memory."""

CONNECT_TIMEOUT_SECONDS = 10.0
"""Time within which a Dask scheduler must answer."""


class ExecutorLostError(RuntimeError):
    """The executor cancelled its calls."""


@dataclass(frozen=True, slots=True)
class ExecutorSettings:
    """Where cases run, and within which limits."""

    jobs: int | None = None
    """Number of worker processes; None runs cases in this process, without limits."""
    limits: Limits = field(default_factory=Limits)
    retries: int = 1
    """Further attempts after the process of a case died or exceeded a limit."""
    cluster: str | None = None
    """Address of a Dask scheduler."""


@dataclass(frozen=True, slots=True)
class CaseExecutor:
    """An executor, and how cases are submitted to it."""

    executor: Executor
    call: Callable[..., CaseResult]
    """Runs in the executor. Its last argument is a name; a `ProcessExecutor` puts the worker's state first."""
    max_calls: int
    """Number of calls submitted at a time."""
    retries: int = 0

    def results(self, names: Sequence[str]) -> Iterator[CaseResult]:
        """The result of each case, in the order in which they arrive."""
        pending = deque(names)
        attempts: Counter[str] = Counter()
        running: dict[Future[CaseResult], str] = {}
        while pending or running:
            while pending and len(running) < self.max_calls:
                name = pending.popleft()
                attempts[name] += 1
                running[self.executor.submit(self.call, name)] = name
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                name = running.pop(future)
                error = _exception(future)
                if error is None:
                    result = future.result()
                    yield replace(result, attempts=result.attempts + attempts[name] - 1)
                elif attempts[name] <= self.retries:
                    pending.appendleft(name)
                else:
                    yield CaseResult.of_error(name, _status(error), one_line(error), attempts[name])


def run_missing(run: Run, cases: Mapping[str, Case], settings: ExecutorSettings, store: Store) -> Iterator[CaseResult]:
    """Run the cases without a stored result. Each result is stored before it is yielded."""
    missing = store.missing()
    if not missing:
        return
    with closing(_results(run, cases, settings, missing)) as results:
        for result in results:
            if result.verdict is Verdict.ERROR:
                result = replace(result, report=replace(result.report, replay=run.replay(cases, result.name)))
            store.add(result)
            yield result


def _results(
    run: Run, cases: Mapping[str, Case], settings: ExecutorSettings, names: Sequence[str]
) -> Generator[CaseResult]:
    """Run cases as the settings say. Closing the generator aborts the calls that still run."""
    if settings.cluster is not None:
        with _cluster(run, settings) as executor:
            yield from executor.results(names)
    elif settings.jobs is None:
        yield from (run_case(run, cases, name) for name in names)
    else:
        processes = ProcessExecutor(settings.jobs, settings.limits, _prepare_worker, (run,))
        max_calls = CALLS_PER_WORKER * settings.jobs
        try:
            yield from CaseExecutor(processes, _run_case, max_calls, retries=settings.retries).results(names)
        finally:
            processes.shutdown(cancel_futures=True)


def _prepare_worker(run: Run) -> tuple[Run, Mapping[str, Case]]:
    """Runs first in a worker process; its result is the first argument of `_run_case`."""
    if os.path.isdir(run.folder):
        os.chdir(run.folder)
    cases = run.source.open()
    # The first check of a process loads large parts of torch. That time must not count for the first case.
    check(operator.neg, random_inputs([(2,)]), seed=0)
    return run, cases


def _run_case(state: tuple[Run, Mapping[str, Case]], name: str) -> CaseResult:
    """Runs in a worker process. Exceptions may not be picklable, so the result leaves the process without them."""
    try:
        return replace(run_case(*state, name), error=None)
    except KeyboardInterrupt:  # of the case itself: Ctrl-C of a terminal does not reach a worker
        return CaseResult.of_error(name, Status.RAISED, KeyboardInterrupt.__name__)


@contextmanager
def _cluster(run: Run, settings: ExecutorSettings) -> Iterator[CaseExecutor]:
    try:
        from distributed import Client
    except ImportError:
        raise InvalidProblemError("--cluster needs dask.distributed: pip install 'gradvet[cluster]'") from None
    try:
        client = Client(settings.cluster, timeout=CONNECT_TIMEOUT_SECONDS)
    except OSError as error:
        raise InvalidProblemError(f"no Dask scheduler answers at {settings.cluster} ({error})") from error
    with client:
        workers = sum(client.nthreads().values())
        if not workers:
            raise InvalidProblemError(f"the Dask cluster at {settings.cluster} has no workers: start some first")
        executor = client.get_executor(pure=False)
        try:
            call = functools.partial(_run_case_on_cluster, run, settings)
            yield CaseExecutor(executor, call, CALLS_PER_WORKER * workers, settings.retries)
        finally:
            executor.shutdown(wait=False)


def _run_case_on_cluster(run: Run, settings: ExecutorSettings, name: str) -> CaseResult:
    """Runs on a cluster worker. The case runs in a child process, so that a crash does not end the worker."""
    processes = _cluster_processes(run, settings)
    (result,) = CaseExecutor(processes, _run_case, max_calls=1, retries=settings.retries).results([name])
    return result


@functools.lru_cache(maxsize=2)
def _cluster_processes(run: Run, settings: ExecutorSettings) -> ProcessExecutor:
    """The child processes of a run on this cluster worker. They end when the cache drops them."""
    return ProcessExecutor(os.cpu_count() or 1, settings.limits, _prepare_worker, (run,))


def _exception(future: Future[Any]) -> BaseException | None:
    try:
        return future.exception()
    except CancelledError:
        raise ExecutorLostError("the cluster is gone: results so far are kept if --store was given") from None


def _status(error: BaseException) -> Status:
    if isinstance(error, TimeLimitError):
        return Status.TIME_LIMIT
    return Status.MEMORY_LIMIT if isinstance(error, MemoryLimitError) else Status.DIED
