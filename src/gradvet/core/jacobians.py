"""Jacobians by blocks of columns: by differences, by forward mode, by reverse mode.

Each gives the columns from `start` to `stop`, a matrix of outputs × (stop - start) in real coordinates. Memory is
bounded by the block; only rows of a small Jacobian are kept.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import cached_property

from gradvet.core import thresholds
from gradvet.core.finite_differences import CENTRAL
from gradvet.core.problem import Problem
from gradvet.core.projections import OutOfReachError, ProbeDirection, Projections
from gradvet.core.spaces import Array
from gradvet.core.vectors import namespace
from gradvet.options import Tolerance

BLOCK = 2_000_000
"""Entries of a Jacobian that are held at a time: 16 MB of float64."""

MIN_BATCH = 16
"""Smallest number of rows that are computed together: fewer take less time one by one."""

TIMED_POINTS = 8
"""Points of the vectorised call that is timed against plain calls."""

MIN_COLUMNS = 30
"""Smallest number of columns that are evaluated together: with fewer, the test of a vectorised call takes too long."""

SAME_STEP_RTOL = 1e-6
"""Relative change of a step by rounding below which both sides of a central difference have the same step. It decides
how a difference is evaluated; the results differ by this part at most."""

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
    `trial_price` evaluations; it is not tried if that is more than `spare`.
    """

    trial_price = 2 + 2 + TIMED_POINTS

    def __init__(self, projections: Projections, spare: float = math.inf) -> None:
        self.projections, self.problem, self.step = projections, projections.problem, projections.options.step
        self.may_vectorise = projections.problem.domain.size >= MIN_COLUMNS and spare >= self.trial_price

    def columns(self, start: int, stop: int) -> Array:
        """The codomain's rows of some columns."""
        block = self.everything(start, stop)
        return block[: self.problem.codomain.size, :] if self.problem.nondifferentiable.size else block

    def everything(self, start: int, stop: int) -> Array:
        """The same with the rows of the outputs without derivative below."""
        if (batch := self._together(start, stop)) is not None:
            return batch.T / self.step
        return self._one_by_one(range(start, stop))

    def corrected(self, block: Array, derivative: Array, start: int) -> Array:
        """The columns from `start` on, with plain calls for those that seem to differ from the derivative.

        A vectorised call may round the same number differently from point to point.
        """
        if self.__dict__.get("trusted") is None:
            return block
        xp, tolerance = namespace(block), self.projections.options.tolerance
        # Of a complex number, one coordinate has this part of the difference at least.
        allowed = (tolerance.absolute + tolerance.relative * xp.abs(block)) / 2**0.5
        wrong = xp.any(~(xp.abs(derivative - block) <= allowed), axis=0)
        columns = [int(column) for column in xp.nonzero(wrong)[0]]
        if columns:
            plain = self._one_by_one([start + column for column in columns])[: block.shape[0], :]
            for number, column in enumerate(columns):
                block[:, column] = plain[:, number]
        return block

    def _one_by_one(self, columns: Sequence[int]) -> Array:
        problem = self.problem
        found = problem.zeros((len(columns), problem.codomain.size + problem.nondifferentiable.size))
        displacement = problem.zeros(problem.domain.size)
        for number, index in enumerate(columns):
            displacement[index] = self.step
            found[number, :] = self._difference(displacement)
            displacement[index] = 0.0
        found /= self.step
        return found.T

    def _difference(self, displacement: Array) -> Array:
        if self._fine:
            return CENTRAL.along(self.problem, self.problem.perturbation(displacement))
        # In low precision each side is rounded by itself: x - h may be at another distance from x than x + h.
        ahead = self.problem.evaluate(self.problem.perturbation(displacement), (1.0,))[0]
        behind = self.problem.evaluate(self.problem.perturbation(-displacement), (1.0,))[0]
        return (ahead - behind) / 2.0

    @cached_property
    def _fine(self) -> bool:
        return self.problem.coarseness(self.step) <= SAME_STEP_RTOL

    @cached_property
    def trusted(self) -> BatchEvaluator | None:
        """The vectorised evaluation if it agrees with plain calls along a random direction and is faster.

        Calls the function at two points and the vectorised one at ten.
        """
        projections, problem = self.projections, self.problem
        if not problem.independent:
            return None
        try:
            started = time.thread_time()
            direction = projections.two_sided_along(projections.unit_direction(0), 1.0)
        except OutOfReachError:
            return None
        two_calls = time.thread_time() - started
        # The first call may compile something.
        if not self._is_right(problem.evaluate_together, direction, 2):
            return None
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
        found = [self._block(first, min(first + width, stop)) for first in range(start, stop, width)]
        return None if any(block is None for block in found) else _concat(found)

    def _block(self, start: int, stop: int) -> Array | None:
        problem, number = self.problem, stop - start
        xp = namespace(problem.zeros(1))
        ahead = problem.zeros((number, problem.domain.size))
        ahead[:, start:stop] += self.step * xp.eye(number, dtype=ahead.dtype, device=ahead.device)
        assert self.trusted is not None
        values = self.trusted(xp.concat([ahead, -ahead]))
        return None if values is None else (values[:number, :] - values[number:, :]) / 2.0


