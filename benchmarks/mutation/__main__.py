"""Draws changes, tries them, and says which survive. What was tried is kept: a second run goes on from there."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import TestOutcome, WorkerOutcome, WorkItem, WorkResult

import benchmarks.mutation
from benchmarks.mutation import score
from benchmarks.mutation.population import list_changes, sample, telling
from benchmarks.mutation.process import FORK, in_fork, prepare
from benchmarks.mutation.reach import Reach, measured
from benchmarks.mutation.trial import Laboratory

ROOT = Path(__file__).parents[2]
COPIED = ("src", "tests", "pyproject.toml")
TESTS = ("api", "checks", "compat", "conformance", "core", "frontends", "gallery", "laws", "reports", "sparse")
"""Without those that start processes of their own, which would run the code as it stands."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutation", description=benchmarks.mutation.__doc__)
    parser.add_argument("--mutants", default=400, type=int, metavar="N")
    parser.add_argument("--seed", default=0, type=int)
    parser.add_argument("--jobs", default=1, type=int, metavar="N", help="processes")
    parser.add_argument("--limit", default=30.0, type=float, metavar="SECONDS", help="of tests for one change")
    parser.add_argument("--time-budget", default=float("inf"), type=float, metavar="SECONDS")
    parser.add_argument("--folder", default=ROOT / "build" / "mutation", type=Path, help="where results are kept")
    wanted = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and not without ending the other processes
    prepare()
    folder = wanted.folder.resolve()
    laboratory = Laboratory(folder / "tree", Reach(folder), wanted.limit)
    if not laboratory.tree.exists():
        copy(laboratory.tree)
    if not laboratory.reach.is_known:
        measure(laboratory, folder, wanted.jobs)
    laboratory.control()
    with use_db(str(folder / "changes.sqlite"), WorkDB.Mode.create) as work:
        if not work.num_work_items:
            list_changes(work, laboratory.tree / "src" / "gradvet")
        changes = telling(work.work_items)
        chosen = sample(changes, wanted.mutants, wanted.seed)
        deadline = time.monotonic() + wanted.time_budget
        for item, result in tried(laboratory, remaining(work, chosen), wanted.jobs, deadline):
            work.set_result(item.job_id, result)
            print(told(item, result), flush=True)
        results = dict(work.results)
    tallies = [tally(path, items, chosen, results) for path, items in changes.items()]
    print(score.table(tallies), score.sentence(tallies), sep="\n\n")
    return 0


def copy(tree: Path) -> None:
    """The code and its tests as they are now: they may be edited while this runs."""
    tree.mkdir(parents=True)
    for name in COPIED:
        source = ROOT / name
        shutil.copytree(source, tree / name) if source.is_dir() else shutil.copy(source, tree / name)


def measure(laboratory: Laboratory, folder: Path, jobs: int) -> None:
    paths = [folder / f"reach-{name}.coverage" for name in TESTS]
    with ProcessPoolExecutor(jobs, mp_context=FORK) as pool:
        futures = [
            pool.submit(in_fork, None, measured, laboratory.tree, f"tests/{name}", path)
            for name, path in zip(TESTS, paths, strict=True)
        ]
        laboratory.reach.join((path, future.result() or {}) for path, future in zip(paths, futures, strict=True))


def remaining(work: WorkDB, chosen: list[WorkItem]) -> list[WorkItem]:
    done = {job for job, _ in work.results}
    return [item for item in chosen if item.job_id not in done]


def tried(
    laboratory: Laboratory, items: list[WorkItem], jobs: int, deadline: float
) -> Iterator[tuple[WorkItem, WorkResult]]:
    with ProcessPoolExecutor(jobs, mp_context=FORK) as pool:
        futures = {pool.submit(laboratory.attempt, item.mutations[0]): item for item in items}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
                if time.monotonic() > deadline:
                    return
        finally:
            pool.shutdown(cancel_futures=True)


def told(item: WorkItem, result: WorkResult) -> str:
    change = item.mutations[0]
    place = f"{change.module_path.parent.name}/{change.module_path.name}:{change.start_pos[0]}"
    if result.worker_outcome is WorkerOutcome.NO_TEST:
        return f"no Python  {place}"
    if result.is_killed:
        return f"noticed    {place} by {result.output}"
    return f"SURVIVED   {place} {result.output}\n{result.diff}"


def tally(path: Path, items: list[WorkItem], chosen: list[WorkItem], results: dict[str, WorkResult]) -> score.Tally:
    mine = {item.job_id for item in items} & {item.job_id for item in chosen}
    outcomes = [results[job].test_outcome for job in mine if job in results]
    place = f"{path.parent.name}/{path.name}"
    judged = [outcome for outcome in outcomes if outcome is not None]
    return score.Tally(place, len(items), len(judged), judged.count(TestOutcome.KILLED))


if __name__ == "__main__":
    sys.exit(main())
