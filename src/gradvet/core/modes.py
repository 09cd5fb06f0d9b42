"""The modes of differentiation: what each knows of the Jacobian J at a point, and J by blocks of columns.

Reverse mode knows J by rows (VJPs), forward mode by columns (JVPs), differences by columns too. A block of columns from
`start` to `stop` is a matrix of outputs × (stop - start) in real coordinates. Memory is bounded by the block; only rows
of a small Jacobian are kept.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import cached_property

from gradvet.core import thresholds
from gradvet.core.context import Context
from gradvet.core.finite_differences import Cotangent
from gradvet.core.problem import Problem
from gradvet.core.projections import OutOfReachError, ProbeDirection, Projections
from gradvet.core.vectors import Array, all_finite, dot, dots, namespace, unit, unit_rows
from gradvet.options import Tolerance


class ReverseMode:
    """Jᵀv is known: the prediction is its product with the displacement."""

    name = "reverse"
    by_rows = True
    """Whether a derivative pass gives a row of the Jacobian."""

    def require(self, context: Context) -> None:
        """Compute one derivative, so that a mode that the function does not have raises first."""
        if not context.has_reverse:
            context.problem.vjp(context.problem.zeros(context.problem.codomain.size))

    def slope(self, context: Context, cotangent: Cotangent, u: Array) -> Array:
        """v·J·u at the point by this mode, for each cotangent v."""
        return dots(cotangent.vjp, u)

    def change(self, context: Context, cotangent: Cotangent, u: Array, displacement: Array, t: float) -> Array:
        """The change of v·f over a displacement of about t u by this mode, for each cotangent v."""
        return dots(cotangent.vjp, displacement)

    def is_finite_at(self, context: Context, column: int) -> bool:
        """Whether this mode has a finite derivative by an input for which reverse mode has none. May call the JVP."""
        return False

    def slope_at(self, context: Context, displacement: Array, v: Array, u: Array) -> float:
        """v·J·u next to the point; not a number where it cannot be computed."""
        return dot(context.problem.vjp_at(displacement, v), u)

    def block(self, problem: Problem, rows: range, columns: range) -> Array:
        """A block of the Jacobian, by a VJP for each row (reverse) or a JVP for each column (forward)."""
        vjps = [problem.vjp(unit(problem.zeros(problem.codomain.size), row)) for row in rows]
        return namespace(vjps[0]).stack(vjps, axis=0)[:, columns.start : columns.stop]

    def row_residuals(self, context: Context, slope: Array, displacement: Array) -> Array | None:
        """slope - J·displacement for every row; None where the mode shows only combinations of rows."""
        return None


class ForwardMode:
    """J u is known; the rounding of the displacement is accounted for by the gradient."""

    name = "forward"
    by_rows = False

    def require(self, context: Context) -> None:
        context.cached_jvp(context.first.displacement)

    def slope(self, context: Context, cotangent: Cotangent, u: Array) -> Array:
        return dots(cotangent.v, context.cached_jvp(u))

    def change(self, context: Context, cotangent: Cotangent, u: Array, displacement: Array, t: float) -> Array:
        return t * self.slope(context, cotangent, u) + dots(cotangent.vjp, displacement - t * u)

    def is_finite_at(self, context: Context, column: int) -> bool:
        return all_finite(context.problem.jvp(unit(context.problem.zeros(context.problem.domain.size), column)))

    def slope_at(self, context: Context, displacement: Array, v: Array, u: Array) -> float:
        tangent = context.problem.jvp_at(displacement, u)
        return math.nan if tangent is None else dot(v, tangent)

    def block(self, problem: Problem, rows: range, columns: range) -> Array:
        jvps = [problem.jvp(unit(problem.zeros(problem.domain.size), column)) for column in columns]
        return namespace(jvps[0]).stack(jvps, axis=1)[rows.start : rows.stop, :]

    def row_residuals(self, context: Context, slope: Array, displacement: Array) -> Array | None:
        return slope - context.cached_jvp(displacement)


Mode = ReverseMode | ForwardMode

REVERSE, FORWARD = ReverseMode(), ForwardMode()


BLOCK = 2_000_000
"""Entries of a Jacobian that are held at a time: 16 MB of float64."""

MIN_BATCH = 16
"""Smallest number of rows that are computed together: fewer take less time one by one."""

TIMED_POINTS = 6
"""Points of the vectorised call that is timed against plain calls."""

MIN_COLUMNS = 30
"""Smallest number of columns that are evaluated together: with fewer, the test of a vectorised call takes too long."""

STACKED = 1 << 14
"""Numbers of the vectors that are held at a time, to be put together: a million small ones would take much memory."""

CACHED_NUMBERS = 2**17
"""Numbers that enter and leave one vectorised call: more do not fit the processor's caches."""


def agree(batched: Array, plain: Array, tolerance: Tolerance) -> bool:
    """Whether a vectorised result differs from that of plain calls by a small part of the tolerance only."""
    xp = namespace(plain)
    allowed = tolerance.absolute + tolerance.relative * xp.abs(plain)
    return bool(xp.all(xp.abs(batched - plain) <= thresholds.TOLERANCE_PART * allowed))


