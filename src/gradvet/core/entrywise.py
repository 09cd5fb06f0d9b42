"""Tolerance policy: every entry within atol + rtol · |numerical|.

A complex number is compared as one number: where the derivative under test is known by rows, an entry belongs to one
real coordinate of an output and to one (real or complex) number of an input; where it is known by columns, the reverse.
`Mode.by_rows` says which side is which, so that the comparison itself is written once.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from gradvet.core.certificate import FEW_ROWS, MAX_HELD_NUMBERS, MAX_HELD_VECTORS
from gradvet.core.localise import locate
from gradvet.core.modes import BLOCK, MIN_BATCH, CentralDifferences, Mode, ReverseJacobian, forward_columns
from gradvet.core.probe_plans import MAX_AT_ONCE, Plan, price, resolving_ratio, spare_evaluations, spare_if_refused
from gradvet.core.problem import Problem
from gradvet.core.projections import OutOfReachError, Projections
from gradvet.core.vectors import Array, Space, namespace, nan_as_inf
from gradvet.options import Options

CACHED_ENTRIES = 2**16
"""Entries that are compared at a time: intermediate results of more do not fit the processor's caches."""

MAX_KEPT_ENTRIES = 10_000
"""A wrong pair of leaves with at most this many entries keeps its two matrices, for the diagnosis and the message."""

MAX_SHOWN_ENTRIES = 5
"""Wrong entries of a pair of leaves that are shown."""


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
    """The wrong entry that exceeds its tolerance by the largest factor."""
    largest_errors: list[ComparedEntry] = field(default_factory=list)
    """Wrong entries with the largest errors, if they are shown."""
    matrices: tuple[Array, Array] | None = None
    """All entries by differences and of the derivative, if they are few and were compared together."""

    @property
    def total_wrong(self) -> int:
        return sum(self.wrong.values())


