"""Decides where projections could not: looks for wrong entries first, and compares all of them if none is found."""

from __future__ import annotations

from collections.abc import Iterator

from gradvet.core.arithmetic import namespace
from gradvet.core.certificate import larger
from gradvet.core.compare import Axis, Comparison
from gradvet.core.experiment import Experiment, OutOfReachError
from gradvet.core.jacobians import BLOCK, Jacobian, Numerical, Pulled, Pushed
from gradvet.core.locate import ByColumns, ByRows, locate
from gradvet.core.probes import Plan, resolving_ratio
from gradvet.core.spaces import Array, Space

SWEPT = 1024
"""Where all columns and rows together take no more evaluations than this, they are compared at once."""

SMALL = 4
"""So few rows are compared entry by entry at once, without a look through random codirections first."""

SCREENING = 3
"""Codirections through which a column is looked at before its entries are."""


def compare_reverse(experiment: Experiment) -> Comparison:
    """Reverse mode against differences: wrong entries if there are any, else all entries."""
    problem = experiment.problem
    if 2 * problem.domain.size + problem.codomain.size > SWEPT and _may_search(experiment):
        found = Comparison(problem, experiment.options.tolerance, Axis.INPUTS)
        numerical = Numerical(experiment)
        for row, column in _located(experiment, ByRows(experiment)):
            start, stop = _number(problem.domain, column)
            entries = experiment.row(row)[None, start:stop]
            found.add((row, start), numerical.columns(start, stop)[row : row + 1, :], entries)
        if found.disagrees:
            found.complete = False
            return found
    return _sweep(experiment, Pulled(experiment), Axis.INPUTS)


def compare_forward(experiment: Experiment) -> Comparison:
    """Forward mode against differences: wrong entries if there are any, else all entries."""
    problem = experiment.problem
    pushed = Pushed(problem)
    if 3 * problem.domain.size > SWEPT and _may_search(experiment):
        found = Comparison(problem, experiment.options.tolerance, Axis.OUTPUTS)
        numerical = Numerical(experiment)
        for _, column in _located(experiment, ByColumns(experiment)):
            found.add((0, column), numerical.columns(column, column + 1), pushed.columns(column, column + 1))
        if found.disagrees:
            found.complete = False
            return found
    return _sweep(experiment, pushed, Axis.OUTPUTS)


def _may_search(experiment: Experiment) -> bool:
    """Whether a search along random directions may name wrong entries before all are compared."""
    return experiment.problem.independent and not experiment.options.exhaustive


def _located(experiment: Experiment, search: ByRows | ByColumns) -> list[tuple[int, int]]:
    """Entries that seem wrong; none where the function cannot be walked far enough to search."""
    try:
        return locate(experiment, search)
    except OutOfReachError:
        return []


def _number(domain: Space, column: int) -> tuple[int, int]:
    """First and last + 1 of the coordinates that make up the number to which a column belongs."""
    leaf = domain.locate(column).leaf
    parts = domain.leaves[leaf].coordinates.parts
    start = column - (column - domain.offsets[leaf]) % parts
    return start, start + parts


def _sweep(experiment: Experiment, derivative: Jacobian, axis: Axis) -> Comparison:
    """Every entry, in blocks of columns; a block that random codirections certify is not looked at further."""
    problem = experiment.problem
    numerical = Numerical(experiment)
    comparison = Comparison(problem, experiment.options.tolerance, axis)
    for start, stop in _blocks(problem.domain, problem.codomain.size):
        block = numerical.columns(start, stop)
        if isinstance(derivative, Pulled):
            if not _suspicious(experiment, block, start, stop):
                comparison.miss = experiment.options.miss
                continue
            if comparison.disagrees and not derivative.fits:
                comparison.complete = False
                break
        comparison.add((0, start), block, derivative.columns(start, stop))
    return comparison


def _blocks(domain: Space, rows: int) -> Iterator[tuple[int, int]]:
    """Start and stop of blocks of columns that fit in memory and split neither a leaf nor a complex number."""
    width = max(2, BLOCK // max(1, rows) // 2 * 2)
    for leaf in range(len(domain.leaves)):
        section = domain.slice(leaf)
        for start in range(section.start, section.stop, width):
            yield start, min(start + width, section.stop)


def _suspicious(experiment: Experiment, block: Array, start: int, stop: int) -> bool:
    """Whether random codirections cannot show that these columns agree. Few rows are always looked at."""
    if block.shape[0] <= SMALL or not experiment.linear or experiment.options.exhaustive:
        return True
    xp = namespace(block)
    options = experiment.options
    residual = 0.0
    for number in range(SCREENING):
        probe = experiment.codirections(number + 1)[number]
        found = float(xp.max(xp.abs(probe.v @ block - probe.pulled[start:stop])))
        residual = larger(residual, found)
        ratio = resolving_ratio(options.miss / SCREENING, Plan(None, number + 1))
        if residual <= ratio * options.tolerance.absolute / 2**0.5:
            return False
    return True
