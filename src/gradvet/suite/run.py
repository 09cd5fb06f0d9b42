"""A run: a source of cases with one seed and one set of options. Runs single cases and opens the store of a run."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from gradvet.core.provenance import environment
from gradvet.errors import InvalidProblemError
from gradvet.frontends.torch.process_state import PreservedProcess
from gradvet.reports.wording import one_line
from gradvet.suite.case import Case, CaseResult, Status
from gradvet.suite.store import Store, StoreError, holds_run

IDENTITY_VERSIONS = ("python", "torch", "gradvet")
"""Entries of the environment that must agree for a run to be resumed."""


class CaseSource(Protocol):
    """Plain data from which any process creates the same cases."""

    def open(self) -> Mapping[str, Case]:
        """The cases by name, in order. May execute files of the user."""
        ...

    def describe(self) -> dict[str, Any]:
        """The identity of the source as JSON values."""
        ...


@dataclass(frozen=True, slots=True)
class Run:
    """Settings common to all cases of a run. Copies in other processes compare equal."""

    source: CaseSource = field(compare=False)
    seed: int
    options: Mapping[str, Any] = field(default_factory=dict, compare=False)
    folder: str = field(default_factory=os.getcwd)
    """Working directory; relative paths of targets start here, also in other processes."""
    key: str = field(default_factory=lambda: uuid.uuid4().hex)

    def identity(self) -> dict[str, Any]:
        """The JSON values that must agree for results to belong to the same run."""
        known = environment()
        versions = {name: known[name] for name in IDENTITY_VERSIONS if name in known}
        values = {**self.source.describe(), "options": dict(self.options), "seed": self.seed, "versions": versions}
        return dict(json.loads(json.dumps(values, default=str)))

    def replay(self, cases: Mapping[str, Case], name: str) -> str:
        """The command that runs one case alone, or nothing if the case cannot be made."""
        try:
            return f"{cases[name].replay} --seed {self.seed}"
        except Exception:
            return ""


def run_case(run: Run, cases: Mapping[str, Case], name: str) -> CaseResult:
    """Check one case. An exception, also from looking up the case, becomes its result."""
    started = time.perf_counter()
    try:
        state = PreservedProcess()
        with state, state:  # twice: the first restoration may be interrupted
            report = cases[name].run(run.seed, **run.options)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also SystemExit and pytest's Skipped
        result = CaseResult.of_error(name, Status.RAISED, _message(error), seconds=time.perf_counter() - started)
        return replace(result, error=error)
    return CaseResult(name, report, seconds=time.perf_counter() - started)


def open_store(run: Run, cases: Mapping[str, Case], path: str | Path | None = None, resume: bool = False) -> Store:
    """A new store for the run, or with `resume` the store in the file if it belongs to the same run."""
    names = list(cases)
    if path is None or not (resume and holds_run(path)):
        return Store.create(path, run.identity(), names)
    store = Store.open(path, writable=True)
    store.require_identity(run.identity())
    if store.names() != names:
        raise StoreError(f"{path} holds a run of other cases: cases were added or removed since; name another file")
    return store


def stored_seed(path: str | Path) -> int | None:
    """The seed of the run in a file, or None if the file holds no run."""
    if not holds_run(path):
        return None
    with closing(Store.open(path)) as store:
        return int(store.identity["seed"])


def in_case_order(store: Store, new_results: Iterator[CaseResult]) -> Iterator[CaseResult]:
    """All results in the order of the cases: stored ones, and new ones as soon as all before them are known."""
    missing, ready = set(store.missing()), dict[str, CaseResult]()
    for name in store.names():
        while name in missing and name not in ready:
            result = next(new_results)
            ready[result.name] = result
        yield ready.pop(name) if name in ready else store.result(name)


def _message(error: BaseException) -> str:
    text = one_line(error)
    if isinstance(error, SystemExit):
        return f"the case called sys.exit ({error.code})"
    if isinstance(error, InvalidProblemError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
