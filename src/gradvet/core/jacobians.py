"""Whole Jacobians, a block of columns at a time: by differences, by forward mode, by reverse mode.

Each gives `columns(start, stop)`, a matrix of outputs × (stop - start) in real coordinates. Memory is bounded by the
block that is asked for; only rows of a Jacobian that is small anyway are kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cached_property
from typing import Protocol

from gradvet.core.finite_differences import CENTRAL
from gradvet.core.problem import Problem
from gradvet.core.projections import OutOfReachError, ProbeDirection, Projections
from gradvet.core.spaces import Array
from gradvet.core.vectors import namespace

BLOCK = 2_000_000
"""Entries of a Jacobian that are held at a time: 16 MB of float64."""


WORTHWHILE = 16
"""Fewer rows or columns than this are quicker one by one."""

FINE = 1e-6
"""Rounding that changes a step by less than this part of it is the same on both sides for all purposes."""

CACHED = 2**17
"""Numbers that go into a vectorised call and come out of it at a time. With more, the memory takes longer than the
call."""

TRUSTED = 1e-4
"""A vectorised result may differ from a plain one by this part of the absolute tolerance."""


class Jacobian(Protocol):
    """A matrix of outputs × inputs that is known by blocks of columns."""

    def columns(self, start: int, stop: int) -> Array: ...


def agree(batched: Array, plain: Array, tolerance: float) -> bool:
    """Whether a vectorised result is what plain calls give."""
    xp = namespace(plain)
    return bool(xp.all(xp.abs(batched - plain) <= TRUSTED * tolerance + 1e-9 * xp.abs(plain)))


BatchEvaluator = Callable[[Array], Array | None]
"""The outputs at several displaced points, a row for each; None where that is impossible."""


class BatchedEvaluation:
    """Columns of differences from vectorised calls: only where they give what plain calls give, and give it sooner."""

    def __init__(self, projections: Projections) -> None:
        self.projections = projections

    @cached_property
    def trusted(self) -> BatchEvaluator | None:
        """The first way in which a random direction, many times over, agrees with a plain walk and takes less time."""
        projections, problem = self.projections, self.projections.problem
        if not problem.independent:
            return None
        try:
            direction = projections.probe_directions(1)[0]
            started = time.thread_time()
            plain = projections.difference_along(direction.displacement)[: problem.codomain.size]
        except OutOfReachError:
            return None
        alone = time.thread_time() - started
        for evaluate in (problem.evaluate_together, problem.evaluate_replayed):
            if self._is_right(evaluate, direction, plain):
                started = time.thread_time()
                if self._is_right(evaluate, direction, plain) and time.thread_time() - started < alone * WORTHWHILE:
                    return evaluate
        return None

    def _is_right(self, evaluate: BatchEvaluator, direction: ProbeDirection, plain: Array) -> bool:
        d = direction.displacement[None, :]
        values = evaluate(_concat([d, -d] * WORTHWHILE))
        if values is None:
            return False
        found = (values[-2, :] - values[-1, :])[: plain.shape[0]] / 2.0
        return agree(found / direction.step, plain / direction.step, self.projections.options.tolerance.absolute)

    def differences(self, start: int, stop: int) -> Array | None:
        """[f(x + h e_j) - f(x - h e_j)] / 2 for the columns asked for, one row each; None if they do not batch."""
        problem = self.projections.problem
        if stop - start < WORTHWHILE or self.trusted is None:
            return None
        numbers = problem.domain.size + problem.codomain.size + problem.nondifferentiable.size
        width = max(1, min(BLOCK // (2 * numbers), max(WORTHWHILE, CACHED // (2 * numbers))))
        found = [self._block(first, min(first + width, stop)) for first in range(start, stop, width)]
        return None if any(block is None for block in found) else _concat(found)

    def _block(self, start: int, stop: int) -> Array | None:
        problem, number = self.projections.problem, stop - start
        xp = namespace(problem.zeros(1))
        ahead = problem.zeros((number, problem.domain.size))
        ahead[:, start:stop] += self.projections.options.step * xp.eye(number, dtype=ahead.dtype, device=ahead.device)
        assert self.trusted is not None
        values = self.trusted(xp.concat([ahead, -ahead]))
        return None if values is None else (values[:number, :] - values[number:, :]) / 2.0


def _concat(blocks: list[Array | None]) -> Array:
    return namespace(blocks[0]).concat(blocks, axis=0)


class Numerical:
    """By central differences, one coordinate at a time, divided by the nominal step as the classical check does."""

    def __init__(self, projections: Projections) -> None:
        self.problem, self.step = projections.problem, projections.options.step
        self._together = BatchedEvaluation(projections)
        self._fine = self.problem.keeps(self.step, FINE)

    def columns(self, start: int, stop: int) -> Array:
        """The codomain's rows of some columns."""
        return self.everything(start, stop)[: self.problem.codomain.size, :]

    def everything(self, start: int, stop: int) -> Array:
        """The same with the rows of the silent outputs below."""
        if (batch := self._together.differences(start, stop)) is not None:
            return batch.T / self.step
        found = []
        displacement = self.problem.zeros(self.problem.domain.size)
        for index in range(start, stop):
            displacement[index] = self.step
            found.append(self._difference(displacement) / self.step)
            displacement[index] = 0.0
        return namespace(displacement).stack(found, axis=1)

    def _difference(self, displacement: Array) -> Array:
        if self._fine:
            return CENTRAL.along(self.problem, self.problem.move(displacement))
        # Where a step is coarse, each side is rounded for itself: x - h need not be as far from x as x + h.
        ahead = self.problem.evaluate(self.problem.move(displacement), (1.0,))[0]
        behind = self.problem.evaluate(self.problem.move(-displacement), (1.0,))[0]
        return (ahead - behind) / 2.0


