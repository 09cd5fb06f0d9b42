"""From projections that disagree to entries that are wrong, in a few evaluations instead of one per entry.

A residual v·Δu is a sum over rows and columns of Δ. Masking half of v needs one backward pass and tells how much of it
each half of the rows contributes; following the larger half leads to a row in about log₂(m) passes. The same with the
direction and two evaluations each leads to a column. The entries that are found still have to be judged: they are
where the difference is largest, not necessarily where it exceeds the tolerance.

What is not finite spoils every sum that it is in, so halving leads nowhere; but it shows where it is by itself. And
where a single entry or column is wrong, its fingerprint in a few products spares the search.
"""

from __future__ import annotations

from typing import Protocol

from gradvet.core.arithmetic import namespace
from gradvet.core.descent import descend
from gradvet.core.experiment import Direction, Experiment
from gradvet.core.fingerprints import VECTORS, bearer
from gradvet.core.spaces import Array

DESCENTS = 4
"""Searches that start from different probes, to find more than one wrong entry."""


class Search(Protocol):
    """What differs between a derivative known by rows and one known by columns."""

    def not_finite(self, direction: Direction) -> tuple[int, int] | None:
        """An entry where the derivative is not finite, if there seems to be one."""
        ...

    def alone(self) -> tuple[int, int] | None:
        """An entry of the only column that seems to be wrong, if there seems to be only one."""
        ...

    def row(self, direction: Direction, number: int) -> int:
        """The row that contributes most to the disagreement along a direction."""
        ...

    def slope(self, row: int, displacement: Array) -> float:
        """The derivative under test: one row of J times a displacement."""
        ...


def locate(experiment: Experiment, search: Search) -> list[tuple[int, int]]:
    """Entries (row, column) where the derivative and the differences seem to differ most."""
    first = experiment.directions(1)[0]
    spoiled = search.not_finite(first)
    if spoiled is not None:
        return [spoiled]
    alone = search.alone()
    if alone is not None:
        return [alone]
    found: list[tuple[int, int]] = []
    for number in range(DESCENTS):
        direction = experiment.directions(number + 1)[number]
        row = search.row(direction, number)
        entry = (row, _column(experiment, search, direction, row))
        if entry not in found:
            found.append(entry)
    return found


def _column(experiment: Experiment, search: Search, direction: Direction, row: int) -> int:
    """The column that contributes most to the disagreement of a row along a direction."""
    problem = experiment.problem

    def part(start: int, stop: int) -> float:
        displacement = _window(direction.displacement, start, stop)
        difference = experiment.walked(displacement)
        return float(difference[row]) - search.slope(row, displacement)

    whole = float(direction.difference[row]) - search.slope(row, direction.displacement)
    return descend(part, problem.domain.size, whole)


class ByRows:
    """The search with a derivative in reverse mode."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment

    def not_finite(self, direction: Direction) -> tuple[int, int] | None:
        problem = self.experiment.problem
        gradients = [_first_not_finite(probe.pulled) for probe in self.experiment.codirections(1)]
        spoiled = next((column for column in gradients if column is not None), None)
        if spoiled is None:
            return None
        displacement = problem.zeros(problem.domain.size)
        displacement[spoiled] = direction.step
        slopes = self.experiment.walked(displacement)[: problem.codomain.size]
        return _largest(slopes), spoiled

    def alone(self) -> tuple[int, int] | None:
        directions, probes = self.experiment.directions(VECTORS), self.experiment.codirections(VECTORS)
        xp = namespace(directions[0].difference)
        V, W = xp.stack([probe.v for probe in probes]), xp.stack([probe.pulled for probe in probes])
        D, U = xp.stack([one.difference for one in directions]), xp.stack([one.displacement for one in directions])
        products = V @ D.T - W @ U.T
        column = bearer([one.displacement for one in directions], products)
        if column is None:
            return None
        row = bearer([probe.v for probe in probes], products.T)
        return (self._row_of(column, directions[0].step) if row is None else row), column

    def _row_of(self, column: int, step: float) -> int:
        """The row that contributes most to the disagreement of a column."""
        problem = self.experiment.problem
        displacement = problem.zeros(problem.domain.size)
        displacement[column] = step
        difference = self.experiment.walked(displacement)[: problem.codomain.size]
        v = problem.signed(problem.codomain.size)

        def part(start: int, stop: int) -> float:
            window = _window(v, start, stop)
            return float(window @ difference) - float(problem.reverse.pull(window)[column]) * step

        return descend(part, len(difference), part(0, len(difference)))

    def row(self, direction: Direction, number: int) -> int:
        spoiled = _first_not_finite(direction.difference)
        if spoiled is not None:
            return spoiled
        reverse, v = self.experiment.problem.reverse, self.experiment.problem.signed(len(direction.difference))

        def part(start: int, stop: int) -> float:
            window = _window(v, start, stop)
            return float(window @ direction.difference) - float(reverse.pull(window) @ direction.displacement)

        return descend(part, len(direction.difference), part(0, len(direction.difference)))

    def slope(self, row: int, displacement: Array) -> float:
        return float(self.experiment.row(row) @ displacement)


class ByColumns:
    """The search with a derivative in forward mode, which shows all rows at once."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment

    def not_finite(self, direction: Direction) -> tuple[int, int] | None:
        row = _first_not_finite(self.experiment.pushes(1)[0])
        if row is None:
            return None
        problem = self.experiment.problem

        def part(start: int, stop: int) -> float:
            return float(self.experiment.walked(_window(direction.displacement, start, stop))[row])

        return row, descend(part, problem.domain.size, float(direction.difference[row]))

    def alone(self) -> tuple[int, int] | None:
        directions = self.experiment.directions(VECTORS)
        xp = namespace(directions[0].difference)
        pushed = self.experiment.pushes(VECTORS)
        gaps = xp.stack([one.difference - known for one, known in zip(directions, pushed, strict=True)])
        column = bearer([one.displacement for one in directions], gaps.T)
        return None if column is None else (_largest(gaps[0, :]), column)

    def row(self, direction: Direction, number: int) -> int:
        return _largest(direction.difference - self.experiment.problem.forward.push(direction.displacement))

    def slope(self, row: int, displacement: Array) -> float:
        return float(self.experiment.problem.forward.push(displacement)[row])


def _first_not_finite(vector: Array) -> int | None:
    xp = namespace(vector)
    spoiled = ~xp.isfinite(vector)
    return int(xp.argmax(xp.astype(spoiled, xp.int64))) if bool(xp.any(spoiled)) else None


def _largest(vector: Array) -> int:
    """Where a vector is largest; what is not a number counts as infinite."""
    xp = namespace(vector)
    size = xp.abs(vector)
    return int(xp.argmax(xp.where(size == size, size, xp.full_like(size, float("inf")))))


def _window(vector: Array, start: int, stop: int) -> Array:
    """The vector between two indices, zero elsewhere."""
    xp = namespace(vector)
    window = xp.zeros_like(vector)
    window[start:stop] = vector[start:stop]
    return window
