"""The Jacobian by finite differences alone: every column by a step sweep, every entry with an error bar."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gradvet.core.context import Context
from gradvet.core.extrapolation import SlopeFit, fit_slope
from gradvet.core.finite_differences import Cotangent, middle_step, steps_for, sweep_steps
from gradvet.core.problem import Problem
from gradvet.core.vectors import Array, Coordinates, Space, finite_part, namespace, unit, unit_rows
from gradvet.errors import InvalidProblemError
from gradvet.options import Options


@dataclass(frozen=True, slots=True)
class NumericalJacobian:
    """Blocks of slopes by output and input; each has the output's shape followed by the input's.

    A complex number is two real ones: its shape has a 2 (real, imaginary) at its end. The error is infinite where no
    slope was found: the input or the output is not finite there, the function jumps, or the input is a subnormal number
    with too few digits for a step.
    """

    values: tuple[tuple[Array, ...], ...]
    errors: tuple[tuple[Array, ...], ...]
    outputs: tuple[str, ...]
    inputs: tuple[str, ...]

    @property
    def value(self) -> Array:
        """The only block."""
        return _only(self.values)

    @property
    def error(self) -> Array:
        """The error bars of the only block."""
        return _only(self.errors)


def _only(blocks: tuple[tuple[Array, ...], ...]) -> Array:
    if len(blocks) != 1 or len(blocks[0]) != 1:
        raise InvalidProblemError("there are several outputs or inputs: take a block of `values` or `errors`")
    return blocks[0][0]


Estimate = tuple[float, float]
"""A slope and its error bar."""


def measured_jacobian(problem: Problem) -> NumericalJacobian:
    """The Jacobian of all outputs, those without derivative last. Calls the function."""
    context = Context(problem, Options(seed=0))
    codomain = Space((*problem.codomain.leaves, *problem.nondifferentiable.leaves))
    noise = problem.evaluate_at(problem.zeros(problem.domain.size)).values - problem.value
    repeat_noise = context.xp.abs(finite_part(noise))
    columns = [_nearest(context, column, repeat_noise) for column in range(problem.domain.size)]
    rows = [[column[row] for column in columns] for row in range(codomain.size)]
    xp = namespace(problem.value)

    def blocks(number: int) -> tuple[tuple[Array, ...], ...]:
        numbers = [[estimate[number] for estimate in row] for row in rows]
        matrix = xp.reshape(xp.asarray(numbers, dtype=xp.float64, device="cpu"), (codomain.size, problem.domain.size))
        return tuple(
            tuple(
                xp.reshape(matrix[here, there], (*_shape(output.coordinates), *_shape(source.coordinates)))
                for there, source in zip(problem.domain.slices, problem.domain.leaves, strict=True)
            )
            for here, output in zip(codomain.slices, codomain.leaves, strict=True)
        )

    names = tuple(leaf.name for leaf in codomain.leaves), tuple(leaf.name for leaf in problem.domain.leaves)
    return NumericalJacobian(blocks(0), blocks(1), *names)


def _nearest(context: Context, column: int, repeat_noise: Array) -> list[Estimate]:
    """The slope of every output along one coordinate.

    Large steps may miss the behaviour next to a small number, so such a number is moved by its own size as well.
    """
    size, own = float(context.lengths[column]), abs(float(context.problem.point[column]))
    if not math.isfinite(own):
        return [(math.nan, math.inf)] * repeat_noise.shape[0]
    found = _column(context, column, size, repeat_noise)
    if not 0.0 < own < size / 2.0:
        return found
    return [_nearer(*pair) for pair in zip(found, _column(context, column, own, repeat_noise), strict=True)]


def _column(context: Context, column: int, size: float, repeat_noise: Array) -> list[Estimate]:
    """The slope of every output along one coordinate, with about this step length; none if steps are lost to rounding.

    The step length is a power of two: a step from zero is then not rounded in any format.
    """
    problem, steps, rows = context.problem, steps_for(context.problem.eps), repeat_noise.shape[0]
    length = 2.0 ** math.floor(math.log2(size))
    u = unit(problem.zeros(problem.domain.size), column, length)
    units = unit_rows(problem.zeros((rows, rows)), 0)
    realised: dict[float, float] = {}

    def no_change(_: Cotangent, __: Array, displacement: Array, t: float) -> float:
        realised[t] = float(displacement[column])
        return 0.0

    cotangents = [Cotangent(units[row, :], u) for row in range(rows)]
    sweeps = sweep_steps(problem, u, cotangents, no_change, repeat_noise, steps, problem.eps)
    middle = middle_step(problem.eps)
    if realised and not 0.5 < realised[middle] / length / middle < 2.0:  # a subnormal number has few digits, or none
        return [(math.nan, math.inf)] * rows
    return [_slope(fit_slope(step_sweep), length) for step_sweep in sweeps]


def _slope(fit: SlopeFit, size: float) -> Estimate:
    """A value and its error bar: infinite where there is no slope, half the difference of two slopes at a kink."""
    bar = math.inf if fit.is_steep or fit.jumps else fit.error.error
    if fit.has_kink_plateau:
        bar += abs(fit.kink.value) + fit.kink.error
    return fit.error.value / size, bar / size


def _nearer(wide: Estimate, near: Estimate) -> Estimate:
    """The more accurate of two estimates that agree; otherwise the one with the smaller steps."""
    return near if near[1] < wide[1] or abs(wide[0] - near[0]) > wide[1] + near[1] else wide


def _shape(coordinates: Coordinates) -> tuple[int, ...]:
    """The shape of a block's axes; of a leaf whose coordinates have no shape, such as a sparse one, their number."""
    shape = getattr(coordinates, "shape", None)
    if shape is None:
        return (coordinates.size,)
    return (*shape, 2) if coordinates.parts == 2 else tuple(shape)
