"""Files of cases, and runs of them, also without the worker processes that they ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

from gradvet.core.results import Report
from gradvet.options import Budget
from gradvet.suite import CaseResult
from gradvet.suite.run import Run, open_store, run_missing
from gradvet.suite.sources import Targets

HEAD = """
import ctypes, os, sys, time
import torch, gradvet

def point():
    return torch.randn(3, dtype=torch.float64)

def case(func):
    return gradvet.case(inputs=point, modes=("reverse",), checks=("reverse",))(func)
"""


def write_cases(folder: Path, **bodies: str) -> str:
    """Write a file with one case for each body, a function of `x`."""
    cases = [f"@case\ndef {name}(x):\n    {body}\n" for name, body in bodies.items()]
    (folder / "ops.py").write_text("\n".join([HEAD, *cases]))
    return "ops.py"


def run_of(target: str, options: Mapping[str, Any] | None = None, **settings: Any) -> Run:
    return Run(Targets((target,)), seed=5, options=options or {}, **settings)


def run_all(target: str, **settings: Any) -> dict[str, CaseResult]:
    """Results by the name of the function."""
    run = run_of(target, **settings)
    cases = run.source.open()
    results = list(run_missing(run, cases, open_store(run, cases)))
    assert len({one.name for one in results}) == len(results)
    return {one.name.partition("::")[2]: one for one in results}


def report_of(result: CaseResult) -> Report:
    return result.report


class InProcessExecutor(Executor):
    """Takes the arguments of `ProcessExecutor` and starts no process: a worker would import torch again.

    For tests of what a run prints and stores. A case that ends its process ends the tests.
    """

    def __init__(self, jobs: int, limits: Budget, prepare: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._state = prepare(*arguments)

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(self._state, *args, **kwargs))
        return future
