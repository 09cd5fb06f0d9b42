"""Cases in this process, in worker processes and on a Dask cluster; each yields one result.

Also tests `frontends/torch/process_state.py`.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gradvet.core.processes import ProcessDiedError, Status
from gradvet.core.results import Verdict
from gradvet.errors import InvalidProblemError
from gradvet.suite import CaseResult
from gradvet.suite.run import open_store, results_of, run_missing
from gradvet.suite.store import Store
from tests.reports.samples import passed
from tests.suite.case_files import report_of, run_all, run_of, write_cases

CLUSTER_CASES = 2


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


DIES_ONCE = """if not os.path.exists('tried'):
        open('tried', 'w').close()
        os._exit(1)
    return x.sin()"""


class FailingExecutor(Executor):
    """Loses the worker of every call with the name `bad`, and the memory limit ends that of `large`."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        (name,) = args
        self.calls.append(name)
        future: Future[Any] = Future()
        if name == "bad":
            future.set_exception(ProcessDiedError("worker lost"))
        elif name == "large":
            future.set_exception(ProcessDiedError("used more than 1 GiB of memory", Status.MEMORY_LIMIT))
        else:
            future.set_result(fn(name))
        return future


def reported(name: str) -> CaseResult:
    return CaseResult(name, passed(name))


def test_case_that_is_lost_is_repeated_and_then_given_up() -> None:
    executor = FailingExecutor()
    names = ["a", "bad", "b", "large", "c"]
    found = list(results_of(executor, reported, names, max_calls=2, retries=1))
    assert sorted((one.name, one.status, one.attempts) for one in found) == [
        ("a", "reported", 1),
        ("b", "reported", 1),
        ("bad", "died", 2),
        ("c", "reported", 1),
        ("large", Status.MEMORY_LIMIT, 2),
    ]
    assert sorted(executor.calls) == ["a", "b", "bad", "bad", "c", "large", "large"]


def test_as_many_calls_run_at_a_time_as_the_executor_accepts() -> None:
    lock, running, most = threading.Lock(), 0, 0
    three_calls = threading.Barrier(3)

    def call(name: str) -> CaseResult:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        three_calls.wait(timeout=600)
        with lock:
            running -= 1
        return reported(name)

    with ThreadPoolExecutor(8) as executor:
        results = results_of(executor, call, [str(number) for number in range(21)], max_calls=3)
        assert len(list(results)) == 21
    assert most == 3


def test_cancelled_call_is_not_a_result() -> None:
    class Gone(Executor):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            future: Future[Any] = Future()
            future.cancel()
            future.set_running_or_notify_cancel()
            return future

    with pytest.raises(RuntimeError, match="the cluster is gone"):
        list(results_of(Gone(), reported, ["a"], max_calls=1))


@pytest.fixture
def cluster(folder: Path) -> Iterator[Any]:
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=1,
        threads_per_worker=1,
        processes=True,
        dashboard_address=None,
        local_directory=str(folder),
        silence_logs=50,
    ) as cluster:
        yield cluster


def busy_worker(cluster: Any) -> int:
    """The process of a worker with pending calls."""
    import distributed

    with distributed.Client(cluster) as client:
        busy = {address for address, keys in client.processing().items() if keys}
    return next(one.process.pid for one in cluster.workers.values() if one.worker_address in busy)


def test_killed_worker_costs_no_case_and_none_counts_twice(cluster: Any, folder: Path) -> None:
    # The first case ends at once. Later ones wait until a worker was killed, so that a busy one is left to kill: the
    # result of the first arrives, and is stored, while the others run.
    # Without that, they go on after ten minutes, and the results arrive together.
    wait = "\n    end = time.time() + 600"
    wait += "\n    while not os.path.exists('killed') and time.time() < end: time.sleep(0.01)\n    "
    bodies = {f"case{n}": (wait if n else "") + "return x.sin()" for n in range(CLUSTER_CASES)}
    target = write_cases(folder, **bodies, crashes="os._exit(4)", broken="raise ValueError('no')")
    run = run_of(target, cluster=cluster.scheduler_address, retries=0)
    cases = run.source.open()
    store = open_store(run, cases, "run.db")
    seen: Counter[str] = Counter()
    for result in run_missing(run, cases, store):
        if not seen:
            assert [one.status for one in Store.open("run.db").results()].count(Status.REPORTED) == 1
            os.kill(busy_worker(cluster), signal.SIGKILL)
            (folder / "killed").touch()
        seen[result.name] += 1
    assert set(seen.values()) == {1}
    assert len(seen) == CLUSTER_CASES + 2
    found = {one.name.partition("::")[2]: one for one in Store.open("run.db").results()}
    assert len(found) == CLUSTER_CASES + 2
    # A crash of a case is not counted as the loss of a worker, nor the reverse.
    assert found.pop("crashes").status == Status.DIED
    assert found.pop("broken").message.startswith("ValueError: no (ops.py:")
    assert {one.status for one in found.values()} == {Status.REPORTED}


