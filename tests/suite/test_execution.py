"""Cases are run one after the other or side by side, with the same results."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradvet.suite.execution import Outcome, Plan, outcomes
from gradvet.suite.targets import Making

FILE = """
import torch, gradvet

def point():
    return torch.randn(3, dtype=torch.float64)

@gradvet.case(inputs=point)
def right(x):
    return x.sin()

@gradvet.case(inputs=point)
def broken(x):
    raise RuntimeError("no such kernel")

@gradvet.case(inputs=point)
def also_right(x):
    return x.cos()
"""


@pytest.fixture
def ops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ops.py").write_text(FILE)
    return "ops.py"


def run(target: str, jobs: int) -> list[Outcome]:
    plan = Plan([target], Making(), seed=5, options={"modes": ("reverse",)}, jobs=jobs)
    return list(outcomes(plan, plan.cases()))


@pytest.mark.parametrize("jobs", [1, 2])
def test_case_that_raises_does_not_stop_the_others(ops: str, jobs: int) -> None:
    found = run(ops, jobs)
    assert [outcome.name for outcome in found] == ["ops.py::right", "ops.py::broken", "ops.py::also_right"]
    assert [outcome.report.verdict.value if outcome.report is not None else None for outcome in found] == [
        "pass",
        None,
        "pass",
    ]
    assert "no such kernel" in str(found[1].error)
    assert [outcome.report.seed for outcome in found if outcome.report is not None] == [5, 5]
