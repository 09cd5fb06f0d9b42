"""The harness that asks whether our tests can fail: it draws changes that tell, and notices what they do."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import WorkItem

from benchmarks.mutation.population import list_changes, mutated, sample, telling
from benchmarks.mutation.process import Replaced, in_fork
from benchmarks.mutation.reach import concerned_lines
from benchmarks.mutation.score import Tally, estimate, table

SOURCE = """from dataclasses import dataclass

@dataclass(frozen=True)
class Step:
    width: float | None = 2.0

def longer(step: int | None, *, times: float = 3.0) -> "float | None":
    if step is None:
        return None
    return times * step
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mutation") / "src" / "sample"
    for name in ("core", "checks"):
        (folder / name).mkdir(parents=True)
    (folder / "core" / "step.py").write_text(SOURCE)
    return folder


@pytest.fixture(scope="module")
def changes(package: Path) -> dict[Path, list[WorkItem]]:
    with use_db(str(package / "changes.sqlite"), WorkDB.Mode.create) as work:
        list_changes(work, package)
        return telling(work.work_items)


def codes(changes: dict[Path, list[WorkItem]]) -> set[str]:
    """The changed lines."""
    found = (mutated(SOURCE, item.mutations[0]).splitlines() for items in changes.values() for item in items)
    return {line.strip() for lines in found for line in set(lines) - set(SOURCE.splitlines())}


def test_changes_of_what_is_computed_are_drawn(changes: dict[Path, list[WorkItem]]) -> None:
    assert {"return times + step", "return times / step", "if step is not None:"} <= codes(changes)


def test_numbers_of_fields_and_defaults_are_drawn(changes: dict[Path, list[WorkItem]]) -> None:
    found = {line.replace("  ", " ") for line in codes(changes)}
    assert "width: float | None = 3.0" in found
    assert 'def longer(step: int | None, *, times: float = 4.0) -> "float | None":' in found


def test_annotations_and_frozen_dataclasses_are_left_alone(changes: dict[Path, list[WorkItem]]) -> None:
    assert not any("float +" in line or "int &" in line or "frozen=False" in line for line in codes(changes))


def test_changes_that_raise_wherever_they_are_executed_are_left_out(changes: dict[Path, list[WorkItem]]) -> None:
    assert not {"return times << step", "if step < None:"} & codes(changes)


def test_the_same_seed_draws_the_same_sample_and_another_seed_another(changes: dict[Path, list[WorkItem]]) -> None:
    drawn = [[item.job_id for item in sample(changes, 4, seed)] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(drawn[0]) == 4


def test_a_module_is_imported_with_its_change(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(package.parent))
    path = package / "core" / "step.py"
    monkeypatch.setattr(sys, "meta_path", [Replaced(package.parents[1], path, "width = 7"), *sys.meta_path])
    import sample.core.step as changed  # type: ignore[import-not-found]

    assert changed.width == 7


def test_a_fork_that_dies_or_does_not_end_gives_nothing() -> None:
    assert in_fork(None, sum, (1, 2)) == 3
    assert in_fork(None, os._exit, 1) is None
    assert in_fork(0.1, time.sleep, 60.0) is None


def test_a_change_concerns_its_statement_and_at_the_top_of_a_file_all_of_it(package: Path) -> None:
    path = package / "core" / "step.py"
    assert concerned_lines(path, 8) == range(8, 9)
    assert concerned_lines(path, 10) == range(10, 11)
    assert concerned_lines(path, 5) is None
    assert concerned_lines(path, 7) is None


def test_each_file_weighs_what_it_has() -> None:
    few, many = Tally("core/few.py", 10, 10, 0), Tally("core/many.py", 90, 10, 10)
    share, low, high = estimate([few, many])
    assert share == pytest.approx(0.9)
    assert low < share < high
    assert "| **core/** | 100 | 20 | 10 | 50 % |" in table([few, many])