class Comparison:
    """Blocks of two Jacobians, compared as they come. `complete` says whether every entry of its pairs was."""

    def __init__(self, problem: Problem, options: Options, mode: Mode) -> None:
        self.problem, self.tolerance, self.by_rows = problem, options.tolerance, mode.by_rows
        self._explains = options.explains
        self.pairs: dict[tuple[int, int], Pair] = {}
        """Those with entries outside the absolute tolerance, and those of large blocks."""
        self.disagrees = False
        self.complete = True
        self.miss = 0.0
        """Probability, at most, that a block which only random cotangents compared has a wrong entry."""

    def add(self, corner: tuple[int, int], numerical: Array, derivative: Array) -> None:
        """A block of rows and of columns, both of whole numbers; `corner` is its first entry."""
        codomain, domain = self.problem.codomain, self.problem.domain
        height, width = numerical.shape
        if height * width <= CACHED_ENTRIES and self._is_within(numerical, derivative):
            return
        for output, rows in _sections(codomain, corner[0], height):
            for source, columns in _sections(domain, corner[1], width):
                top, left = rows.start - corner[0], columns.start - corner[1]
                place = slice(top, rows.stop - corner[0]), slice(left, columns.stop - corner[1])
                n, a, pair = numerical[place], derivative[place], self._pair(output, source)
                is_whole = (rows, columns) == (codomain.slices[output], domain.slices[source])
                if is_whole and n.shape[0] * n.shape[1] <= MAX_KEPT_ENTRIES:
                    pair.matrices = n, a
                # An even number of rows: real and imaginary parts stay together.
                step = max(2, CACHED_ENTRIES // n.shape[1] // 2 * 2)
                for start in range(0, n.shape[0], step):
                    place = slice(start, start + step), slice(None)
                    self._compare(pair, (rows.start + start, columns.start), n[place], a[place])
                    if self.disagrees and not self._explains:  # one wrong entry is enough
                        return

    def _is_within(self, numerical: Array, derivative: Array) -> bool:
        """Whether all entries are within the absolute tolerance, as those of most blocks are."""
        if not numerical.shape[0] or not numerical.shape[1]:
            return True
        parts = max(self.problem.domain.parts, self.problem.codomain.parts)
        return float(abs(derivative - numerical).max()) * math.sqrt(parts) <= self.tolerance.absolute

    def _pair(self, output: int, source: int) -> Pair:
        if (output, source) not in self.pairs:
            rows = self.problem.codomain.leaves[output].coordinates
            columns = self.problem.domain.leaves[source].coordinates
            counted = columns if self.by_rows else rows
            self.pairs[output, source] = Pair(output, source, rows.size * columns.size // counted.parts)
        return self.pairs[output, source]

    def _compare(self, pair: Pair, corner: tuple[int, int], numerical: Array, derivative: Array) -> None:
        if self._is_within(numerical, derivative):
            return
        xp = namespace(numerical)
        output = self.problem.codomain.leaves[pair.output].coordinates
        source = self.problem.domain.leaves[pair.input].coordinates
        # Orient so that rows are real coordinates and columns are numbers.
        n, a = (numerical, derivative) if self.by_rows else (numerical.T, derivative.T)
        row_parts, parts = (output.parts, source.parts) if self.by_rows else (source.parts, output.parts)
        difference = modulus(a - n, parts)
        allowed = self.tolerance.absolute + self.tolerance.relative * modulus(n, parts)
        # Where the differences are infinite the tolerance is too, and would allow anything.
        right = (difference <= allowed) & (difference < math.inf)
        if bool(right.all()):
            return
        self.disagrees, wrong = True, ~right
        rows_before = corner[0] - self.problem.codomain.offsets[pair.output]
        columns_before = corner[1] - self.problem.domain.offsets[pair.input]
        first = rows_before if self.by_rows else columns_before
        for number, part in enumerate(("real", "imag") if row_parts == 2 else ("",)):
            rows = wrong[(number - first) % row_parts :: row_parts, :]
            pair.wrong[part] = pair.wrong.get(part, 0) + int(xp.count_nonzero(rows))
        pair.largest = max(pair.largest, _or_infinite(float(xp.max(difference))))
        errors = nan_as_inf(difference)
        errors = xp.reshape(xp.where(wrong, errors, xp.full_like(errors, -1.0)), (-1,))
        excess = nan_as_inf(xp.where(errors < 0.0, errors, errors / xp.reshape(allowed, (-1,))))
        entry = functools.partial(self._entry, corner, (n, a), (difference, allowed))
        worst = entry(int(xp.argmax(excess)))
        if pair.worst is None or worst.excess > pair.worst.excess:
            pair.worst = worst
        if self._explains:
            order = xp.argsort(errors, descending=True)[: min(MAX_SHOWN_ENTRIES, int(xp.count_nonzero(wrong)))]
            listed = [*pair.largest_errors, *(entry(int(place)) for place in order)]
            pair.largest_errors = sorted(listed, key=lambda one: -_or_infinite(one.difference))[:MAX_SHOWN_ENTRIES]

    def _entry(
        self, corner: tuple[int, int], both: tuple[Array, Array], errors: tuple[Array, Array], place: int
    ) -> ComparedEntry:
        (n, a), (difference, allowed) = both, errors
        i, j = divmod(place, difference.shape[1])
        # Of a complex number, name the coordinate that differs more.
        parts = n.shape[1] // difference.shape[1]
        k = max(range(parts * j, parts * (j + 1)), key=lambda k: _or_infinite(abs(float(a[i, k] - n[i, k]))))
        row, column = corner[0] + (i if self.by_rows else k), corner[1] + (k if self.by_rows else i)
        values = (float(a[i, k]), float(n[i, k]), float(difference[i, j]), float(allowed[i, j]))
        return ComparedEntry(row, column, *values)


def _sections(space: Space, start: int, length: int) -> Iterator[tuple[int, slice]]:
    """The leaves that some coordinates belong to, each with those of the coordinates that are its own."""
    for leaf, section in enumerate(space.slices):
        first, last = max(section.start, start), min(section.stop, start + length)
        if first < last:
            yield leaf, slice(first, last)


def modulus(block: Array, parts: int) -> Array:
    """|number| along the last axis, where one coordinate, or two side by side, make up a number."""
    xp = namespace(block)
    if parts == 1:
        return xp.abs(block)
    return xp.hypot(block[:, ::2], block[:, 1::2])


def _or_infinite(value: float) -> float:
    return float("inf") if value != value else value


BLOCK_COTANGENTS = 3
"""Random cotangents by which a block of columns is compared before its entries are."""

MAX_DESCENTS = 4
"""Searches from different directions, to find more than one wrong entry."""


def compare(projections: Projections, mode: Mode) -> Comparison:
    """The derivative against differences: wrong entries that a search finds, else all entries."""
    problem = projections.problem
    if problem.independent and not projections.options.exhaustive and price(problem, mode) > MAX_AT_ONCE:
        # One descent takes at most so many: halving rows by backward passes, columns by differences.
        each = math.log2(problem.codomain.size + 1) + 3.0 * math.log2(problem.domain.size + 1)
        descents = spare_evaluations(problem, mode) / each
        found = located(projections, mode, min(MAX_DESCENTS, int(descents)))
        if found.disagrees:
            return found
    if holds_too_much(problem):
        projections.release()
    return compare_all(projections, mode)


def is_small(problem: Problem) -> bool:
    """Whether the entries are so few that they are compared as plain numbers."""
    return max(problem.domain.size, problem.codomain.size + problem.nondifferentiable.size) < MIN_BATCH


def holds_too_much(problem: Problem) -> bool:
    """Whether the vectors of a certificate are to be forgotten before entries are compared."""
    return MAX_HELD_VECTORS * (problem.domain.size + problem.codomain.size) > MAX_HELD_NUMBERS


def located(projections: Projections, mode: Mode, descents: int, least: float = 0.0) -> Comparison:
    """The entries that a search from projections names, each compared with its own difference.

    A search ends among entries whose errors add up to less than `least`.
    """
    problem = projections.problem
    found = Comparison(problem, projections.options, mode)
    found.complete = False
    numerical, places = CentralDifferences(projections), list[tuple[int, int]]()
    with suppress(OutOfReachError):  # the function raises along the directions of the search
        places = locate(projections, mode, descents, least)
    for row, column in places:
        if mode.by_rows:
            start, stop = _number(problem.domain, column)
            entries = projections.row(row)[None, start:stop]
            found.add((row, start), numerical.columns(start, stop)[row : row + 1, :], entries)
        else:
            derivative = forward_columns(problem, column, column + 1)
            found.add((0, column), numerical.columns(column, column + 1), derivative)
    return found


def _number(domain: Space, column: int) -> tuple[int, int]:
    """First and last + 1 of the coordinates that make up the number to which a column belongs."""
    leaf = domain.leaf_of(column)
    parts = domain.leaves[leaf].coordinates.parts
    start = column - (column - domain.offsets[leaf]) % parts
    return start, start + parts


def compare_all(projections: Projections, mode: Mode) -> Comparison:
    """Every entry, in blocks of columns; of a column that random cotangents certify no entry is computed.

    A small Jacobian is computed entry by entry: what could replace that takes as many evaluations to try.
    """
    problem = projections.problem
    domain, codomain = problem.domain, problem.codomain
    comparison = Comparison(problem, projections.options, mode)
    if is_small(problem):
        _compare_numbers(comparison, projections, mode)
        return comparison
    spare = min(spare_if_refused(problem, mode), spare_evaluations(problem, mode))
    numerical = CentralDifferences(projections, spare)
    reverse = ReverseJacobian(projections, spare - numerical.test_price - BLOCK_COTANGENTS)
    most = _most_cotangents(projections, mode, reverse)
    waiting: dict[int, Array] = {}
    for start, stop in _blocks(domain, codomain.size):
        block = numerical.columns(start, stop)
        if not mode.by_rows:
            derivative = forward_columns(problem, start, stop)
            comparison.add((0, start), numerical.corrected(block, derivative, (0, start)), derivative)
            continue
        chosen = {start: block}
        if most:
            runs = _uncertified(projections, block, start, most)
            # Where whole rows are computed, the finding shows the whole block.
            if runs != [(start, stop)] and not (runs and reverse.fits):
                comparison.miss = projections.options.miss
                # Copies, because slices would keep the whole block in memory.
                chosen = {first: block[:, first - start : last - start] + 0.0 for first, last in runs}
        if codomain.size * sum(part.shape[1] for part in (waiting | chosen).values()) > BLOCK:
            _compare_rows(comparison, numerical, reverse, waiting)
            waiting = {}
            if comparison.disagrees and not reverse.fits:
                comparison.complete = False
                return comparison
        waiting |= chosen
    _compare_rows(comparison, numerical, reverse, waiting)
    return comparison


def _compare_numbers(comparison: Comparison, projections: Projections, mode: Mode) -> None:
    """The entries of a small Jacobian as plain numbers; as matrices where one is outside the absolute tolerance.

    Operations on tensors of a few numbers take longer than the numbers.
    """
    problem, step = projections.problem, projections.options.step
    twice = 2.0 * step
    columns = [problem.weighted(one, (step, -step), (1.0, -1.0)) for one in problem.unit_steps(0, problem.domain.size)]
    differences = [column.tolist() for column in columns]
    allowed = projections.options.tolerance.absolute / math.sqrt(max(problem.domain.parts, problem.codomain.parts))
    xp = namespace(problem.value)
    for output in problem.codomain.slices if mode.by_rows else (slice(0, problem.codomain.size),):
        if output.start == output.stop:
            continue
        if mode.by_rows:
            derivative = [projections.row(row) for row in range(output.start, output.stop)]
        else:
            derivative = list(forward_columns(problem, 0, problem.domain.size))
        within = [
            abs(entry - difference[row] / twice) <= allowed
            for row, entries in enumerate(derivative, output.start)
            for entry, difference in zip(entries.tolist(), differences, strict=True)
        ]
        if not all(within):
            comparison.add((output.start, 0), xp.stack(columns, axis=1)[output, :] / twice, xp.stack(derivative))
        if comparison.disagrees and projections.is_strict:
            return


def _most_cotangents(projections: Projections, mode: Mode, reverse: ReverseJacobian) -> int:
    """Random cotangents that may compare columns before the rows are computed; none where a refusal would cost more.

    More than the usual number resolve what noise leaves in each entry, where rows would be computed several times.
    """
    first_probe = 0 if projections.known_vjps else len(projections.problem.codomain.leaves)
    if first_probe + BLOCK_COTANGENTS - 1 > spare_if_refused(projections.problem, mode):
        return 0
    return BLOCK_COTANGENTS if reverse.fits else MAX_HELD_VECTORS


def _compare_rows(
    comparison: Comparison, numerical: CentralDifferences, reverse: ReverseJacobian, blocks: dict[int, Array]
) -> None:
    """Blocks of columns, by the number of their first, with the same columns by reverse mode, output by output.

    In slow mode an output with a wrong entry is the last one, as for torch.
    """
    columns = [column for start, block in blocks.items() for column in range(start, start + block.shape[1])]
    outputs = comparison.problem.codomain.slices if columns else ()
    for output, rows in enumerate(outputs):
        derivative, done = reverse.rows_of(output, columns), 0
        for start, block in blocks.items():
            # Selecting all rows and columns takes as long as comparing a few numbers.
            own = block if len(outputs) == 1 else block[rows]
            part = derivative if len(blocks) == 1 else derivative[:, done : done + block.shape[1]]
            corner = rows.start, start
            comparison.add(corner, numerical.corrected(own, part, corner), part)
            done += block.shape[1]
        if comparison.disagrees and numerical.projections.is_strict:
            return


def _blocks(domain: Space, rows: int) -> Iterator[tuple[int, int]]:
    """Start and stop of blocks of columns that fit in memory: all, or some that split no complex number."""
    if max(1, rows) * domain.size <= BLOCK:
        yield 0, domain.size
        return
    width = max(2, BLOCK // max(1, rows) // 2 * 2)
    for section in domain.slices:
        for start in range(section.start, section.stop, width):
            yield start, min(start + width, section.stop)


def _uncertified(projections: Projections, block: Array, start: int, most: int) -> list[tuple[int, int]]:
    """First and last + 1 of the runs of columns that so many random cotangents cannot certify; all for few rows."""
    options, number = projections.options, block.shape[1]
    if block.shape[0] <= FEW_ROWS or not projections.linear or options.exhaustive or not options.tolerance.absolute:
        return [(start, start + number)]
    xp = namespace(block)
    ratios = [resolving_ratio(options.miss / most, Plan(None, 1 + n)) for n in range(most)]
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