BatchEvaluator = Callable[[Array], Array | None]
"""The outputs at several displaced points, a row for each; None where that is impossible."""


class CentralDifferences:
    """The Jacobian by central differences, one coordinate at a time, divided by the nominal step as torch does.

    Differences come from vectorised calls where these agree with plain calls and are faster. To find out costs
    `test_price` evaluations; it is not tried if that is more than `spare`.
    """

    test_price = 2 + 1 + 2 + 2 + TIMED_POINTS

    def __init__(self, projections: Projections, spare: float = math.inf) -> None:
        self.projections, self.problem, self.step = projections, projections.problem, projections.options.step
        self.may_vectorise = projections.problem.domain.size >= MIN_COLUMNS and spare >= self.test_price

    def columns(self, start: int, stop: int) -> Array:
        """The codomain's rows of some columns."""
        block = self.everything(start, stop)
        return block[: self.problem.codomain.size, :] if self.problem.nondifferentiable.size else block

    def everything(self, start: int, stop: int) -> Array:
        """The same with the rows of the outputs without derivative below."""
        if (batch := self._together(start, stop)) is not None:
            return batch.T / self.step
        return self._one_by_one(start, stop)

    def corrected(self, block: Array, derivative: Array, corner: tuple[int, int]) -> Array:
        """A block that begins at `corner`, with plain calls for columns that seem to differ from the derivative.

        A vectorised call may round the same number differently from point to point.
        """
        if self.__dict__.get("trusted") is None:
            return block
        xp, tolerance = namespace(block), self.projections.options.tolerance
        # Of a complex number, one coordinate has this part of the difference at least.
        allowed = (tolerance.absolute + tolerance.relative * xp.abs(block)) / 2**0.5
        wrong = xp.any(~(xp.abs(derivative - block) <= allowed), axis=0)
        for column in [int(index) for index in xp.nonzero(wrong)[0]]:
            plain = self._one_by_one(corner[1] + column, corner[1] + column + 1)
            block[:, column] = plain[corner[0] : corner[0] + block.shape[0], 0]
        return block

    def _one_by_one(self, start: int, stop: int) -> Array:
        problem, scales = self.problem, (self.step, -self.step)

        def columns(first: int, last: int) -> list[Array]:
            steps = problem.unit_steps(first, last)
            return [problem.weighted(step, scales, (1.0, -1.0)) for step in steps]

        found = _stacked(problem, columns, range(start, stop), problem.value.shape[0])
        found /= 2.0 * self.step
        return found.T

    @cached_property
    def trusted(self) -> BatchEvaluator | None:
        """The vectorised evaluation if it agrees with plain calls along a random direction and is faster.

        Calls the function at two points, once to see whether it keeps tensors, and at two more, whose time is taken;
        the vectorised one at eight.
        """
        projections, problem = self.projections, self.problem
        if not problem.independent:
            return None
        try:
            direction = projections.two_sided_along(projections.unit_direction(0), 1.0)
        except OutOfReachError:
            return None
        # The first call may compile something.
        if not self._is_right(problem.evaluate_together, direction, 2):
            return None
        started = time.thread_time()
        self._one_by_one(0, 1)
        two_calls = time.thread_time() - started
        started = time.thread_time()
        right = self._is_right(problem.evaluate_together, direction, TIMED_POINTS)
        is_faster = time.thread_time() - started < two_calls * TIMED_POINTS / 2
        return problem.evaluate_together if right and is_faster else None

    def _is_right(self, evaluate: BatchEvaluator, direction: ProbeDirection, points: int) -> bool:
        d, plain = direction.displacement[None, :], direction.difference
        values = evaluate(_concat([d, -d] * (points // 2)))
        if values is None:
            return False
        found = (values[-2, :] - values[-1, :])[: plain.shape[0]] / 2.0
        return agree(found / direction.step, plain / direction.step, self.projections.options.tolerance)

    def _together(self, start: int, stop: int) -> Array | None:
        """[f(x + h e_j) - f(x - h e_j)] / 2, a row for each column; None if they are better evaluated one by one."""
        problem = self.problem
        if stop - start < MIN_BATCH or not self.may_vectorise or self.trusted is None:
            return None
        numbers = problem.domain.size + problem.codomain.size + problem.nondifferentiable.size
        width = max(1, min(BLOCK // (2 * numbers), max(MIN_BATCH, CACHED_NUMBERS // (2 * numbers))))
        # Blocks that are kept one by one between larger ones would split the memory that these leave.
        found = problem.zeros((stop - start, numbers - problem.domain.size))
        for first in range(start, stop, width):
            block = self._block(first, min(first + width, stop))
            if block is None:
                return None
            found[first - start : first - start + width, :] = block
        return found

    def _block(self, start: int, stop: int) -> Array | None:
        number, problem = stop - start, self.problem
        ahead = self.step * unit_rows(problem.zeros((number, problem.domain.size)), start)
        assert self.trusted is not None
        values = self.trusted(_concat([ahead, -ahead]))
        return None if values is None else (values[:number, :] - values[number:, :]) / 2.0


def _stacked(problem: Problem, vectors: Callable[[int, int], Sequence[Array]], numbers: range, size: int) -> Array:
    """Vectors of this size, made by first and last + 1 of their numbers, as the rows of a matrix."""
    most = max(1, STACKED // max(size, problem.domain.size, problem.codomain.size, 1))
    if 0 < len(numbers) <= most:
        return _stack(vectors(numbers.start, numbers.stop))
    found = problem.zeros((len(numbers), size))
    for first in range(numbers.start, numbers.stop, most):
        last = min(first + most, numbers.stop)
        found[first - numbers.start : last - numbers.start, :] = _stack(vectors(first, last))
    return found


def _stack(vectors: Sequence[Array]) -> Array:
    return vectors[0][None, :] if len(vectors) == 1 else namespace(vectors[0]).stack(vectors)


def _concat(blocks: Sequence[Array]) -> Array:
    return namespace(blocks[0]).concat(blocks, axis=0)


def forward_columns(problem: Problem, start: int, stop: int) -> Array:
    """Columns of the Jacobian by forward mode, one JVP each."""
    tangent = problem.zeros(problem.domain.size)
    found = []
    for index in range(start, stop):
        tangent[index] = 1.0
        found.append(problem.jvp(tangent))
        tangent[index] = 0.0
    return namespace(tangent).stack(found, axis=1)


class ReverseJacobian:
    """The Jacobian by reverse mode, one row per VJP, output by output; a large one is computed again for each block of
    columns.

    Batched passes are tried if that costs at most `spare` evaluations.
    """

    def __init__(self, projections: Projections, spare: float = math.inf) -> None:
        self.projections, self.may_batch = projections, spare > MIN_BATCH
        self.codomain, self.width = projections.problem.codomain, projections.problem.domain.size
        self._kept: dict[int, Array] = {}
        self._faster: dict[int, bool] = {}
        """By output, whether batched passes take less time."""
        self.fits = self.codomain.size * self.width <= BLOCK
        """Whether one backward pass per row is enough."""

    def columns(self, start: int, stop: int) -> Array:
        outputs = range(len(self.codomain.leaves))
        return _concat([self.rows_of(output, range(start, stop)) for output in outputs])

    def rows_of(self, output: int, columns: Sequence[int]) -> Array:
        """The rows of one output, in some columns in ascending order."""
        if not self.fits:
            return self._stack(output, columns)
        if output not in self._kept:
            self._kept[output] = self._stack(output, range(self.width))
        kept = self._kept[output]
        return kept if len(columns) == self.width else kept[:, list(columns)]

    def _stack(self, output: int, columns: Sequence[int]) -> Array:
        # A selection by a list is a copy; a slice would keep its whole row in memory.
        is_whole = len(columns) == self.width
        selection = slice(None) if is_whole else list(columns)
        if self.may_batch and (batch := self._batch(output, selection)) is not None:
            return batch
        self.may_batch = False

        def rows(first: int, last: int) -> list[Array]:
            found = self.projections.rows(output, first, last)
            return found if is_whole else [row[selection] for row in found]

        number = self.codomain.leaves[output].coordinates.size
        return _stacked(self.projections.problem, rows, range(number), len(columns))

    def _batch(self, output: int, selection: slice | list[int]) -> Array | None:
        """Columns of the rows of an output by batched backward passes, if a plain pass with a random cotangent gives
        the same.
        """
        problem, rows = self.projections.problem, self.codomain.leaves[output].coordinates.size
        if rows < MIN_BATCH or MIN_BATCH * (rows + self.width) > BLOCK:
            return None
        if output not in self._faster:
            self._faster[output] = self._is_faster(output)
        if not self._faster[output]:
            return None
        width = self.width if isinstance(selection, slice) else len(selection)
        # In one piece from the start, as differences are.
        matrix = problem.zeros((rows, width))
        chunk = max(MIN_BATCH, CACHED_NUMBERS // (rows + self.width))
        for at in range(0, rows, chunk):
            block = problem.vjp_rows(output, at, min(at + chunk, rows))
            if block is None:
                return None
            matrix[at : at + chunk, :] = block[:, selection]
        probe = self.projections.probe_cotangents(1)[0]
        v, expected = probe.v, probe.vjp
        if len(self.codomain.leaves) > 1:
            v = v[self.codomain.slices[output]]
            expected = problem.vjp_of_output(output, v)
        return matrix if agree(v @ matrix, expected[selection], self.projections.options.tolerance) else None

    def _is_faster(self, output: int) -> bool:
        """Whether a batch of rows takes less time than as many single passes. Runs both once."""
        projections = self.projections
        first = projections.problem.codomain.offsets[output]
        started = time.thread_time()
        projections.row(first)
        single = time.thread_time() - started
        started = time.thread_time()
        found = projections.problem.vjp_rows(output, 0, MIN_BATCH)
        return found is not None and time.thread_time() - started < single * MIN_BATCH
