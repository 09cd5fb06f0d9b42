"""Tolerance policy: every entry within atol + rtol · |numerical|.

A complex number is compared as one number: where the derivative under test is known by rows, an entry belongs to one
real coordinate of an output and to one (real or complex) number of an input; where it is known by columns, the reverse.
`Mode.by_rows` says which side is which, so that the comparison itself is written once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from gradvet.core.certificate import (
    FEW_ROWS,
    MAX_HELD_NUMBERS,
    MAX_HELD_VECTORS,
    spent,
)
from gradvet.core.jacobians import BLOCK, CentralDifferences, ReverseJacobian, forward_columns
from gradvet.core.localise import locate
from gradvet.core.miss_probability import Plan, resolving_ratio
from gradvet.core.modes import Mode
from gradvet.core.problem import Problem
from gradvet.core.projections import OutOfReachError, Projections
from gradvet.core.spaces import Array, Space
from gradvet.core.vectors import namespace
from gradvet.options import Tolerance

CACHED_ENTRIES = 2**16
"""Entries that are compared at a time: intermediate results of more do not fit the processor's caches."""

MAX_KEPT_ENTRIES = 10_000
"""A pair of leaves with at most this many entries keeps its two matrices, for the diagnosis and the message."""


def price(problem: Problem, mode: Mode) -> int:
    """Evaluations and derivative passes that a sweep over all entries takes."""
    rows, columns = problem.codomain.size, problem.domain.size
    return 2 * columns + rows if mode.by_rows else 3 * columns


def torch_price(problem: Problem, mode: Mode) -> int:
    """The same for torch's slow mode, which runs each backward pass twice."""
    rows, columns = problem.codomain.size, problem.domain.size
    return 2 * columns + 2 * rows + 4 * len(problem.codomain.leaves) if mode.by_rows else 3 * columns + 1


def torch_fast_price(problem: Problem, mode: Mode) -> int:
    """The same for torch's fast mode, at least: its projections are about one input or one output each."""
    parts = sum(leaf.coordinates.parts for leaf in problem.domain.leaves)
    return 2 * parts + 3 * len(problem.codomain.leaves) + 3 if mode.by_rows else 3 * parts + 3


@dataclass(slots=True)
class ComparedEntry:
    """One entry of the Jacobian in both versions."""

    row: int
    column: int
    derivative: float
    numerical: float
    difference: float
    allowed: float

    @property
    def excess(self) -> float:
        """The difference as a multiple of the allowed one; infinite for NaN."""
        return _or_infinite(self.difference / self.allowed) if self.allowed else float("inf")


@dataclass(slots=True)
class Pair:
    """The block of the Jacobian that belongs to one output leaf and one input leaf."""

    output: int
    input: int
    entries: int
    wrong: dict[str, int] = field(default_factory=dict)
    """Wrong entries by part of the coordinate side: "real" and "imag", or "" if it is real."""
    largest: float = 0.0
    worst: ComparedEntry | None = None
    numerical: list[Array] = field(default_factory=list)
    derivative: list[Array] = field(default_factory=list)

    @property
    def total_wrong(self) -> int:
        return sum(self.wrong.values())


