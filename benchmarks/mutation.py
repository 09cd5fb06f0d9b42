"""Can gradvet's own tests fail? `python -m benchmarks.mutation` changes the code of core/ and checks/ and runs them.

cosmic-ray lists every small change of that code that it knows (another operator, another number, a negated condition, a
dropped decorator). A sample of them, the same for the same seed, is made one at a time in a copy of the repository, and
a fast selection of the tests is run: a change that no test notices survives, and is printed to be judged. What was
found about the survivors of the last run stands in docs/mutation.md.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import WorkerOutcome, WorkItem, WorkResult

from benchmarks.report import save, wide_console

ROOT = Path(__file__).parent.parent
COPIED = ("src", "tests", "benchmarks", "pyproject.toml")
MUTATED = ("src/gradvet/core", "src/gradvet/checks")
SELECTION = (
    "tests/checks",
    "tests/compat/test_verdicts.py",
    "tests/core",
    "--deselect=tests/core/test_certificate.py",
    "tests/api/test_check.py",
)
"""Fast tests; the statistical ones about the certificate take minutes."""

WITHOUT_EFFECT = ("core/ReplaceBinaryOperator_BitOr",)
"""Operators that would mostly change annotations, such as `float | None`, which are never evaluated."""


@dataclass(frozen=True)
class Mutant:
    """One change, and whether a test noticed it."""

    place: str
    operator: str
    outcome: str
    diff: str


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutation", description=__doc__)
    parser.add_argument("--mutants", default=60, type=int, metavar="N")
    parser.add_argument("--seed", default=0, type=int)
    parser.add_argument("--timeout", default=300.0, type=float, metavar="SECONDS", help="for the tests of one mutant")
    parser.add_argument("--time-budget", default=float("inf"), type=float, metavar="SECONDS")
    wanted = parser.parse_args(arguments)
    console = wide_console()
    with tempfile.TemporaryDirectory() as folder:
        total, mutants = run(Path(folder), wanted)
    count = Counter(mutant.outcome for mutant in mutants)
    judged = count["killed"] + count["survived"]
    console.print(f"{total} mutants are known, {judged} of a random sample were judged (seed {wanted.seed})")
    console.print(f"noticed by the tests: {count['killed']} ({100.0 * count['killed'] / max(judged, 1):.0f} %)")
    for mutant in mutants:
        if mutant.outcome == "survived":
            console.print(f"\nsurvived: {mutant.place} ({mutant.operator})\n{mutant.diff}", highlight=False)
    path = save("mutation", vars(wanted), [vars(mutant) for mutant in mutants], {"known": total})
    console.print(f"raw numbers: {path}", soft_wrap=True)
    return 0


def run(folder: Path, wanted: argparse.Namespace) -> tuple[int, list[Mutant]]:
    """The number of mutants that there are, and the fate of those in the sample."""
    for name in COPIED:
        source = ROOT / name
        shutil.copytree(source, folder / name) if source.is_dir() else shutil.copy(source, folder / name)
    (folder / "cosmic-ray.toml").write_text(configuration(wanted.timeout), encoding="utf-8")
    call(folder, "init", "cosmic-ray.toml", "session.sqlite")
    database = str(folder / "session.sqlite")
    with use_db(database, WorkDB.Mode.open) as work:
        items = sorted((item for item in work.work_items if not is_without_effect(item)), key=place_of)
        chosen = {item.job_id for item in random.Random(wanted.seed).sample(items, min(wanted.mutants, len(items)))}
        for item in list(work.work_items):
            if item.job_id not in chosen:
                work.set_result(item.job_id, WorkResult(worker_outcome=WorkerOutcome.SKIPPED))
    execute(folder, wanted.time_budget)
    with use_db(database, WorkDB.Mode.open) as work:
        return len(items), list(mutants_in(work, chosen))


def configuration(timeout: float) -> str:
    tests = " ".join(SELECTION)
    command = f"{sys.executable} -m pytest -q -x -n 0 -p no:cacheprovider {tests}"
    paths = ", ".join(f'"{path}"' for path in MUTATED)
    return f"""[cosmic-ray]
module-path = [{paths}]
timeout = {timeout}
excluded-modules = []
test-command = "{command}"

[cosmic-ray.distributor]
name = "local"
"""


def call(folder: Path, *words: str) -> None:
    subprocess.run([sys.executable, "-m", "cosmic_ray.cli", *words], cwd=folder, env=environment(folder), check=True)


def execute(folder: Path, budget: float) -> None:
    """Run the mutants; what is not done within the budget is left out of the sample, whose order is random."""
    words = [sys.executable, "-m", "cosmic_ray.cli", "exec", "cosmic-ray.toml", "session.sqlite"]
    process, deadline = subprocess.Popen(words, cwd=folder, env=environment(folder)), time.monotonic() + budget
    try:
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(1.0)
    finally:
        process.terminate()
        process.wait()


def environment(folder: Path) -> dict[str, str]:
    """The copy comes before any other gradvet."""
    return {**os.environ, "PYTHONPATH": str(folder / "src"), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def place_of(item: WorkItem) -> tuple[str, str, int]:
    change = item.mutations[0]
    return str(change.module_path), change.operator_name, change.occurrence


def is_without_effect(item: WorkItem) -> bool:
    return item.mutations[0].operator_name.startswith(WITHOUT_EFFECT)


def mutants_in(work: WorkDB, chosen: set[str]) -> Iterator[Mutant]:
    changes = {item.job_id: item.mutations[0] for item in work.work_items}
    for job, result in work.results:
        if job in chosen and result.worker_outcome is not WorkerOutcome.SKIPPED:
            change = changes[job]
            place = f"{change.module_path}:{change.start_pos[0]}"
            diff = "\n".join(line for line in (result.diff or "").splitlines() if line[:1] in "+-")
            yield Mutant(place, change.operator_name, "killed" if result.is_killed else "survived", diff)


if __name__ == "__main__":
    sys.exit(main())
