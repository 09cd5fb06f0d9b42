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

from gradvet.core.decision import Decision, Reason
from gradvet.core.extrapolation import fit_slope
from gradvet.core.line_test import typical_contributions
from gradvet.core.results import Verdict
from gradvet.core.spaces import Array
from gradvet.core.vectors import dot, namespace, only

if TYPE_CHECKING:
    from gradvet.core.context import Context, Cotangent
    from gradvet.core.slope_test import SlopeTest

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


def test_low_precision(slope_test: SlopeTest) -> Decision:
    """A coarse format leaves many lines undecided: the first of a few that tells, tells.

    Its steps are so few that noise may look like a slope once: a failure counts if another line shows one too.
    """
    context = slope_test.context
    found = slope_test.along(context.first, context.cotangents)
    for _ in range(LINES - 1):
        if found.verdict is not Verdict.INCONCLUSIVE or context.out_of_time:
            break
        found = _along_another(slope_test)
    if found.verdict is Verdict.FAIL and not fails_again(slope_test):
        found = _unsure(found)
    if found.verdict is Verdict.INCONCLUSIVE and found.reason is Reason.PRECISION and not context.out_of_time:
        return _in_groups(slope_test, found)
    return found


def fails_again(slope_test: SlopeTest, part: slice | None = None) -> bool:
    """Whether the first of a few other lines that tells, along some of the inputs, shows a failure too."""
    return _told(_along_another(slope_test, part) for _ in range(LINES)) is Verdict.FAIL


def _unsure(found: Decision) -> Decision:
    return replace(found, verdict=Verdict.INCONCLUSIVE, reason=Reason.PRECISION)


def _told(decisions: Iterator[Decision]) -> Verdict | None:
    return next((found.verdict for found in decisions if found.verdict is not Verdict.INCONCLUSIVE), None)


def _along_another(slope_test: SlopeTest, part: slice | None = None) -> Decision:
    context = slope_test.context
    u = context.joint_direction()
    difference = context.near(context.restricted(u if part is None else only(u, part)))
    return slope_test.along(difference, context.cotangents_for(difference.slope))


@dataclass(frozen=True, slots=True)
class _Group:
    """Some outputs together."""

    leaf: int
    """The output that they are of."""
    cotangent: Cotangent
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


def _in_groups(slope_test: SlopeTest, doubt: Decision) -> Decision:
    """The outputs in groups; the doubt stands where a group leaves one, or where not all can be looked at."""
    context, u = slope_test.context, slope_test.context.first.u
    parts = _division(context, doubt)
    if len(parts.groups) < 2:
        return doubt
    worst, undecided = dict[str, float](), None if parts.is_whole else doubt
    for group, found in _each(slope_test, u, parts.groups):
        if found.verdict is Verdict.FAIL and _is_confirmed(slope_test, group, found):
            return found
        if found.verdict is not Verdict.PASS:
            undecided = _unsure(found)
        for name, typical in group.entries.items():
            worst[name] = max(worst.get(name, 0.0), max(found.bar, abs(found.error)) / typical)
    if parts.is_whole:
        for name, resolution in worst.items():
            context.record.sharpen(name, resolution)
    context.record.note(f"{parts.words}: all together their roundoff is too much")
    return undecided or Decision(Verdict.PASS, Reason.AGREES)


def _is_confirmed(slope_test: SlopeTest, group: _Group, found: Decision) -> bool:
    """Whether the entry is wrong by itself, and the first of a few other lines that tells shows a failure too."""
    if found.entry is None or found.entry.decision.verdict is not Verdict.FAIL:
        return False
    context = slope_test.context
    lines = (
        slope_test.sweep_steps(context.restricted(context.joint_direction()), [group.cotangent]) for _ in range(LINES)
    )
    return _told(lines) is Verdict.FAIL


def _each(slope_test: SlopeTest, u: Array, groups: Sequence[_Group]) -> Iterator[tuple[_Group, Decision]]:
    """What is found of each group, which says nothing about how sharp the others are."""
    record = slope_test.context.record
    predictions = slope_test.mode.predictions(slope_test.context, u, [group.cotangent for group in groups])
    for group, step_sweep in zip(groups, slope_test.context.sweep_steps(u, predictions), strict=True):
        before = dict(record.resolution)
        found = slope_test.decided(u, group.cotangent, fit_slope(step_sweep), max(group.entries.values(), default=0.0))
        record.resolution = before
        yield group, found


def _division(context: Context, doubt: Decision) -> _Division:
    """Groups of equal size within each output; where there are too many, some of each."""
    problem, v = context.problem, context.cotangents[0].v
    most = max(1, min(GROUPS, BYTES // (8 * (problem.domain.size + problem.codomain.size))))
    rows = [_shuffled(context, v, problem.codomain.slice(leaf)) for leaf in range(len(problem.codomain.leaves))]
    count = sum(int(some.shape[0]) for some in rows)
    size = _size(context, count, doubt)
    if not size:
        return _Division([], 0, count, 0)
    cut = [(leaf, some[k : k + size]) for leaf, some in enumerate(rows) for k in range(0, some.shape[0], size)]
    cut = cut[:: max(1, math.ceil(len(cut) / most))]
    groups = _with_typical_entries([_group(context, leaf, some) for leaf, some in cut])
    return _Division(groups, sum(int(some.shape[0]) for _, some in cut), count, size)


def _shuffled(context: Context, v: Array, part: slice) -> Array:
    """The outputs of one leaf that are looked at, in random order."""
    xp = namespace(v)
    rows = xp.nonzero(v[part])[0] + part.start
    return rows[xp.argsort(context.problem.signed(rows.shape[0]))]


def _size(context: Context, count: int, doubt: Decision) -> int:
    """How many outputs have so little roundoff together that an error of the size asked for can be seen."""
    typical = max(
        (share for _, share in typical_contributions(context, context.cotangents[0].w, context.first.u)), default=0.0
    )
    if not typical or not math.isfinite(doubt.bar) or count < 2:
        return 0
    excess = MARGIN * doubt.bar / (context.options.power * typical)
    return min(count // 2, max(1, int(count / excess**2) if excess > 1.0 else count // FEW))


def _group(context: Context, leaf: int, rows: Array) -> _Group:
    v = context.problem.zeros(context.problem.codomain.size)
    v[rows] = context.cotangents[0].v[rows]
    cotangent = context.cotangent(v)
    weight = math.sqrt(dot(cotangent.v, cotangent.v) / int(rows.shape[0]))
    return _Group(leaf, cotangent, weight, dict(typical_contributions(context, cotangent.w, context.first.u)))


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