def _concat(blocks: Sequence[Array | None]) -> Array:
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
    """The Jacobian by reverse mode, one row per VJP; a large one is computed again for each block of columns.

    Batched passes are tried if the trial costs at most `spare` evaluations.
    """

    def __init__(self, projections: Projections, spare: float = math.inf) -> None:
        self.projections, self.may_batch = projections, spare > MIN_BATCH
        self.rows, self.width = projections.problem.codomain.size, projections.problem.domain.size
        self._kept: Array | None = None

    @property
    def fits(self) -> bool:
        """Whether one backward pass per row is enough."""
        return self.rows * self.width <= BLOCK

    def columns(self, start: int, stop: int) -> Array:
        return self.chosen(range(start, stop))

    def chosen(self, columns: Sequence[int]) -> Array:
        """Some columns, in ascending order."""
        if not self.fits:
            return self._stack(columns)
        if self._kept is None:
            self._kept = self._stack(range(self.width))
        return self._kept if len(columns) == self.width else self._kept[:, list(columns)]

    def _stack(self, columns: Sequence[int]) -> Array:
        # A selection by a list is a copy; a slice would keep its whole row in memory.
        selection = slice(None) if len(columns) == self.width else list(columns)
        if self.may_batch and (batch := self._batch(selection)) is not None:
            return batch
        self.may_batch = False
        # Row by row into one matrix: a million small vectors would take a hundred times its memory.
        found = self.projections.problem.zeros((self.rows, len(columns)))
        for index in range(self.rows):
            found[index, :] = self.projections.row(index, keep=False)[selection]
        return found

    def _batch(self, selection: slice | list[int]) -> Array | None:
        """Columns of all rows by batched backward passes, if a plain pass with a random cotangent gives the same."""
        if not self._batches_pay:
            return None
        problem = self.projections.problem
        blocks: list[Array] = []
        for output, leaf in enumerate(problem.codomain.leaves):
            rows = leaf.coordinates.size
            chunk = max(MIN_BATCH, CACHED_NUMBERS // (rows + self.width))
            for at in range(0, rows, chunk):
                block = problem.vjp_rows(output, at, min(at + chunk, rows))
                if block is None:
                    return None
                blocks.append(block[:, selection])
        matrix, probe = _concat(blocks), self.projections.probe_cotangents(1)[0]
        return matrix if agree(probe.v @ matrix, probe.vjp[selection], self.projections.options.tolerance) else None

    @cached_property
    def _batches_pay(self) -> bool:
        """Whether batched passes fit in memory and are faster for all outputs."""
        rows = [leaf.coordinates.size for leaf in self.projections.problem.codomain.leaves]
        if min(rows, default=0) < MIN_BATCH or MIN_BATCH * (self.rows + self.width) > BLOCK:
            return False
        return all(map(self._is_faster, range(len(rows))))

    def _is_faster(self, output: int) -> bool:
        """Whether a batch of rows takes less time than as many single passes. Runs both once."""
        projections = self.projections
        first = projections.problem.codomain.offsets[output]
        started = time.thread_time()
        projections.row(first)
        alone = time.thread_time() - started
        started = time.thread_time()
        found = projections.problem.vjp_rows(output, 0, MIN_BATCH)
        return found is not None and time.thread_time() - started < alone * MIN_BATCH
