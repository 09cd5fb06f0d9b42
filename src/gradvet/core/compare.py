"""The classical comparison: every entry within atol + rtol · |numerical|, block by block.

A complex number is compared as one number: where the derivative under test is known by rows, an entry belongs to one
real coordinate of an output and to one (real or complex) number of an input; where it is known by columns, the reverse.
`Axis` says which side is which, so that the comparison itself is written once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

import array_api_compat

from gradvet.core.experiment import Experiment
from gradvet.core.jacobians import BLOCK, Jacobian, Numerical, Pulled, Pushed
from gradvet.core.probes import resolving_ratio
from gradvet.core.spaces import Array, Space

SMALL = 4
"""So few rows are compared entry by entry at once, without a look through random codirections first."""

SCREENING = 3
"""Codirections through which a column is looked at before its entries are."""

SHOWN = 10_000
"""A pair of leaves with at most this many entries keeps its two matrices, for the diagnosis and the message."""


class Axis(Enum):
    """Which side of the Jacobian counts whole numbers; the other side counts real coordinates."""

    INPUTS = "inputs"
    OUTPUTS = "outputs"


@dataclass(slots=True)
class Entry:
    """Where two matrices differ most, and by how much."""

    row: int
    column: int
    derivative: float
    numerical: float
    difference: float
    allowed: float


@dataclass(slots=True)
class Pair:
    """The block of the Jacobian that belongs to one output leaf and one input leaf."""

    output: int
    input: int
    entries: int = 0
    wrong: dict[str, int] = field(default_factory=dict)
    """Wrong entries by part of the coordinate side: "real" and "imag", or "" if it is real."""
    largest: float = 0.0
    worst: Entry | None = None
    numerical: list[Array] = field(default_factory=list)
    derivative: list[Array] = field(default_factory=list)

    @property
    def total_wrong(self) -> int:
        return sum(self.wrong.values())


@dataclass(slots=True)
class Comparison:
    """What the entry-by-entry comparison found; `complete` is False if it stopped at the first wrong block."""

    axis: Axis
    pairs: dict[tuple[int, int], Pair] = field(default_factory=dict)
    complete: bool = True

    @property
    def disagrees(self) -> bool:
        return any(pair.total_wrong for pair in self.pairs.values())


def compare_reverse(experiment: Experiment) -> Comparison:
    """Reverse mode against differences, in every entry."""
    return _compare(experiment, Pulled(experiment.problem), Axis.INPUTS)


def compare_forward(experiment: Experiment) -> Comparison:
    """Forward mode against differences, in every entry."""
    return _compare(experiment, Pushed(experiment.problem), Axis.OUTPUTS)


def _compare(experiment: Experiment, derivative: Jacobian, axis: Axis) -> Comparison:
    problem = experiment.problem
    numerical = Numerical(problem, experiment.options.step)
    comparison = Comparison(axis)
    for leaf, start, stop in _blocks(problem.domain, problem.codomain.size):
        block = numerical.columns(start, stop)
        if isinstance(derivative, Pulled):
            if not _suspicious(experiment, block, start, stop):
                continue
            if comparison.disagrees and not derivative.fits:
                comparison.complete = False
                break
        _tally(experiment, comparison, leaf, start, block, derivative.columns(start, stop))
    return comparison


def _blocks(domain: Space, rows: int) -> Iterator[tuple[int, int, int]]:
    """Leaf, start and stop of blocks of columns that fit in memory and split neither a leaf nor a complex number."""
    width = max(2, BLOCK // max(1, rows) // 2 * 2)
    for leaf in range(len(domain.leaves)):
        section = domain.slice(leaf)
        for start in range(section.start, section.stop, width):
            yield leaf, start, min(start + width, section.stop)


def _suspicious(experiment: Experiment, block: Array, start: int, stop: int) -> bool:
    """Whether random codirections cannot show that these columns agree. Few rows are always looked at."""
    if block.shape[0] <= SMALL:
        return True
    xp = array_api_compat.array_namespace(block)
    options = experiment.options
    residual = 0.0
    for number in range(SCREENING):
        probe = experiment.codirections(number + 1)[number]
        found = float(xp.max(xp.abs(probe.v @ block - probe.pulled[start:stop])))
        residual = found if not found <= residual else residual
        ratio = resolving_ratio(options.miss / SCREENING, number + 1, sampled_both_sides=False)
        if residual <= ratio * options.tolerance.absolute / 2**0.5:
            return False
    return True


def _tally(
    experiment: Experiment, comparison: Comparison, leaf: int, start: int, numerical: Array, derivative: Array
) -> None:
    """Compare one block, output leaf by output leaf, and add what is found to the comparison."""
    problem = experiment.problem
    for output in range(len(problem.codomain.leaves)):
        rows = problem.codomain.slice(output)
        pair = comparison.pairs.setdefault((output, leaf), Pair(output, leaf))
        if problem.codomain.leaves[output].coordinates.size and numerical.shape[1]:
            judged = _Judged(experiment, comparison.axis, pair, rows.start, start)
            judged.add(numerical[rows, :], derivative[rows, :])


@dataclass(frozen=True, slots=True)
class _Judged:
    """The comparison of one block of one pair."""

    experiment: Experiment
    axis: Axis
    pair: Pair
    row: int
    column: int

    def add(self, numerical: Array, derivative: Array) -> None:
        problem, tolerance, pair = self.experiment.problem, self.experiment.options.tolerance, self.pair
        xp = array_api_compat.array_namespace(numerical)
        output = problem.codomain.leaves[pair.output].coordinates
        source = problem.domain.leaves[pair.input].coordinates
        sides = (output.parts, source.parts) if self.axis is Axis.INPUTS else (source.parts, output.parts)
        # Orient so that rows are real coordinates and columns are numbers.
        n, a = (numerical, derivative) if self.axis is Axis.INPUTS else (numerical.T, derivative.T)
        difference, size = _modulus(a - n, sides[1]), _modulus(n, sides[1])
        allowed = tolerance.absolute + tolerance.relative * size
        wrong = ~(difference <= allowed)
        pair.entries += wrong.shape[0] * wrong.shape[1]
        for number, part in enumerate(("real", "imag") if sides[0] == 2 else ("",)):
            pair.wrong[part] = pair.wrong.get(part, 0) + int(xp.count_nonzero(wrong[number :: sides[0], :]))
        if output.size * source.size <= SHOWN:
            pair.numerical.append(numerical)
            pair.derivative.append(derivative)
        if bool(xp.any(wrong)):
            self._keep_worst(n, a, difference, allowed, sides[1])

    def _keep_worst(self, n: Array, a: Array, difference: Array, allowed: Array, parts: int) -> None:
        xp = array_api_compat.array_namespace(n)
        excess = difference / allowed
        excess = xp.where(xp.isnan(excess), xp.full_like(excess, float("inf")), excess)
        at = int(xp.argmax(xp.reshape(excess, (-1,))))
        i, j = divmod(at, excess.shape[1])
        # Of a complex number, name the coordinate that differs more.
        k = max(range(parts * j, parts * j + parts), key=lambda k: _finite(float(abs(a[i, k] - n[i, k]))))
        gap = float(difference[i, j])
        if self.pair.worst is None or _finite(gap / float(allowed[i, j])) > _finite(
            self.pair.worst.difference / self.pair.worst.allowed
        ):
            row, column = (i, k) if self.axis is Axis.INPUTS else (k, i)
            self.pair.worst = Entry(
                self.row + row, self.column + column, float(a[i, k]), float(n[i, k]), gap, float(allowed[i, j])
            )
        self.pair.largest = max(self.pair.largest, _finite(float(xp.max(difference))))


def _modulus(block: Array, parts: int) -> Array:
    """|number| along the last axis, where `parts` coordinates make up one number."""
    xp = array_api_compat.array_namespace(block)
    if parts == 1:
        return xp.abs(block)
    grouped = xp.reshape(block, (block.shape[0], -1, parts))
    return xp.sqrt(xp.sum(grouped * grouped, axis=-1))


def _finite(value: float) -> float:
    """NaN counts as infinitely far off."""
    return float("inf") if value != value else value
