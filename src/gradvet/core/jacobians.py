"""Whole Jacobians, a block of columns at a time: by differences, by forward mode, by reverse mode.

Each gives `columns(start, stop)`, a matrix of outputs × (stop - start) in real coordinates. Memory is bounded by the
block that is asked for; only rows of a Jacobian that is small anyway are kept.
"""

from __future__ import annotations

from typing import Protocol

import array_api_compat

from gradvet.core.differences import CENTRAL
from gradvet.core.problem import Problem
from gradvet.core.spaces import Array

BLOCK = 2_000_000
"""Entries of a Jacobian that are held at a time: 16 MB of float64."""


class Jacobian(Protocol):
    """A matrix of outputs × inputs that is known by blocks of columns."""

    def columns(self, start: int, stop: int) -> Array: ...


class Numerical:
    """By central differences, one coordinate at a time, divided by the nominal step as the classical check does."""

    def __init__(self, problem: Problem, step: float) -> None:
        self.problem, self.step = problem, step

    def columns(self, start: int, stop: int) -> Array:
        rows = self.problem.codomain.size
        found = []
        displacement = self.problem.zeros(self.problem.domain.size)
        for index in range(start, stop):
            displacement[index] = self.step
            found.append(CENTRAL.along(self.problem, self.problem.move(displacement))[:rows] / self.step)
            displacement[index] = 0.0
        return array_api_compat.array_namespace(displacement).stack(found, axis=1)


class Pushed:
    """By forward mode, one column a call."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    def columns(self, start: int, stop: int) -> Array:
        tangent = self.problem.zeros(self.problem.domain.size)
        found = []
        for index in range(start, stop):
            tangent[index] = 1.0
            found.append(self.problem.forward.push(tangent))
            tangent[index] = 0.0
        return array_api_compat.array_namespace(tangent).stack(found, axis=1)


class Pulled:
    """By reverse mode, one row a call. A small Jacobian is kept; the rows of a large one are pulled for each block."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._kept: Array | None = None

    @property
    def fits(self) -> bool:
        """Whether all rows are pulled only once."""
        return self.problem.codomain.size * self.problem.domain.size <= BLOCK

    def columns(self, start: int, stop: int) -> Array:
        if not self.fits:
            return self._rows(start, stop)
        if self._kept is None:
            self._kept = self._rows(0, self.problem.domain.size)
        return self._kept[:, start:stop]

    def _rows(self, start: int, stop: int) -> Array:
        codomain, found = self.problem.codomain, []
        for output, leaf in enumerate(codomain.leaves):
            cotangent = self.problem.zeros(leaf.coordinates.size)
            for index in range(leaf.coordinates.size):
                cotangent[index] = 1.0
                found.append(self.problem.reverse.pull_from(output, cotangent)[start:stop])
                cotangent[index] = 0.0
        return array_api_compat.array_namespace(found[0]).stack(found, axis=0)
