"""What a run asks of each of its cases, and what becomes of one. Both travel: a case by its name, never its tensors."""

from __future__ import annotations

import functools
import operator
import os
import sys
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from gradvet.api import check
from gradvet.core.results import Report
from gradvet.errors import InvalidProblemError
from gradvet.frontends.torch.inputs import random_inputs
from gradvet.suite.case import Case


class SourceCode(Protocol):
    """Where cases come from: plain data, from which any process can make the same cases."""

    def open(self) -> Mapping[str, Case]:
        """The cases by name, in their order. Looking one up need not make the others."""
        ...

    def describe(self) -> dict[str, Any]:
        """What makes this source the same as another, ready for JSON."""
        ...


@dataclass(frozen=True, slots=True)
class Job:
    """What is the same for all cases of a run. Copies in other processes are equal to it."""

    source: SourceCode = field(compare=False)
    seed: int
    options: Mapping[str, Any] = field(default_factory=dict, compare=False)
    folder: str = field(default_factory=os.getcwd)
    """Where the names of files start; another process goes there."""
    key: str = field(default_factory=lambda: uuid.uuid4().hex)


class Ending(str, Enum):
    """How the work on a case ended."""

    REPORTED = "reported"
    RAISED = "raised"
    DIED = "died"
    TIME = "time limit"
    MEMORY = "memory limit"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The report about a case, or what happened instead."""

    name: str
    ending: Ending
    report: Report | None = None
    words: str = ""
    attempts: int = 1
    seconds: float = 0.0
    """From when the case was begun to when it ended, drawing its inputs included."""
    error: Exception | None = None
    """What was raised, where it was raised in this process."""


def run(job: Job, name: str) -> Outcome:
    """Check one case; whatever it raises is its outcome."""
    started = time.perf_counter()
    try:
        report = _opened(job)[name].run(job.seed, **job.options)
    except (Exception, SystemExit) as error:
        kept = error if isinstance(error, Exception) else RuntimeError(f"the case ended Python ({error})")
        return Outcome(name, Ending.RAISED, words=_sentence(kept), seconds=time.perf_counter() - started, error=kept)
    return Outcome(name, Ending.REPORTED, report, seconds=time.perf_counter() - started)


class Runner:
    """Runs cases of one job in a process of its own: opens the source once, and sends no exceptions home."""

    job: Job

    @classmethod
    def prepare(cls, job: Job) -> None:
        if os.path.isdir(job.folder):
            os.chdir(job.folder)
        sys.path.insert(0, job.folder)
        cls.job = job
        _opened(job)
        # The first check of a process loads much of torch; that is not its first case's fault.
        check(operator.neg, random_inputs([(2,)]), seed=0)

    @classmethod
    def run(cls, name: str) -> Outcome:
        outcome = run(cls.job, name)
        return Outcome(outcome.name, outcome.ending, outcome.report, outcome.words, seconds=outcome.seconds)


@functools.lru_cache(maxsize=4)
def _opened(job: Job) -> Mapping[str, Case]:
    return job.source.open()


def _sentence(error: Exception) -> str:
    text = " ".join(str(error).split())[:300]
    return text if isinstance(error, InvalidProblemError) else f"{type(error).__name__}: {text}"