def test_unreachable_cluster_is_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr("gradvet.suite.run.CONNECT_TIMEOUT_SECONDS", 0.5)
    target = write_cases(folder, right="return x.sin()")
    for address in ("tcp://127.0.0.1:1", "nonsense"):
        run = run_of(target, cluster=address)
        cases = run.source.open()
        with pytest.raises(InvalidProblemError, match=f"no Dask scheduler answers at {address}"):
            list(run_missing(run, cases, open_store(run, cases)))


SETTINGS = {
    "grad_mode": "torch.set_grad_enabled(False)",
    "dtype": "torch.set_default_dtype(torch.float32 if torch.get_default_dtype() == torch.float64 else torch.float64)",
    "device": "torch.set_default_device('meta')",
    "deterministic": "torch.use_deterministic_algorithms(True)",
    "folder": "os.chdir('/')",
    "environment": "os.environ['CHANGED_BY_A_CASE'] = '1'",
    "path": "sys.path.insert(0, '/changed/by/a/case')",
    "filters": "import warnings; warnings.simplefilter('error')",
    "random": "torch.manual_seed(3)",
    "mask": "os.umask(0o777)",
    "collector": "import gc; gc.disable()",
    "streams": "sys.stdout = None",
    "handlers": "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)",
    "threads": "torch.set_num_threads(torch.get_num_threads() + 1)",
}
STATE = """import gc, signal, warnings
    found = (torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_default_device(), os.getcwd(),
        torch.are_deterministic_algorithms_enabled(), os.environ.get('CHANGED_BY_A_CASE'),
        sys.path[0] == '/changed/by/a/case', os.umask(0o22), gc.isenabled(), sys.stdout is None,
        signal.getsignal(signal.SIGTERM) is signal.SIG_IGN, torch.get_num_threads(),
        [one for one in warnings.filters if one[0] == 'error' and one[1] is None])
    open('state', 'a').write(f'{found}' + chr(10))
    return x.sin()"""


@pytest.mark.parametrize("name", SETTINGS)
def test_what_a_case_sets_does_not_reach_the_next(folder: Path, name: str) -> None:
    target = write_cases(folder, before=STATE, sets=f"{SETTINGS[name]}; raise RuntimeError('no')", after=STATE)
    found = run_all(target)
    assert [found[one].verdict for one in ("before", "sets", "after")] == [Verdict.PASS, Verdict.ERROR, Verdict.PASS]
    assert len(set((folder / "state").read_text().splitlines())) == 1


RAISING = {  # "skips" is not first: a skip that is not caught would skip the test
    "odd": "raise BaseException('odd')",
    "leaves": "sys.exit('enough')",
    "skips": "import pytest; pytest.skip('not here')",
    "empty": "raise MemoryError",
    "endless": "return endless(x)",
    "unprintable": "raise type('Odd', (Exception,), {'__str__': lambda self: 1 / 0})()",
}
MESSAGES = {
    "skips": "Skipped: not here (ops.py)",
    "leaves": "the case called sys.exit (enough)",
    "odd": "BaseException: odd (ops.py)",
    "empty": "MemoryError (ops.py)",
    "endless": "RecursionError: maximum recursion depth exceeded (ops.py)",
    "unprintable": "Odd: its message cannot be read (ops.py)",
    "right": "",
}


def messages(found: Mapping[str, CaseResult]) -> dict[str, str]:
    """The messages without numbers of lines, and without what Python was doing in the deepest call."""
    return {name: re.sub(r" while [^(]*(?= \()|:\d+(?=\)$)", "", one.message) for name, one in found.items()}


def test_every_kind_of_exception_is_the_result_of_its_case(folder: Path) -> None:
    found = run_all(write_cases(folder, **RAISING, right="return x.sin()"))
    assert messages(found) == MESSAGES
    assert found["skips"].report.replay == "gradvet check ops.py::skips --seed 5"


def test_results_of_workers_are_those_of_this_process(folder: Path) -> None:
    """One run for all that a worker must survive, because each worker imports torch."""
    bodies = {**RAISING, "right": "return x.sin() * x.exp()"}
    here = report_of(run_all(write_cases(folder, right=bodies["right"]))["right"])
    target = write_cases(folder, **bodies, interrupts="raise KeyboardInterrupt", unlucky=DIES_ONCE)
    found = run_all(target, jobs=1)
    there = report_of(found["right"])
    assert (there.findings, there.resolution) == (here.findings, here.resolution)
    unlucky, interrupts = found.pop("unlucky"), found.pop("interrupts")
    assert (unlucky.status, unlucky.attempts) == (Status.REPORTED, 2)
    assert (interrupts.status, interrupts.message) == (Status.RAISED, "KeyboardInterrupt")
    assert messages(found) == MESSAGES
    assert found["skips"].report.replay == "gradvet check ops.py::skips --seed 5"
