"""A run: a source of cases with one seed and one set of options, where and within which limits they run, its store.

Cases run in this process, in worker processes, or on a Dask cluster. Each case yields one result. A case whose process
died is retried, and no case is counted twice.
"""

from __future__ import annotations

import gc
import json
import operator
import os
import signal
import sys
import threading
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Executor, Future, wait
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradvet.api import check
from gradvet.core.processes import ProcessDiedError, ProcessExecutor, Status
from gradvet.core.provenance import environment, raising_line
from gradvet.core.results import Verdict
from gradvet.errors import InvalidProblemError
from gradvet.frontends.torch.inputs import random_inputs
from gradvet.frontends.torch.process_state import SEARCH_SETTINGS, ProcessState, Settings
from gradvet.options import Budget
from gradvet.reports.wording import one_line
from gradvet.suite import Case, CaseResult
from gradvet.suite.store import Store, holds_run

if TYPE_CHECKING:
    from gradvet.suite.sources import Operators, Targets

IDENTITY_VERSIONS = ("python", "torch", "gradvet")
"""Entries of the environment that must agree for a run to be resumed."""


@dataclass(frozen=True, slots=True)
class Run:
    """A source of cases, and the settings common to all of them. Copies in other processes compare equal."""

    source: Targets | Operators = field(compare=False)
    """Plain data from which any process creates the same cases. May execute files of the user."""
    seed: int
    options: Mapping[str, Any] = field(default_factory=dict, compare=False)
    folder: str = field(default_factory=os.getcwd)
    """Working directory; relative paths of targets start here, also in other processes."""
    key: str = field(default_factory=lambda: uuid.uuid4().hex)
    jobs: int | None = None
    """Number of worker processes; None runs cases in this process, without limits."""
    limits: Budget = field(default_factory=Budget)
    """Limits of one call in a worker: seconds, and resident memory of its process."""
    retries: int = 1
    """Further attempts after the process of a case died or exceeded a limit."""
    cluster: str | None = None
    """Address of a Dask scheduler."""

    def identity(self) -> dict[str, Any]:
        """The JSON values that must agree for results to belong to the same run."""
        known = environment()
        versions = {name: known[name] for name in IDENTITY_VERSIONS if name in known}
        values = {**self.source.describe(), "options": dict(self.options), "seed": self.seed, "versions": versions}
        return dict(json.loads(json.dumps(values, default=str)))

    def replay(self, cases: Mapping[str, Case], name: str) -> str:
        """The command that runs one case alone, or nothing if the case cannot be made."""
        try:
            return f"{cases[name].replay} --seed {self.seed}"
        except Exception:
            return ""


def _folder() -> str | None:
    with suppress(OSError):
        return os.getcwd()
    return None


def _set_folder(folder: str | None) -> None:
    if folder is not None:
        with suppress(OSError):  # the folder was removed
            os.chdir(folder)


def _set_environment(values: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(values)


def _umask() -> int:
    """The mask of new files, read without a change of it where the system tells: an interruption would leave that."""
    with suppress(OSError), open("/proc/self/status", encoding="utf-8") as status:
        for line in status:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGCHLD, signal.SIGPIPE)


def _set_handler(number: int, handler: Any) -> None:
    if threading.current_thread() is threading.main_thread():  # no other thread may set one
        signal.signal(number, handler)


CASE_SETTINGS: Settings = {
    **SEARCH_SETTINGS,
    _folder: _set_folder,
    lambda: dict(os.environ): _set_environment,
    lambda: list(sys.path): partial(operator.setitem, sys.path, slice(None)),
    **{partial(getattr, sys, name): partial(setattr, sys, name) for name in ("stdin", "stdout", "stderr")},
    _umask: os.umask,
    gc.isenabled: lambda enabled: gc.enable() if enabled else gc.disable(),
    sys.gettrace: sys.settrace,
    **{partial(signal.getsignal, number): partial(_set_handler, number) for number in HANDLED},
}
"""The settings that are restored after each case of a run; reading them takes longer than those of one check."""


def run_case(run: Run, cases: Mapping[str, Case], name: str) -> CaseResult:
    """Check one case. An exception, also from looking up the case, becomes its result."""
    started = time.perf_counter()
    try:
        state = ProcessState(CASE_SETTINGS)
        with state, state:  # twice: the first restoration may be interrupted
            report = cases[name].run(run.seed, **run.options)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also SystemExit and pytest's Skipped
        result = CaseResult.of_error(name, Status.RAISED, _message(error), seconds=time.perf_counter() - started)
        return replace(result, error=error)
    return CaseResult(name, report, seconds=time.perf_counter() - started)


def open_store(run: Run, cases: Mapping[str, Case], path: str | Path | None = None, resume: bool = False) -> Store:
    """A new store for the run, or with `resume` the store in the file if it belongs to the same run."""
    names = list(cases)
    if path is None or not (resume and holds_run(path)):
        return Store.create(path, run.identity(), names)
    store = Store.open(path, writable=True)
    store.require_identity(run.identity())
    if store.names() != names:
        raise InvalidProblemError(
            f"{path} holds a run of other cases: cases were added or removed since; name another file"
        )
    return store


