"""Slopes in a format so coarse that walks near the point show nothing: few steps, several lines, outputs in groups.

The roundoff of many outputs drowns what one entry adds to the slope of all of them together. So where all together
leave doubt, they are looked at in groups, as large as their roundoff allows: one walk shows the values of all groups,
and each group costs one backward pass. What was found is as sharp as the worst group.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gradvet.core.arithmetic import dot, namespace
from gradvet.core.judgement import Reason
from gradvet.core.ladder import read
from gradvet.core.outcome import Outcome
from gradvet.core.results import Verdict
from gradvet.core.shares import only, shares
from gradvet.core.spaces import Array

if TYPE_CHECKING:
    from gradvet.core.scrutiny import Scrutiny
    from gradvet.core.trial import Look, Trial

LINES = 3
"""So many lines are tried."""

GROUPS = 128
"""At most so many groups of outputs are looked at."""

BYTES = 1 << 28
"""Their gradients take at most so much memory."""

FEW = 8
"""In so many groups they are looked at where the width of the bar is not what leaves doubt."""

MARGIN = 2.0
"""By so much the bar of a group is to be smaller than what is asked for, as bars vary from group to group."""


def in_few_steps(scrutiny: Scrutiny) -> Outcome:
    """A coarse format leaves many lines undecided: the first of a few that tells, tells.

    Its steps are so few that noise may look like a slope once: a failure counts if another line shows one too.
    """
    trial = scrutiny.trial
    found = scrutiny.along(trial.first, trial.looks)
    for _ in range(LINES - 1):
        if found.verdict is not Verdict.INCONCLUSIVE or trial.late:
            break
        found = _along_another(scrutiny)
    if found.verdict is Verdict.FAIL and not fails_again(scrutiny):
        found = _unsure(found)
    if found.verdict is Verdict.INCONCLUSIVE and found.reason is Reason.PRECISION and not trial.late:
        return _in_groups(scrutiny, found)
    return found


def fails_again(scrutiny: Scrutiny, part: slice | None = None) -> bool:
    """Whether the first of a few other lines that tells, along some of the inputs, shows a failure too."""
    return _told(_along_another(scrutiny, part) for _ in range(LINES)) is Verdict.FAIL


def _unsure(found: Outcome) -> Outcome:
    return replace(found, verdict=Verdict.INCONCLUSIVE, reason=Reason.PRECISION)


def _told(outcomes: Iterator[Outcome]) -> Verdict | None:
    return next((found.verdict for found in outcomes if found.verdict is not Verdict.INCONCLUSIVE), None)


def _along_another(scrutiny: Scrutiny, part: slice | None = None) -> Outcome:
    trial = scrutiny.trial
    u = trial.direction_of_all()
    walk = trial.near(trial.restricted(u if part is None else only(u, part)))
    return scrutiny.along(walk, trial.looks_for(walk.slope))


@dataclass(frozen=True, slots=True)
class _Group:
    """Some outputs together."""

    leaf: int
    """The output that they are of."""
    look: Look
    weight: float
    """How much one of them counts."""
    entries: Mapping[str, float]
    """By name of the input: what one typical entry adds to the slope, the entries of all groups taken together."""


@dataclass(frozen=True, slots=True)
class _Division:
    """Groups of outputs, and how many of all the outputs are in them."""

    groups: Sequence[_Group]
    inside: int
    count: int
    size: int

    @property
    def is_whole(self) -> bool:
        return self.inside == self.count

    @property
    def words(self) -> str:
        return f"{self.inside} of {self.count} outputs were looked at in groups of {self.size}"


def _in_groups(scrutiny: Scrutiny, doubt: Outcome) -> Outcome:
    """The outputs in groups; the doubt stands where a group leaves one, or where not all can be looked at."""
    trial, u = scrutiny.trial, scrutiny.trial.first.u
    parts = _division(trial, doubt)
    if len(parts.groups) < 2:
        return doubt
    worst, undecided = dict[str, float](), None if parts.is_whole else doubt
    for group, found in _each(scrutiny, u, parts.groups):
        if found.verdict is Verdict.FAIL and _is_confirmed(scrutiny, group, found):
            return found
        if found.verdict is not Verdict.PASS:
            undecided = _unsure(found)
        for name, typical in group.entries.items():
            worst[name] = max(worst.get(name, 0.0), max(found.bar, abs(found.error)) / typical)
    if parts.is_whole:
        for name, resolution in worst.items():
            trial.record.sharpen(name, resolution)
    trial.record.note(f"{parts.words}: all together their roundoff is too much")
    return undecided or Outcome(Verdict.PASS, Reason.AGREES)


def _is_confirmed(scrutiny: Scrutiny, group: _Group, found: Outcome) -> bool:
    """Whether the entry is wrong by itself, and the first of a few other lines that tells shows a failure too."""
    if found.entry is None or found.entry.judgement.verdict is not Verdict.FAIL:
        return False
    trial = scrutiny.trial
    lines = (scrutiny.climb(trial.restricted(trial.direction_of_all()), [group.look]) for _ in range(LINES))
    return _told(lines) is Verdict.FAIL


def _each(scrutiny: Scrutiny, u: Array, groups: Sequence[_Group]) -> Iterator[tuple[_Group, Outcome]]:
    """What is found of each group, which says nothing about how sharp the others are."""
    record = scrutiny.trial.record
    claims = scrutiny.mode.claims(scrutiny.trial, u, [group.look for group in groups])
    for group, rungs in zip(groups, scrutiny.trial.climb(u, claims), strict=True):
        before = dict(record.resolution)
        found = scrutiny.judged(u, group.look, read(rungs), max(group.entries.values(), default=0.0))
        record.resolution = before
        yield group, found


def _division(trial: Trial, doubt: Outcome) -> _Division:
    """Groups of equal size within each output; where there are too many, some of each."""
    subject, v = trial.subject, trial.looks[0].v
    most = max(1, min(GROUPS, BYTES // (8 * (subject.domain.size + subject.codomain.size))))
    rows = [_shuffled(trial, v, subject.codomain.slice(leaf)) for leaf in range(len(subject.codomain.leaves))]
    count = sum(int(some.shape[0]) for some in rows)
    size = _size(trial, count, doubt)
    if not size:
        return _Division([], 0, count, 0)
    cut = [(leaf, some[k : k + size]) for leaf, some in enumerate(rows) for k in range(0, some.shape[0], size)]
    cut = cut[:: max(1, math.ceil(len(cut) / most))]
    groups = _with_typical_entries([_group(trial, leaf, some) for leaf, some in cut])
    return _Division(groups, sum(int(some.shape[0]) for _, some in cut), count, size)


def _shuffled(trial: Trial, v: Array, part: slice) -> Array:
    """The outputs of one leaf that are looked at, in random order."""
    xp = namespace(v)
    rows = xp.nonzero(v[part])[0] + part.start
    return rows[xp.argsort(trial.subject.signed(rows.shape[0]))]


def _size(trial: Trial, count: int, doubt: Outcome) -> int:
    """How many outputs have so little roundoff together that an error of the size asked for can be seen."""
    typical = max((share for _, share in shares(trial, trial.looks[0].w, trial.first.u)), default=0.0)
    if not typical or not math.isfinite(doubt.bar) or count < 2:
        return 0
    excess = MARGIN * doubt.bar / (trial.options.power * typical)
    return min(count // 2, max(1, int(count / excess**2) if excess > 1.0 else count // FEW))


def _group(trial: Trial, leaf: int, rows: Array) -> _Group:
    v = trial.subject.zeros(trial.subject.codomain.size)
    v[rows] = trial.looks[0].v[rows]
    look = trial.look(v)
    weight = math.sqrt(dot(look.v, look.v) / int(rows.shape[0]))
    return _Group(leaf, look, weight, dict(shares(trial, look.w, trial.first.u)))


def _with_typical_entries(groups: Sequence[_Group]) -> list[_Group]:
    """An output that hardly varies is held to the entries of the others like it: to its own it could never be."""
    squares: dict[tuple[int, str], list[float]] = {}
    for group in groups:
        for name, entry in group.entries.items():
            squares.setdefault((group.leaf, name), []).append((entry / group.weight) ** 2)
    typical = {key: math.sqrt(sum(some) / len(some)) for key, some in squares.items()}
    return [
        replace(
            group,
            entries={
                name: max(entry, group.weight * typical[group.leaf, name])
                for name, entry in group.entries.items()
                if typical[group.leaf, name]
            },
        )
        for group in groups
    ]
