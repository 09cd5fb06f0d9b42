"""What a million cases on a thousand workers need: `python -m benchmarks.scale STORE...` writes `docs/scale.md`.

The stores of earlier runs give the cost per case and the size of a result. The rest is measured here: the start of a
process, a Dask scheduler in a process of its own under calls of the size that `gradvet ops` makes, and the store. The
cluster is simulated with these times.
"""

from __future__ import annotations

import argparse
import os
import pickle
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

from benchmarks import scale_tasks
from benchmarks.cluster_simulation import Cluster, Costs, Result, simulate
from gradvet.core.processes import ProcessExecutor
from gradvet.core.results import Verdict
from gradvet.suite import CaseResult
from gradvet.suite.store import Store

AT_A_TIME = 50
"""Calls that are submitted before the first result is waited for."""

PAGE = Path(__file__).parent.parent / "docs" / "scale.md"
CASES, WORKERS = 1_000_000, 1_000
BATCH = 1
"""Cases in one call of a run, whose result is stored as it arrives."""

BATCHES = (BATCH, 4, 16, 64)
DEATHS_PER_HOUR = (0.0, 1 / 24, 1.0, 12.0, 60.0, 360.0)
TEMPLATE = (Path(__file__).parent / "scale.md.template").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Scheduling:
    """Seconds of CPU for one call with `BATCH` cases, and bytes of its result."""

    scheduler: float
    client: float
    bytes: float


@dataclass(frozen=True)
class Storing:
    """Seconds of CPU and bytes of one result in a store."""

    seconds: float
    bytes: float


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("stores", nargs="+", help="of runs of gradvet ops")
    parser.add_argument("--calls", type=int, default=600, help="calls of the scheduler that are measured")
    wanted = parser.parse_args(arguments)
    runs = {store: list(Store.open(store).results()) for store in wanted.stores}
    results = [one for some in runs.values() for one in some if one.verdict is not Verdict.ERROR]
    start = started()
    scheduling = scheduled(results[:BATCH], wanted.calls)
    storing = stored(results[:2000])
    receiving = storing.seconds + scheduling.client / BATCH  # one process receives and stores
    costs = Costs([one.seconds for one in results], start, scheduling.scheduler, receiving)
    PAGE.write_text(page(runs, costs, scheduling, storing), encoding="utf-8")
    print(f"wrote {PAGE}")


def started() -> float:
    """Seconds of CPU until a new process has the operator database: the median of three."""

    def once() -> float:
        with ProcessExecutor(1) as processes:
            return processes.submit(scale_tasks.ready).result()

    return statistics.median(once() for _ in range(3))


def scheduled(results: list[CaseResult], calls: int) -> Scheduling:
    """What a scheduler spends on calls whose results are as large as real ones."""
    with cluster() as (client, scheduler):
        executor = client.get_executor(pure=False)
        list(executor.map(scale_tasks.returned, [results] * 20))
        before, mine = _cpu(scheduler), time.process_time()
        for start in range(0, calls, AT_A_TIME):
            for future in [
                executor.submit(scale_tasks.returned, results) for _ in range(min(AT_A_TIME, calls - start))
            ]:
                future.result()
        spent = _cpu(scheduler) - before, time.process_time() - mine
        return Scheduling(spent[0] / calls, spent[1] / calls, len(pickle.dumps(results)))


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


@contextmanager
def cluster() -> Iterator[tuple[Any, psutil.Process]]:
    """A scheduler and two workers, each a process of its own."""
    from distributed import Client  # here, as tests import this module

    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "scheduler.json")
        scheduler = _dask(folder, "scheduler", "--scheduler-file", file, "--port", "0")
        worker = _dask(folder, "worker", "--scheduler-file", file, "--nworkers", "2", "--nthreads", "1")
        try:
            while not Path(file).exists():
                time.sleep(0.05)
            with Client(scheduler_file=file) as client:
                client.wait_for_workers(2)
                yield client, psutil.Process(scheduler.pid)
        finally:
            for process in (worker, scheduler):
                process.terminate()
                process.wait()


def _dask(folder: str, kind: str, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", f"distributed.cli.dask_{kind}", *options, "--host", "127.0.0.1", "--no-dashboard"]
    # Workers look for this package where they are started, which is not here.
    path = os.pathsep.join(filter(None, (str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH"))))
    quiet = subprocess.DEVNULL
    return subprocess.Popen(command, cwd=folder, stdout=quiet, stderr=quiet, env={**os.environ, "PYTHONPATH": path})


def stored(results: list[CaseResult]) -> Storing:
    """What it costs to store results, each in a transaction of its own, as a run does."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.db"
        store = Store.create(path, {}, [one.name for one in results])
        started = time.process_time()
        for result in results:
            store.add(result)
        seconds = (time.process_time() - started) / len(results)
        store.close()
        return Storing(seconds, path.stat().st_size / len(results))


def page(runs: dict[str, list[CaseResult]], costs: Costs, scheduling: Scheduling, storing: Storing) -> str:
    """The page of the documentation."""
    mean = statistics.fmean(costs.cases)
    sizes = [simulate(costs, Cluster(CASES, WORKERS, batch)) for batch in BATCHES]
    failures = [simulate(costs, Cluster(CASES, WORKERS, BATCH, rate)) for rate in DEATHS_PER_HOUR]
    fine = sizes[BATCHES.index(BATCH)]
    return TEMPLATE.format(
        machine=f"{processor()}, one core, Python {platform.python_version()}, torch {torch.__version__}",
        runs="\n".join(map(run_row, runs, runs.values())),
        start=f"{costs.start:.1f}",
        schedule=f"{1e3 * scheduling.scheduler:.1f}",
        client=f"{1e3 * scheduling.client:.1f}",
        carried=f"{scheduling.bytes / 1024:.0f}",
        store=f"{1e3 * storing.seconds:.2f}",
        size=f"{storing.bytes / 1024:.1f}",
        total=f"{storing.bytes * CASES / 2**30:.1f}",
        mean=f"{1e3 * mean:.0f}",
        throughput=f"{1 / mean:.1f}",
        cores=f"{mean * CASES / 3600:.0f}",
        alone=f"{mean * CASES / 86400:.1f}",
        seconds=duration(fine.seconds),
        batches="\n".join(map(batch_row, BATCHES, sizes)),
        failures="\n".join(map(failure_row, DEATHS_PER_HOUR, failures)),
        most=f"{1 / costs.store:.0f}",
        rate=f"{CASES / fine.seconds:.0f}",
    )


def run_row(name: str, results: Sequence[CaseResult]) -> str:
    seconds = sorted(one.seconds for one in results)
    mean = statistics.fmean(seconds)
    shown = [f"{1e3 * value:.0f} ms" for value in (statistics.median(seconds), mean, seconds[int(0.99 * len(seconds))])]
    return f"| {Path(name).stem} | {len(seconds)} | {' | '.join(shown)} | {1 / mean:.1f} |"


def batch_row(batch: int, result: Result) -> str:
    share = [part / result.seconds for part in (result.worked / WORKERS, result.scheduling, result.storing)]
    return f"| {batch} | {duration(result.seconds)} | {' | '.join(f'{100 * one:.0f} %' for one in share)} |"


def failure_row(rate: float, result: Result) -> str:
    wasted = result.wasted / (result.worked + result.wasted)
    often = "never" if not rate else f"every {duration(3600 / rate)}"
    return f"| {often} | {duration(result.seconds)} | {result.deaths} | {100 * wasted:.1f} % | {result.given_up} |"


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.0f} h"


def processor() -> str:
    """The name of the processor where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())


if __name__ == "__main__":
    main()
