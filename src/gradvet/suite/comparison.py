"""What changed between two runs of the same cases: a new version of torch, another kernel, another machine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from gradvet.core.results import Verdict
from gradvet.suite.job import Outcome

SLOWER = 1.5
"""A case is slower if it takes this many times as long, and more than `NOTICED` seconds longer."""

NOTICED = 0.1

BLUNTER = 10.0
"""Resolution is lost if the smallest error that could have been seen is this many times as large."""


class Change(Enum):
    """A kind of change, the worst first; the value is what it is called."""

    NEWLY_FAILING = "newly failing"
    NEWLY_UNFINISHED = "newly without a verdict"
    NEWLY_INCONCLUSIVE = "newly inconclusive"
    LOST_RESOLUTION = "lost resolution"
    SLOWER = "slower"
    GONE = "gone"
    NEWLY_PASSING = "newly passing"
    ADDED = "new"


@dataclass(frozen=True, slots=True)
class Difference:
    """One case that changed."""

    change: Change
    name: str
    words: str = ""


def differences(old: Iterable[Outcome], new: Iterable[Outcome]) -> list[Difference]:
    """What changed, the worst first and each kind in the order of the new run."""
    before, after = {one.name: one for one in old}, {one.name: one for one in new}
    found = [Difference(Change.GONE, name) for name in before if name not in after]
    for name, outcome in after.items():
        found += _of_one(before[name], outcome) if name in before else [_added(outcome)]
    order = list(Change)
    return sorted(found, key=lambda difference: order.index(difference.change))


def _added(outcome: Outcome) -> Difference:
    """A case that the old run did not have. One that fails is a failure that nobody has seen before."""
    if _verdict(outcome) is Verdict.FAIL:
        return Difference(Change.NEWLY_FAILING, outcome.name, _headline(outcome))
    return Difference(Change.ADDED, outcome.name, outcome.words)


def _of_one(old: Outcome, new: Outcome) -> list[Difference]:
    name = new.name
    was, is_ = _verdict(old), _verdict(new)
    if was is is_:
        return [Difference(change, name, words) for change, words in _subtler(old, new)]
    if is_ is None:
        return [Difference(Change.NEWLY_UNFINISHED, name, f"{new.ending.value}: {new.words}")]
    if is_ is Verdict.PASS:
        return [Difference(Change.NEWLY_PASSING, name, f"was {was.value if was else old.ending.value}")]
    kind = Change.NEWLY_FAILING if is_ is Verdict.FAIL else Change.NEWLY_INCONCLUSIVE
    return [Difference(kind, name, _headline(new))]


def _subtler(old: Outcome, new: Outcome) -> Iterable[tuple[Change, str]]:
    """What changes while the verdict stays."""
    if old.report is None or new.report is None:
        return
    was, is_ = old.report.resolution, new.report.resolution
    if was is not None and (is_ is None or is_ > BLUNTER * was):
        yield Change.LOST_RESOLUTION, f"{was:.1g} to {'nothing' if is_ is None else format(is_, '.1g')}"
    if new.seconds > SLOWER * old.seconds and new.seconds - old.seconds > NOTICED:
        yield Change.SLOWER, f"{old.seconds:.3g} s to {new.seconds:.3g} s"


def _verdict(outcome: Outcome) -> Verdict | None:
    return None if outcome.report is None else outcome.report.verdict


def _headline(outcome: Outcome) -> str:
    verdict = _verdict(outcome)
    findings = () if outcome.report is None else outcome.report.findings
    return next((f"{one.check}: {one.headline}" for one in findings if one.verdict is verdict), "")
