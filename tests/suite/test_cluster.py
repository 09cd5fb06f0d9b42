"""A Dask cluster of several worker processes, one of which is killed in the middle."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gradvet.errors import InvalidProblemError
from gradvet.suite.engines import Place
from gradvet.suite.job import Ending
from gradvet.suite.runs import begin, carry_out
from gradvet.suite.store import Store
from tests.suite.runs import job_of, write_cases

distributed = pytest.importorskip("distributed")

CASES = 48


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.chdir(tmp_path)
    with distributed.LocalCluster(
        n_workers=3,
        threads_per_worker=1,
        processes=True,
        dashboard_address=None,
        local_directory=str(tmp_path),
        silence_logs=50,
    ) as cluster:
        yield cluster


def busy_worker(cluster: Any) -> int:
    """The process of a worker that is in the middle of something."""
    with distributed.Client(cluster) as client:
        busy = {address for address, keys in client.processing().items() if keys}
    return next(one.process.pid for one in cluster.workers.values() if one.worker_address in busy)


def test_killed_worker_costs_no_case_and_none_counts_twice(cluster: Any, tmp_path: Path) -> None:
    body = "time.sleep(0.005); return x.sin()"
    bodies = {f"case{number}": body for number in range(CASES)}
    target = write_cases(tmp_path, **{**bodies, "crashes": "os._exit(4)", "broken": "raise ValueError('no')"})
    job = job_of(target)
    store = begin(job, "run.db")
    seen: Counter[str] = Counter()
    for outcome in carry_out(job, Place(cluster=cluster.scheduler_address), store):
        if not seen:
            os.kill(busy_worker(cluster), signal.SIGKILL)
        seen[outcome.name] += 1
    assert set(seen.values()) == {1}
    assert len(seen) == CASES + 2
    found = {one.name.partition("::")[2]: one for one in Store.open("run.db").outcomes()}
    assert len(found) == CASES + 2
    # A crash of a case is not taken for the loss of a worker, nor the other way round.
    assert (found.pop("crashes").ending, found.pop("broken").words) == (Ending.DIED, "ValueError: no")
    assert {one.ending for one in found.values()} == {Ending.REPORTED}


def test_cluster_that_is_not_there_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("gradvet.suite.engines.CONNECT", 0.5)
    job = job_of(write_cases(tmp_path, right="return x.sin()"))
    with pytest.raises(InvalidProblemError, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:1"):
        list(carry_out(job, Place(cluster="tcp://127.0.0.1:1"), begin(job)))