def stored_seed(path: str | Path) -> int | None:
    """The seed of the run in a file, or None if the file holds no run."""
    if not holds_run(path):
        return None
    with closing(Store.open(path)) as store:
        return int(store.identity["seed"])


def in_case_order(store: Store, new_results: Iterator[CaseResult]) -> Iterator[CaseResult]:
    """All results in the order of the cases: stored ones, and new ones as soon as all before them are known."""
    missing, ready = set(store.missing()), dict[str, CaseResult]()
    for name in store.names():
        while name in missing and name not in ready:
            result = next(new_results)
            ready[result.name] = result
        yield ready.pop(name) if name in ready else store.result(name)


def _message(error: BaseException) -> str:
    """The exception of a case, and the line of the user's code that raised it."""
    text = one_line(error)
    if isinstance(error, SystemExit):
        return f"the case called sys.exit ({error.code})"
    if isinstance(error, InvalidProblemError):
        return text
    line = raising_line(error)
    return (f"{type(error).__name__}: {text}" if text else type(error).__name__) + (f" ({line})" if line else "")


CALLS_PER_WORKER = 3
"""Calls submitted per worker: no worker waits for work, and a run of any length needs little memory."""

CONNECT_TIMEOUT_SECONDS = 10.0
"""Time within which a Dask scheduler must answer."""


def results_of(
    executor: Executor, call: Callable[..., CaseResult], names: Sequence[str], *, max_calls: int, retries: int = 0
) -> Iterator[CaseResult]:
    """The result of each case, in the order in which they arrive; at most `max_calls` are submitted at a time.

    `call` runs in the executor. Its last argument is a name; a `ProcessExecutor` puts the worker's state first.
    """
    pending = deque(names)
    attempts: Counter[str] = Counter()
    running: dict[Future[CaseResult], str] = {}
    while pending or running:
        while pending and len(running) < max_calls:
            name = pending.popleft()
            attempts[name] += 1
            running[executor.submit(call, name)] = name
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            name = running.pop(future)
            try:
                error = future.exception()
            except CancelledError:
                raise RuntimeError("the cluster is gone: results so far are kept if --store was given") from None
            if error is None:
                result = future.result()
                yield replace(result, attempts=result.attempts + attempts[name] - 1)
            elif attempts[name] <= retries:
                pending.appendleft(name)
            else:
                status = error.status if isinstance(error, ProcessDiedError) else Status.DIED
                yield CaseResult.of_error(name, status, one_line(error), attempts[name])


def run_missing(run: Run, cases: Mapping[str, Case], store: Store) -> Iterator[CaseResult]:
    """Run the cases without a stored result. Each result is stored before it is yielded."""
    missing = store.missing()
    if not missing:
        return
    with closing(_results(run, cases, missing)) as results:
        for result in results:
            if result.verdict is Verdict.ERROR:
                result = replace(result, report=replace(result.report, replay=run.replay(cases, result.name)))
            store.add(result)
            yield result


def _results(run: Run, cases: Mapping[str, Case], names: Sequence[str]) -> Generator[CaseResult]:
    """Run cases where the run says. Closing the generator aborts the calls that still run."""
    if run.cluster is not None:
        with _cluster(run.cluster) as (executor, workers):
            call, max_calls = partial(_run_case_on_cluster, run), CALLS_PER_WORKER * workers
            yield from results_of(executor, call, names, max_calls=max_calls, retries=run.retries)
    elif run.jobs is None:
        yield from (run_case(run, cases, name) for name in names)
    else:
        processes = ProcessExecutor(run.jobs, run.limits, _prepare_worker, (run,))
        try:
            max_calls = CALLS_PER_WORKER * run.jobs
            yield from results_of(processes, _run_case, names, max_calls=max_calls, retries=run.retries)
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
def _cluster(address: str) -> Iterator[tuple[Executor, int]]:
    """The executor of a Dask cluster, and its number of workers."""
    try:
        from distributed import Client
    except ImportError:
        raise InvalidProblemError("--cluster needs dask.distributed: pip install 'gradvet[cluster]'") from None
    try:
        client = Client(address, timeout=CONNECT_TIMEOUT_SECONDS)
    except (OSError, ValueError) as error:
        raise InvalidProblemError(f"no Dask scheduler answers at {address} ({error})") from error
    with client:
        workers = sum(client.nthreads().values())
        if not workers:
            raise InvalidProblemError(f"the Dask cluster at {address} has no workers: start some first")
        executor = client.get_executor(pure=False)
        try:
            yield executor, workers
        finally:
            executor.shutdown(wait=False)


def _run_case_on_cluster(run: Run, name: str) -> CaseResult:
    """Runs on a cluster worker. The case runs in a child process, so that a crash does not end the worker."""
    (result,) = results_of(_cluster_processes(run), _run_case, [name], max_calls=1, retries=run.retries)
    return result


@lru_cache(maxsize=2)
def _cluster_processes(run: Run) -> ProcessExecutor:
    """The child processes of a run on this cluster worker. They end when the cache drops them."""
    return ProcessExecutor(os.cpu_count() or 1, run.limits, _prepare_worker, (run,))
