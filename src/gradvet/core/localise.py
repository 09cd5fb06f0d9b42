"""From projections that disagree to entries that are wrong, in a few evaluations instead of one per entry.

A residual v·Δu is a sum over rows and columns of Δ. Masking half of v needs one backward pass and tells how much of it
each half of the rows contributes; following the larger half leads to a row in about log₂(m) passes. The same with the
direction and two evaluations each leads to a column. The entries that are found still have to be judged: they are
where the difference is largest, not necessarily where it exceeds the tolerance.

What is not finite spoils every sum that it is in, so halving leads nowhere; but it shows where it is by itself. And
where a single entry or column is wrong, its fingerprint in a few products spares the search.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

from gradvet.core.context import Context
from gradvet.core.decision import Entry, ErrorScale, decide
from gradvet.core.extrapolation import Estimate, fit_slope, sweep_figure
from gradvet.core.finite_differences import Prediction, bend_along, middle_step, slope_along
from gradvet.core.gradient_match import inherited
from gradvet.core.modes import Mode
from gradvet.core.projections import ProbeDirection, Projections
from gradvet.core.results import Verdict
from gradvet.core.spaces import Array
from gradvet.core.vectors import dot, namespace

DESCENTS = 4
"""Searches that start from different probes, to find more than one wrong entry."""


class Search(Protocol):
    """What differs between a derivative known by rows and one known by columns."""

    def not_finite(self, direction: ProbeDirection) -> tuple[int, int] | None:
        """An entry where the derivative is not finite, if there seems to be one."""
        ...

    def alone(self) -> tuple[int, int] | None:
        """An entry of the only column that seems to be wrong, if there seems to be only one."""
        ...

    def row(self, direction: ProbeDirection, number: int) -> int:
        """The row that contributes most to the disagreement along a direction."""
        ...

    def slope(self, row: int, displacement: Array) -> float:
        """The derivative under test: one row of J times a displacement."""
        ...


def locate(projections: Projections, search: Search) -> list[tuple[int, int]]:
    """Entries (row, column) where the derivative and the differences seem to differ most."""
    first = projections.probe_directions(1)[0]
    spoiled = search.not_finite(first)
    if spoiled is not None:
        return [spoiled]
    alone = search.alone()
    if alone is not None:
        return [alone]
    found: list[tuple[int, int]] = []
    for number in range(DESCENTS):
        direction = projections.probe_directions(number + 1)[number]
        row = search.row(direction, number)
        entry = (row, _column(projections, search, direction, row))
        if entry not in found:
            found.append(entry)
    return found


def _column(projections: Projections, search: Search, direction: ProbeDirection, row: int) -> int:
    """The column that contributes most to the disagreement of a row along a direction."""
    problem = projections.problem

    def part(start: int, stop: int) -> float:
        displacement = _window(direction.displacement, start, stop)
        difference = projections.difference_along(displacement)
        return float(difference[row]) - search.slope(row, displacement)

    whole = float(direction.difference[row]) - search.slope(row, direction.displacement)
    return bisect_sum(part, problem.domain.size, whole)


class ByRows:
    """The search with a derivative in reverse mode."""

    def __init__(self, projections: Projections) -> None:
        self.projections = projections

    def not_finite(self, direction: ProbeDirection) -> tuple[int, int] | None:
        problem = self.projections.problem
        gradients = [_first_not_finite(probe.vjp) for probe in self.projections.probe_cotangents(1)]
        spoiled = next((column for column in gradients if column is not None), None)
        if spoiled is None:
            return None
        displacement = problem.zeros(problem.domain.size)
        displacement[spoiled] = direction.step
        slopes = self.projections.difference_along(displacement)[: problem.codomain.size]
        return _largest(slopes), spoiled

    def alone(self) -> tuple[int, int] | None:
        directions, probes = self.projections.probe_directions(VECTORS), self.projections.probe_cotangents(VECTORS)
        xp = namespace(directions[0].difference)
        V, W = xp.stack([probe.v for probe in probes]), xp.stack([probe.vjp for probe in probes])
        D, U = xp.stack([one.difference for one in directions]), xp.stack([one.displacement for one in directions])
        products = V @ D.T - W @ U.T
        column = match_single_entry([one.displacement for one in directions], products)
        if column is None:
            return None
        row = match_single_entry([probe.v for probe in probes], products.T)
        return (self._row_of(column, directions[0].step) if row is None else row), column

    def _row_of(self, column: int, step: float) -> int:
        """The row that contributes most to the disagreement of a column."""
        problem = self.projections.problem
        displacement = problem.zeros(problem.domain.size)
        displacement[column] = step
        difference = self.projections.difference_along(displacement)[: problem.codomain.size]
        v = problem.signed(problem.codomain.size)

        def part(start: int, stop: int) -> float:
            window = _window(v, start, stop)
            return float(window @ difference) - float(problem.vjp(window)[column]) * step

        return bisect_sum(part, len(difference), part(0, len(difference)))

    def row(self, direction: ProbeDirection, number: int) -> int:
        spoiled = _first_not_finite(direction.difference)
        if spoiled is not None:
            return spoiled
        problem = self.projections.problem
        v = problem.signed(len(direction.difference))

        def part(start: int, stop: int) -> float:
            window = _window(v, start, stop)
            return float(window @ direction.difference) - float(problem.vjp(window) @ direction.displacement)

        return bisect_sum(part, len(direction.difference), part(0, len(direction.difference)))

    def slope(self, row: int, displacement: Array) -> float:
        return float(self.projections.row(row) @ displacement)


class ByColumns:
    """The search with a derivative in forward mode, which shows all rows at once."""

    def __init__(self, projections: Projections) -> None:
        self.projections = projections

    def not_finite(self, direction: ProbeDirection) -> tuple[int, int] | None:
        row = _first_not_finite(self.projections.probe_jvps(1)[0])
        if row is None:
            return None
        problem = self.projections.problem

        def part(start: int, stop: int) -> float:
            return float(self.projections.difference_along(_window(direction.displacement, start, stop))[row])

        return row, bisect_sum(part, problem.domain.size, float(direction.difference[row]))

    def alone(self) -> tuple[int, int] | None:
        directions = self.projections.probe_directions(VECTORS)
        xp = namespace(directions[0].difference)
        jvp = self.projections.probe_jvps(VECTORS)
        gaps = xp.stack([one.difference - known for one, known in zip(directions, jvp, strict=True)])
        column = match_single_entry([one.displacement for one in directions], gaps.T)
        return None if column is None else (_largest(gaps[0, :]), column)

    def row(self, direction: ProbeDirection, number: int) -> int:
        return _largest(direction.difference - self.projections.problem.jvp(direction.displacement))

    def slope(self, row: int, displacement: Array) -> float:
        return float(self.projections.problem.jvp(displacement)[row])


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


def bisect_sum(part: Callable[[int, int], float], size: int, whole: float) -> int:
    """Follow the larger half of a sum down to one index; `part(start, stop)` is the sum over a range."""
    start, stop = 0, size
    while stop - start > 1:
        middle = (start + stop) // 2
        left = part(start, middle)
        right = whole - left
        # What is not a number draws the search to itself.
        if not abs(left) < abs(right):
            stop, whole = middle, left
        else:
            start, whole = middle, right
    return start


VECTORS = 3
"""So many directions, and as many codirections, tell one of a million entries from the others."""

SAME_DIRECTION = 1e-6
"""By how much the cosine between two proportions that are the same may fall short of one."""


def match_single_entry(vectors: Sequence[Array], products: Array) -> int | None:
    """The index whose weights in the vectors are in the proportion of each row of the products; None if none is.

    The products have a column for each vector.
    """
    xp = namespace(products)
    squares = xp.sum(products * products, axis=1)
    top = int(xp.argmax(squares))
    pattern = products[top, :] / squares[top] ** 0.5
    along = products @ pattern
    # What is not a number is in no proportion to anything.
    if not float(xp.max(squares - along * along)) <= SAME_DIRECTION * float(squares[top]):
        return None
    weights = xp.stack(list(vectors))
    cosines = xp.abs(pattern @ weights) / xp.sqrt(xp.sum(weights * weights, axis=0))
    best = int(xp.argmax(cosines))
    return best if float(cosines[best]) >= 1.0 - SAME_DIRECTION else None


FINER = 2.0**-12
"""By so much the steps are narrowed."""

LARGE = 64.0
"""Numbers beyond this are also moved by steps of size one."""

ROWS_OF_COLUMN = 16
"""So many outputs are looked at where a column has no finite derivative."""


def find_wrong_entry(context: Context, mode: Mode, u: Array, v: Array) -> Entry | None:
    """The entry that contributes most to the disagreement of v·J·u, judged by a ladder of its own."""
    problem = context.problem
    step = middle_step(context.problem.eps)
    slope, displacement = slope_along(context.problem, u, step)
    row = _wrong_row(context, mode, v, slope, displacement)
    if row is None:
        return None
    unit = problem.zeros(problem.codomain.size)
    unit[row] = 1.0
    vjp = problem.vjp(unit) if mode.name == "reverse" else unit

    def part(start: int, stop: int) -> float:
        window = _window(u, start, stop)
        change, moved = slope_along(context.problem, window, step)
        return float(change[row]) - _predicted(context, mode, row, vjp, moved)

    column = bisect_sum(part, u.shape[0], float(slope[row]) - _predicted(context, mode, row, vjp, displacement))
    return test_entry(context, mode, row, column)


def test_entry(context: Context, mode: Mode, row: int, column: int) -> Entry:
    """One entry by a ladder along its own column; a wrong one also by narrower steps, lest those were too wide for it.

    They are of the size of the number itself, of size one if that is large, or much smaller: a function may oscillate,
    or end, on a scale that its inputs do not show.
    """
    size = float(context.lengths[column])
    own = abs(float(context.problem.point[column]))
    entry = _laddered(context, mode, (row, column), size)
    narrower = [own] if 0.0 < own < size / 2.0 else []
    narrower += [1.0] if size > LARGE else []
    for other in narrower:
        if entry.verdict is not Verdict.PASS:
            finer = _laddered(context, mode, (row, column), other)
            entry = finer if entry.verdict is not Verdict.FAIL or _speaks_against(finer, entry) else entry
    if entry.verdict is not Verdict.PASS and context.is_double and context.computes_in_io_dtype:
        # Much narrower steps show the slope of any noise: they may speak for a derivative, but not against it.
        finer = _laddered(context, mode, (row, column), FINER * size)
        entry = finer if _speaks_against(finer, entry) else entry
    return entry


def _speaks_against(finer: Entry, entry: Entry) -> bool:
    """Whether an agreement is close enough to speak against a disagreement."""
    return finer.verdict is Verdict.PASS and 2.0 * finer.error < abs(entry.derivative - entry.numerical)


def _laddered(context: Context, mode: Mode, place: tuple[int, int], size: float) -> Entry:
    problem = context.problem
    row, column = place
    unit, u = problem.zeros(problem.codomain.size), problem.zeros(problem.domain.size)
    unit[row], u[column] = 1.0, size
    cotangent = context.cotangent(unit)
    prediction = mode.predictions(context, u, [cotangent])[0]
    step_sweep = context.sweep_steps(u, [prediction], few=True)[0]
    fit = fit_slope(step_sweep)
    value = prediction.predicted(u, 1.0)
    scale_of_error = ErrorScale(
        abs(value), abs(value), problem.eps, inherited(context, unit) if context.is_double else 0.0
    )
    decision = decide(fit, scale_of_error, math.inf)
    return Entry(
        problem.codomain.locate(row),
        problem.domain.locate(column),
        value / size,
        (value + fit.error.value) / size,
        fit.error.error / size,
        decision,
        row,
        column,
        sweep_figure(step_sweep, fit, size),
    )


def slope_of_column(context: Context, column: int) -> Estimate | None:
    """The slope along one coordinate, over all outputs that it moves; None if it is not finite for one of them.

    Outputs are looked at one by one, up to a few: an infinite slope in one of them must not hide in a sum.
    """
    problem = context.problem
    u = problem.zeros(problem.domain.size)
    u[column] = context.lengths[column]
    xp = namespace(u)
    change = (
        bend_along(context.problem, u, middle_step(context.problem.eps)),
        slope_along(context.problem, u, middle_step(context.problem.eps))[0],
    )
    moved = [int(row) for row in xp.nonzero((change[0] != 0.0) | (change[1] != 0.0))[0][:ROWS_OF_COLUMN]]
    units = []
    for row in moved:
        unit = problem.zeros(problem.codomain.size)
        unit[row] = 1.0
        units.append(unit)
    predictions = [Prediction(unit, lambda displacement, t: 0.0) for unit in units]
    found = Estimate(0.0, 0.0)
    for row, step_sweep in zip(moved, context.sweep_steps(u, predictions), strict=True):
        fit = fit_slope(step_sweep)
        if not math.isfinite(fit.error.error) or fit.steep or fit.jump:
            return None
        if not math.isfinite(float(problem.value[row])):
            return None
        if abs(fit.error.value) > abs(found.value):
            found = fit.error
    return found


def _predicted(context: Context, mode: Mode, row: int, vjp: Array, moved: Array) -> float:
    if mode.name == "reverse":
        return dot(vjp, moved)
    return float(context.problem.jvp(moved)[row])


def _wrong_row(context: Context, mode: Mode, v: Array, slope: Array, displacement: Array) -> int | None:
    """The row that contributes most; by masking the codirection where the mode shows only combinations of rows."""
    xp = namespace(v)
    gap = mode.column_gap(context, v, slope, displacement)
    if gap is not None:
        gap = xp.where(v != 0.0, xp.abs(gap), xp.zeros_like(gap))
        return int(xp.argmax(gap))

    def part(start: int, stop: int) -> float:
        window = _window(v, start, stop)
        return dot(window, slope) - dot(context.problem.vjp(window), displacement)

    return bisect_sum(part, v.shape[0], part(0, v.shape[0])) if v.shape[0] else None
