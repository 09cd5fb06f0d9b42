"""A run: a job whose outcomes go into a store, begun anew or gone on with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gradvet.core.provenance import environment
from gradvet.suite.engines import Place, engine_at
from gradvet.suite.execution import outcomes
from gradvet.suite.job import Job, Outcome
from gradvet.suite.store import Store, StoreError, holds_run


def begin(job: Job, path: str | Path | None = None, resume: bool = False) -> Store:
    """The store of a run: a new one, or with `resume` the one that the file holds of this same run."""
    names = list(dict.fromkeys(job.source.open()))
    if path is None or not (resume and holds_run(path)):
        return Store.create(path, identity(job), names)
    store = Store.open(path)
    store.require(identity(job))
    if store.names() != names:
        raise StoreError(f"{path} holds a run of other cases: something was added or removed since; name another file")
    return store


def identity(job: Job) -> dict[str, Any]:
    """What must be the same for outcomes to belong to one run, ready for JSON."""
    known = environment()
    versions = {name: known[name] for name in ("python", "torch", "gradvet") if name in known}
    found = {**job.source.describe(), "options": dict(job.options), "seed": job.seed, "versions": versions}
    return dict(json.loads(json.dumps(found, default=str)))


def seed_in(path: str | Path) -> int | None:
    """The seed of the run in a file, if it holds one."""
    return int(Store.open(path).identity["seed"]) if holds_run(path) else None


def carry_out(job: Job, place: Place, store: Store) -> Iterator[Outcome]:
    """Run the cases that have no outcome yet; each outcome is stored before it is given."""
    missing = store.missing()
    if not missing:
        return
    with engine_at(place, job) as engine:
        for outcome in outcomes(missing, engine):
            store.add(outcome)
            yield outcome


def in_order(store: Store, fresh: Iterator[Outcome]) -> Iterator[Outcome]:
    """All outcomes in the order of the cases: those stored before, and fresh ones as soon as it is their turn."""
    missing, ready = set(store.missing()), dict[str, Outcome]()
    for name in store.names():
        while name in missing and name not in ready:
            outcome = next(fresh)
            ready[outcome.name] = outcome
        yield ready.pop(name) if name in ready else store.outcome(name)