class ForwardJacobian:
    """By forward mode, one column a call."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    def columns(self, start: int, stop: int) -> Array:
        tangent = self.problem.zeros(self.problem.domain.size)
        found = []
        for index in range(start, stop):
            tangent[index] = 1.0
            found.append(self.problem.jvp(tangent))
            tangent[index] = 0.0
        return namespace(tangent).stack(found, axis=1)


class ReverseJacobian:
    """By reverse mode, one row a call. A small Jacobian is kept; the rows of a large one are pulled for each block."""

    def __init__(self, projections: Projections) -> None:
        self.projections = projections
        self.rows, self.width = projections.problem.codomain.size, projections.problem.domain.size
        self._kept: Array | None = None

    @property
    def fits(self) -> bool:
        """Whether all rows are pulled only once."""
        return self.rows * self.width <= BLOCK

    def columns(self, start: int, stop: int) -> Array:
        if not self.fits:
            return self._stack(start, stop)
        if self._kept is None:
            self._kept = self._stack(0, self.width)
        return self._kept[:, start:stop]

    def _stack(self, start: int, stop: int) -> Array:
        if self.fits and (batch := self._batch()) is not None:
            return batch
        keep = self.fits
        # Copies: a slice would keep its whole row alive.
        found = [self.projections.row(index, keep=keep)[start:stop] + 0.0 for index in range(self.rows)]
        return namespace(found[0]).stack(found, axis=0)

    def _batch(self) -> Array | None:
        """All rows by batched backward passes, if a plain pass with a random codirection gives the same."""
        problem = self.projections.problem
        blocks: list[Array | None] = []
        for output, leaf in enumerate(problem.codomain.leaves):
            rows = leaf.coordinates.size
            if rows < WORTHWHILE or not self._sooner(output):
                return None
            chunk = max(WORTHWHILE, CACHED // (rows + self.width))
            blocks += [problem.vjp_rows(output, at, min(at + chunk, rows)) for at in range(0, rows, chunk)]
        if not blocks or any(block is None for block in blocks):
            return None
        matrix, probe = _concat(blocks), self.projections.probe_cotangents(1)[0]
        return matrix if agree(probe.v @ matrix, probe.vjp, self.projections.options.tolerance.absolute) else None

    def _sooner(self, output: int) -> bool:
        """Whether a few rows together take less time than one by one."""
        projections = self.projections
        first = projections.problem.codomain.offsets[output]
        started = time.thread_time()
        projections.row(first, keep=False)
        alone = time.thread_time() - started
        started = time.thread_time()
        found = projections.problem.vjp_rows(output, 0, WORTHWHILE)
        return found is not None and time.thread_time() - started < alone * WORTHWHILE
