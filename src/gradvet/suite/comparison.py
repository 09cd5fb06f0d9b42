"""Differences between two runs of the same cases, for example with two versions of torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from gradvet.core.results import Verdict
from gradvet.reports.ledger_table import why_not_pass
from gradvet.suite.case import CaseResult

MIN_SLOWDOWN = 1.5
"""Ratio of the times from which a case counts as slower; smaller ratios are usual variation."""

MIN_SLOWDOWN_SECONDS = 0.1
"""Difference of the times from which a case counts as slower."""

MIN_RESOLUTION_LOSS = 10.0
"""Ratio of the resolutions from which resolution counts as lost."""


class Change(Enum):
    """A kind of change, worst first; the value is the printed name."""

    NEWLY_FAILING = "newly failing"
    NEWLY_ERROR = "newly an error"
    NEWLY_INCONCLUSIVE = "newly inconclusive"
    LOST_RESOLUTION = "lost resolution"
    SLOWER = "slower"
    GONE = "gone"
    NEWLY_PASSING = "newly passing"
    ADDED = "new"


NEW_VERDICTS = {Verdict.FAIL: Change.NEWLY_FAILING, Verdict.ERROR: Change.NEWLY_ERROR}
"""Changes of a case that has this verdict now and had another one, or none, before."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A change of one case."""

    change: Change
    name: str
    details: str = ""


def differences(old: Iterable[CaseResult], new: Iterable[CaseResult]) -> list[Difference]:
    """All changes, worst first, and within each kind in the order of the new run."""
    before, after = {one.name: one for one in old}, {one.name: one for one in new}
    found = [Difference(Change.GONE, name) for name in before if name not in after]
    for name, result in after.items():
        found += _changes(before[name], result) if name in before else [_added(result)]
    order = list(Change)
    return sorted(found, key=lambda difference: order.index(difference.change))


def _added(result: CaseResult) -> Difference:
    """The change for a case that the old run did not have. If it fails, it counts as newly failing."""
    change = NEW_VERDICTS.get(result.verdict, Change.ADDED)
    return Difference(change, result.name, _headline(result))


def _changes(old: CaseResult, new: CaseResult) -> list[Difference]:
    name = new.name
    was, is_ = old.verdict, new.verdict
    if was is is_:
        return list(_changes_with_same_verdict(old, new))
    if is_ is Verdict.PASS:
        return [Difference(Change.NEWLY_PASSING, name, f"was {was.value}")]
    return [Difference(NEW_VERDICTS.get(is_, Change.NEWLY_INCONCLUSIVE), name, _headline(new))]


def _changes_with_same_verdict(old: CaseResult, new: CaseResult) -> Iterator[Difference]:
    was, is_ = old.report.resolution, new.report.resolution
    if was is not None and (is_ is None or is_ > MIN_RESOLUTION_LOSS * was):
        resolutions = f"{was:.1g} to {'nothing' if is_ is None else format(is_, '.1g')}"
        yield Difference(Change.LOST_RESOLUTION, new.name, resolutions)
    if new.seconds > MIN_SLOWDOWN * old.seconds and new.seconds - old.seconds > MIN_SLOWDOWN_SECONDS:
        yield Difference(Change.SLOWER, new.name, f"{old.seconds:.3g} s to {new.seconds:.3g} s")


def _headline(result: CaseResult) -> str:
    """The first finding with the verdict of the report; without one, what its ledger leaves open."""
    findings = [f"{one.check}: {one.headline}" for one in result.report.findings if one.verdict is result.verdict]
    return next(iter((*findings, *why_not_pass(result.report))), "")
