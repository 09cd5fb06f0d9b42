"""Runs that several tests share: a file of cases in a folder, and what became of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradvet.core.results import Report
from gradvet.suite.engines import Place
from gradvet.suite.job import Job, Outcome
from gradvet.suite.runs import begin, carry_out
from gradvet.suite.targets import Targets

HEAD = """
import ctypes, os, sys, time
import torch, gradvet

def point():
    return torch.randn(3, dtype=torch.float64)

def case(func):
    return gradvet.case(inputs=point, modes=("reverse",), checks=("reverse",))(func)
"""


def write_cases(folder: Path, **bodies: str) -> str:
    """A file with one case for each body; a case called `a` calls its argument x."""
    cases = [f"@case\ndef {name}(x):\n    {body}\n" for name, body in bodies.items()]
    (folder / "ops.py").write_text("\n".join([HEAD, *cases]))
    return "ops.py"


def job_of(target: str, options: Mapping[str, Any] | None = None) -> Job:
    return Job(Targets((target,)), seed=5, options=options or {})


def all_outcomes(target: str, place: Place) -> dict[str, Outcome]:
    """By the name of the function."""
    job = job_of(target)
    found = list(carry_out(job, place, begin(job)))
    assert len({one.name for one in found}) == len(found)
    return {one.name.partition("::")[2]: one for one in found}


def report_of(outcome: Outcome) -> Report:
    assert outcome.report is not None
    return outcome.report
