"""The Jacobian by finite differences with error bars, in the shapes of the user's tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gradvet.core.context import Context
from gradvet.core.events import one_at_a_time
from gradvet.core.extrapolation import SlopeFit, fit_slope
from gradvet.core.finite_differences import Cotangent, middle_step, steps_for, sweep_steps
from gradvet.core.frontend import Request
from gradvet.core.vectors import Space
from gradvet.errors import InvalidProblemError
from gradvet.frontends.torch.arguments import nested_tensors, require_output
from gradvet.frontends.torch.binding import bind
from gradvet.frontends.torch.inputs import require_separate
from gradvet.frontends.torch.layouts.dense import Dense
from gradvet.frontends.torch.preservation import PreservedState
from gradvet.frontends.torch.problem import TorchProblem
from gradvet.frontends.torch.random_state import preserved_rng
from gradvet.options import Options


@dataclass(frozen=True, slots=True)
class NumericalJacobian:
    """Blocks of slopes by output and input; each has the output's shape followed by the input's.

    A complex number is two real ones: its shape has a 2 (real, imaginary) at its end. The error is infinite where no
    slope was found: the input or the output is not finite there, the function jumps, or the input is a subnormal number
    with too few digits for a step.
    """

    values: tuple[tuple[Tensor, ...], ...]
    errors: tuple[tuple[Tensor, ...], ...]
    outputs: tuple[str, ...]
    inputs: tuple[str, ...]

    @property
    def value(self) -> Tensor:
        """The only block."""
        return _only(self.values)

    @property
    def error(self) -> Tensor:
        """The error bars of the only block."""
        return _only(self.errors)


@one_at_a_time
def jacobian_of(request: Request) -> NumericalJacobian:
    """Measure every column by a step sweep, without random directions. Calls the function."""
    with preserved_rng():
        binding = bind(request)
        for tensor in nested_tensors((request.inputs, request.kwargs)):
            require_separate(tensor)
        state = PreservedState((request.func, request.inputs, request.kwargs), binding.arguments)
        with state, state:  # twice: the first restoration may be interrupted
            problem = TorchProblem(binding, seed=0)
            require_output(problem)
            outputs = Space(problem.codomain.leaves + problem.nondifferentiable.leaves)
            return _blocks(problem, outputs, *_measured(Context(problem, Options(seed=0))))


def _measured(context: Context) -> tuple[Tensor, Tensor]:
    """Values and error bars of all entries, with the rows of the outputs without derivative below."""
    problem = context.problem
    rows, columns = problem.value.shape[0], problem.domain.size
    values, errors = (torch.zeros(rows, columns, dtype=torch.float64, device="cpu") for _ in range(2))
    repeat_noise = (problem.evaluate_at(problem.zeros(columns)).values - problem.value).abs().nan_to_num()
    for column in range(columns):
        size, own = float(context.lengths[column]), abs(float(problem.point[column]))
        if not math.isfinite(own):
            values[:, column], errors[:, column] = math.nan, math.inf
            continue
        found = _column(context, column, size, repeat_noise)
        if 0.0 < own < size / 2.0:
            # Large steps may miss the behaviour next to a small number.
            found = [_nearer(*pair) for pair in zip(found, _column(context, column, own, repeat_noise), strict=True)]
        for row, (value, error) in enumerate(found):
            values[row, column], errors[row, column] = value, error
    return values, errors


def _column(context: Context, column: int, size: float, repeat_noise: Tensor) -> list[tuple[float, float]]:
    """The slope of every output along one coordinate, with about this step length; none if steps are lost to rounding.

    The step length is a power of two: a step from zero is then not rounded in any format.
    """
    problem, steps = context.problem, steps_for(context.problem.eps)
    length = 2.0 ** math.floor(math.log2(size))
    u = problem.zeros(problem.domain.size)
    u[column] = length
    units = torch.eye(problem.value.shape[0], dtype=torch.float64, device=problem.value.device)
    realised: dict[float, float] = {}

    def no_change(_: Cotangent, __: Tensor, displacement: Tensor, t: float) -> float:
        realised[t] = float(displacement[column])
        return 0.0

    cotangents = [Cotangent(unit, u) for unit in units]
    sweeps = sweep_steps(problem, u, cotangents, no_change, repeat_noise, steps, problem.eps)
    middle = middle_step(problem.eps)
    if realised and not 0.5 < realised[middle] / length / middle < 2.0:  # a subnormal number has few digits, or none
        return [(math.nan, math.inf)] * len(units)
    return [_slope(fit_slope(step_sweep), length) for step_sweep in sweeps]


def _slope(fit: SlopeFit, size: float) -> tuple[float, float]:
    """A value and its error bar: infinite where there is no slope, half the difference of two slopes at a kink."""
    bar = math.inf if fit.is_steep or fit.jumps else fit.error.error
    if fit.has_kink_plateau:
        bar += abs(fit.kink.value) + fit.kink.error
    return fit.error.value / size, bar / size


def _nearer(wide: tuple[float, float], near: tuple[float, float]) -> tuple[float, float]:
    """The more accurate of two estimates that agree; otherwise the one with the smaller steps."""
    return near if near[1] < wide[1] or abs(wide[0] - near[0]) > wide[1] + near[1] else wide


def _blocks(problem: TorchProblem, codomain: Space, values: Tensor, errors: Tensor) -> NumericalJacobian:
    def cut(matrix: Tensor) -> tuple[tuple[Tensor, ...], ...]:
        return tuple(
            tuple(
                matrix[codomain.slices[i], problem.domain.slices[j]].reshape(
                    (*_shape(output.coordinates), *_shape(source.coordinates))
                )
                for j, source in enumerate(problem.domain.leaves)
            )
            for i, output in enumerate(codomain.leaves)
        )

    names = tuple(leaf.name for leaf in codomain.leaves), tuple(leaf.name for leaf in problem.domain.leaves)
    return NumericalJacobian(cut(values), cut(errors), *names)


def _shape(coordinates: object) -> tuple[int, ...]:
    if isinstance(coordinates, Dense):
        return (*coordinates.shape, 2) if coordinates.parts == 2 else tuple(coordinates.shape)
    return (coordinates.size,)  # type: ignore[attr-defined]


def _only(blocks: tuple[tuple[Tensor, ...], ...]) -> Tensor:
    if len(blocks) != 1 or len(blocks[0]) != 1:
        raise InvalidProblemError("there are several outputs or inputs: take a block of `values` or `errors`")
    return blocks[0][0]
