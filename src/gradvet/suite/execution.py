"""Runs the cases of several targets, in this process or in several; one that cannot be run does not stop the others."""

from __future__ import annotations

import functools
import multiprocessing
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from gradvet.core.results import Report
from gradvet.suite.case import Case
from gradvet.suite.targets import Making, cases_of_all


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run and how; plain data, so that another process can be told."""

    targets: Sequence[str]
    making: Making
    seed: int
    options: Mapping[str, Any] = field(default_factory=dict)
    jobs: int = 1
    flags: str = ""
    """The options as they were typed, for the command that repeats a case."""

    def cases(self) -> list[Case]:
        """What the targets name, each case once."""
        cases = cases_of_all(self.targets, self.making)
        return [replace(case, replay=f"{case.replay} {self.flags}".rstrip()) for case in cases]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The report about a case, or what was raised instead."""

    name: str
    report: Report | None = None
    error: Exception | None = None


def outcomes(plan: Plan, cases: Sequence[Case]) -> Iterator[Outcome]:
    """What became of each case of a plan, in their order."""
    if plan.jobs <= 1 or len(cases) <= 1:
        for case in cases:
            yield _outcome(case, plan)
        return
    # New processes, not copies of this one: torch's threads do not survive a fork.
    workers = min(plan.jobs, len(cases))
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _Worker.start, (plan,)) as pool:
        futures = [pool.submit(_Worker.run, number) for number in range(len(cases))]
        for case, future in zip(cases, futures, strict=True):
            error = future.exception()
            yield future.result() if error is None else Outcome(case.name, error=RuntimeError(str(error)))


def _outcome(case: Case, plan: Plan) -> Outcome:
    try:
        return Outcome(case.name, case.run(plan.seed, **plan.options))
    except Exception as error:
        return Outcome(case.name, error=error)


class _Worker:
    """One process of several: it finds the cases itself, once, since functions do not travel."""

    plan: Plan

    @classmethod
    def start(cls, plan: Plan) -> None:
        cls.plan = plan

    @classmethod
    def run(cls, number: int) -> Outcome:
        return _outcome(cls._cases()[number], cls.plan)

    @classmethod
    @functools.cache
    def _cases(cls) -> list[Case]:
        return cls.plan.cases()