class Comparison:
    """Blocks of two Jacobians, compared as they come. `complete` says whether every entry was."""

    def __init__(self, problem: Problem, tolerance: Tolerance, mode: Mode) -> None:
        self.problem, self.tolerance, self.by_rows = problem, tolerance, mode.by_rows
        self.pairs: dict[tuple[int, int], Pair] = {}
        self.complete = True
        self.miss = 0.0
        """Probability, at most, that a block which only random cotangents compared has a wrong entry."""

    @property
    def disagrees(self) -> bool:
        return any(pair.total_wrong for pair in self.pairs.values())

    def add(self, corner: tuple[int, int], numerical: Array, derivative: Array) -> None:
        """A block of whole rows of some leaves and whole numbers of one input leaf; `corner` is its first entry."""
        codomain, domain = self.problem.codomain, self.problem.domain
        row, column = corner
        source = domain.leaf_of(column) if numerical.shape[1] else 0
        for output in range(len(codomain.leaves)):
            rows = codomain.slice(output)
            start, stop = max(rows.start, row), min(rows.stop, row + numerical.shape[0])
            pair = self._pair(output, source) if start < stop and numerical.shape[1] else None
            while pair and start < stop:
                # An even number of rows: real and imaginary parts stay together.
                until = min(stop, start + max(2, CACHED_ENTRIES // numerical.shape[1] // 2 * 2))
                if (start, until) == (row, row + numerical.shape[0]):
                    self._compare(pair, corner, numerical, derivative)
                else:
                    block = slice(start - row, until - row)
                    self._compare(pair, (start, column), numerical[block, :], derivative[block, :])
                start = until

    def _pair(self, output: int, source: int) -> Pair:
        if (output, source) not in self.pairs:
            rows = self.problem.codomain.leaves[output].coordinates
            columns = self.problem.domain.leaves[source].coordinates
            counted = columns if self.by_rows else rows
            self.pairs[output, source] = Pair(output, source, rows.size * columns.size // counted.parts)
        return self.pairs[output, source]

    def _compare(self, pair: Pair, corner: tuple[int, int], numerical: Array, derivative: Array) -> None:
        xp = namespace(numerical)
        output = self.problem.codomain.leaves[pair.output].coordinates
        source = self.problem.domain.leaves[pair.input].coordinates
        # Orient so that rows are real coordinates and columns are numbers.
        n, a = (numerical, derivative) if self.by_rows else (numerical.T, derivative.T)
        row_parts, parts = (output.parts, source.parts) if self.by_rows else (source.parts, output.parts)
        difference = _modulus(a - n, parts)
        allowed = self.tolerance.absolute + self.tolerance.relative * _modulus(n, parts)
        # Where the differences are infinite the tolerance is too, and would allow anything.
        right = (difference <= allowed) & (difference < math.inf)
        if output.size * source.size <= MAX_KEPT_ENTRIES:
            pair.numerical.append(numerical)
            pair.derivative.append(derivative)
        if bool(right.all()):
            return
        wrong = ~right
        rows_before = corner[0] - self.problem.codomain.offsets[pair.output]
        columns_before = corner[1] - self.problem.domain.offsets[pair.input]
        first = rows_before if self.by_rows else columns_before
        for number, part in enumerate(("real", "imag") if row_parts == 2 else ("",)):
            rows = wrong[(number - first) % row_parts :: row_parts, :]
            pair.wrong[part] = pair.wrong.get(part, 0) + int(xp.count_nonzero(rows))
        pair.largest = max(pair.largest, _or_infinite(float(xp.max(difference))))
        worst = self._worst(corner, (n, a), xp.where(wrong, difference, xp.zeros_like(difference)), allowed)
        if pair.worst is None or worst.excess > pair.worst.excess:
            pair.worst = worst

    def _worst(
        self, corner: tuple[int, int], both: tuple[Array, Array], difference: Array, allowed: Array
    ) -> ComparedEntry:
        n, a = both
        xp = namespace(n)
        excess = difference / allowed
        # 0/0 is an entry that is right; any other NaN counts as infinite.
        excess = xp.where(difference == 0.0, xp.zeros_like(excess), excess)
        excess = xp.where(xp.isnan(excess), xp.full_like(excess, float("inf")), excess)
        i, j = divmod(int(xp.argmax(xp.reshape(excess, (-1,)))), excess.shape[1])
        # Of a complex number, name the coordinate that differs more.
        parts = n.shape[1] // excess.shape[1]
        k = max(range(parts * j, parts * (j + 1)), key=lambda k: _or_infinite(abs(float(a[i, k] - n[i, k]))))
        row, column = (i, k) if self.by_rows else (k, i)
        return ComparedEntry(
            corner[0] + row,
            corner[1] + column,
            float(a[i, k]),
            float(n[i, k]),
            float(difference[i, j]),
            float(allowed[i, j]),
        )


def _modulus(block: Array, parts: int) -> Array:
    """|number| along the last axis, where one coordinate, or two side by side, make up a number."""
    xp = namespace(block)
    if parts == 1:
        return xp.abs(block)
    return xp.hypot(block[:, ::2], block[:, 1::2])


def _or_infinite(value: float) -> float:
    return float("inf") if value != value else value


SWEEP_FIRST = 1024
"""A sweep of at most this many evaluations is made at once, without a search for wrong entries before it."""

BLOCK_COTANGENTS = 3
"""Random cotangents by which a block of columns is compared before its entries are."""

MIN_SPARE = 6
"""Evaluations that a certificate may cost however few entries there are: two directions in either mode."""

LATER_PASSES = 2
"""Backward passes for each output of the checks that follow: of a zero and of an undefined cotangent."""

PATTERN_PRICE = 15
"""Evaluations before the first descent: three directions of up to four evaluations and a derivative each."""

MAX_DESCENTS = 4
"""Searches from different directions, to find more than one wrong entry."""


def spare_evaluations(problem: Problem, mode: Mode) -> float:
    """Evaluations that may be spent beside a sweep, so that the whole check takes a tenth more than torch at most."""
    later = LATER_PASSES * len(problem.codomain.leaves)
    return 1.1 * torch_price(problem, mode) - price(problem, mode) - spent(problem) - later


def certificate_evaluations(problem: Problem, mode: Mode) -> float:
    """Evaluations that a certificate may cost; none where a sweep takes about as many, half if a search follows."""
    if price(problem, mode) <= 2 * MIN_SPARE:
        return 0.0
    searched = price(problem, mode) > SWEEP_FIRST
    return max(MIN_SPARE, spare_evaluations(problem, mode) / (2.0 if searched else 1.0))


def compare(projections: Projections, mode: Mode) -> Comparison:
    """The derivative against differences: wrong entries that a search finds, else all entries."""
    problem = projections.problem
    if price(problem, mode) > SWEEP_FIRST and _may_search(projections):
        descents = (spare_evaluations(problem, mode) - PATTERN_PRICE) / _descent_price(problem)
        found = located(projections, mode, min(MAX_DESCENTS, int(descents)))
        if found.disagrees:
            return found
    if holds_too_much(problem):
        projections.release()
    return sweep(projections, mode)


def holds_too_much(problem: Problem) -> bool:
    """Whether the vectors of a certificate are to be forgotten before entries are compared."""
    return MAX_HELD_VECTORS * (problem.domain.size + problem.codomain.size) > MAX_HELD_NUMBERS


def _descent_price(problem: Problem) -> float:
    """Evaluations that one descent takes at most: halving rows by backward passes, columns by differences."""
    return math.log2(problem.codomain.size + 1) + 3.0 * math.log2(problem.domain.size + 1)


def located(projections: Projections, mode: Mode, descents: int, least: float = 0.0) -> Comparison:
    """The entries that a search from projections names, each compared with its own difference.

    A search ends among entries whose errors add up to less than `least`.
    """
    problem = projections.problem
    found = Comparison(problem, projections.options.tolerance, mode)
    found.complete = False
    numerical = CentralDifferences(projections)
    for row, column in _located(projections, mode, descents, least):
        if mode.by_rows:
            start, stop = _number(problem.domain, column)
            entries = projections.row(row)[None, start:stop]
            found.add((row, start), numerical.columns(start, stop)[row : row + 1, :], entries)
        else:
            derivative = forward_columns(problem, column, column + 1)
            found.add((0, column), numerical.columns(column, column + 1), derivative)
    return found


def _may_search(projections: Projections) -> bool:
    """Whether a search along random directions may name wrong entries before all are compared."""
    return projections.problem.independent and not projections.options.exhaustive


def _located(projections: Projections, mode: Mode, descents: int, least: float) -> list[tuple[int, int]]:
    """Entries that seem wrong; none where the function raises along the directions of the search."""
    try:
        return locate(projections, mode, descents, least)
    except OutOfReachError:
        return []


def _number(domain: Space, column: int) -> tuple[int, int]:
    """First and last + 1 of the coordinates that make up the number to which a column belongs."""
    leaf = domain.leaf_of(column)
    parts = domain.leaves[leaf].coordinates.parts
    start = column - (column - domain.offsets[leaf]) % parts
    return start, start + parts


def sweep(projections: Projections, mode: Mode) -> Comparison:
    """Every entry, in blocks of columns; of a column that random cotangents certify no entry is computed."""
    problem = projections.problem
    spare = spare_evaluations(problem, mode)
    numerical = CentralDifferences(projections, spare)
    reverse = ReverseJacobian(projections, spare - numerical.trial_price - BLOCK_COTANGENTS)
    comparison = Comparison(problem, projections.options.tolerance, mode)
    waiting: dict[int, Array] = {}
    for start, stop in _blocks(problem.domain, problem.codomain.size):
        block = numerical.columns(start, stop)
        if not mode.by_rows:
            derivative = forward_columns(problem, start, stop)
            comparison.add((0, start), numerical.corrected(block, derivative, start), derivative)
            continue
        runs = _uncertified(projections, block, start)
        if runs and reverse.fits:  # whole rows are computed then, and the finding shows the whole block
            chosen = {start: block}
        else:
            chosen = {first: block[:, first - start : last - start] for first, last in runs}
        if sum(part.shape[1] for part in chosen.values()) < stop - start:
            comparison.miss = projections.options.miss
            # Copies, because slices would keep the whole block in memory.
            chosen = {first: part + 0.0 for first, part in chosen.items()}
        if problem.codomain.size * sum(part.shape[1] for part in (waiting | chosen).values()) > BLOCK:
            _compare_rows(comparison, numerical, reverse, waiting)
            waiting = {}
            if comparison.disagrees and not reverse.fits:
                comparison.complete = False
                return comparison
        waiting |= chosen
    _compare_rows(comparison, numerical, reverse, waiting)
    return comparison


def _compare_rows(
    comparison: Comparison, numerical: CentralDifferences, reverse: ReverseJacobian, blocks: dict[int, Array]
) -> None:
    """Blocks of columns, by the number of their first, with the same columns of all rows by reverse mode."""
    columns = [column for start, block in blocks.items() for column in range(start, start + block.shape[1])]
    if not columns:
        return
    derivative, done = reverse.chosen(columns), 0
    for start, block in blocks.items():
        part = derivative[:, done : done + block.shape[1]]
        comparison.add((0, start), numerical.corrected(block, part, start), part)
        done += block.shape[1]


def _blocks(domain: Space, rows: int) -> Iterator[tuple[int, int]]:
    """Start and stop of blocks of columns that fit in memory and split neither a leaf nor a complex number."""
    width = max(2, BLOCK // max(1, rows) // 2 * 2)
    for leaf in range(len(domain.leaves)):
        section = domain.slice(leaf)
        for start in range(section.start, section.stop, width):
            yield start, min(start + width, section.stop)


def _uncertified(projections: Projections, block: Array, start: int) -> list[tuple[int, int]]:
    """First and last + 1 of the runs of columns that random cotangents cannot certify; all for few rows."""
    options, number = projections.options, block.shape[1]
    if block.shape[0] <= FEW_ROWS or not projections.linear or options.exhaustive or not options.tolerance.absolute:
        return [(start, start + number)]
    xp = namespace(block)
    ratios = [resolving_ratio(options.miss / BLOCK_COTANGENTS, Plan(None, 1 + n)) for n in range(BLOCK_COTANGENTS)]
    residual = xp.zeros_like(block[0, :])
    uncertain = xp.ones_like(residual, dtype=xp.bool)
    for index, ratio in enumerate(ratios):
        probe = projections.probe_cotangents(index + 1)[index]
        found = xp.abs(probe.v @ block - probe.vjp[start : start + number])
        residual = xp.maximum(residual, found * 2**0.5 / options.tolerance.absolute)
        uncertain = uncertain & ~(residual <= ratio)
        # More cotangents help only if they resolve what is left.
        if not bool(xp.any(uncertain & (residual <= ratios[-1]))):
            break
    return _runs(projections.problem.domain, [start + int(column) for column in xp.nonzero(uncertain)[0]])


def _runs(domain: Space, columns: list[int]) -> list[tuple[int, int]]:
    """First and last + 1 of the runs of adjacent columns, with both parts of a complex number."""
    runs: list[tuple[int, int]] = []
    for column in columns:
        first, last = _number(domain, column)
        if runs and first <= runs[-1][1]:
            runs[-1] = runs[-1][0], last
        else:
            runs.append((first, last))
    return runs
