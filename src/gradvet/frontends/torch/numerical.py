"""The Jacobian by differences alone, in the shapes of the user's tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gradvet.core.ladder import Reading, read
from gradvet.core.lines import Claim, climb, steps_for
from gradvet.core.spaces import Space
from gradvet.core.subject import Displaced
from gradvet.core.trial import Trial
from gradvet.errors import InvalidProblemError
from gradvet.frontends.torch.binding import Request, bind
from gradvet.frontends.torch.coordinates import Dense
from gradvet.frontends.torch.preservation import undisturbed
from gradvet.frontends.torch.randomness import forked
from gradvet.frontends.torch.subject import TorchSubject, require_output
from gradvet.options import Options


@dataclass(frozen=True, slots=True)
class NumericalJacobian:
    """Blocks of slopes by output and input; each has the output's shape followed by the input's.

    A complex number is two real ones: its shape has a 2 (real, imaginary) at its end.
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


def jacobian_of(request: Request, seed: int = 0) -> NumericalJacobian:
    """Every column by a ladder of its own."""
    with forked():
        binding = bind(request)
        with undisturbed(request.func, binding.arguments):
            subject = TorchSubject(binding, seed)
            require_output(subject)
            whole = _Whole(subject, Space(subject.codomain.leaves + subject.silent.leaves))
            return _blocks(subject, whole.codomain, *_measured(Trial(subject, Options(seed=seed)), whole))


@dataclass(frozen=True, slots=True)
class _Whole:
    """A subject with all its numeric outputs, whether they have a derivative or not."""

    subject: TorchSubject
    codomain: Space

    @property
    def value(self) -> Tensor:
        return self.subject.value

    @property
    def epsilon(self) -> float:
        return self.subject.epsilon

    def displaced(self, displacement: Tensor) -> Displaced:
        return self.subject.displaced(displacement)


def _measured(trial: Trial, whole: _Whole) -> tuple[Tensor, Tensor]:
    rows, columns = whole.codomain.size, trial.subject.domain.size
    values, errors = torch.zeros(rows, columns, dtype=torch.float64), torch.zeros(rows, columns, dtype=torch.float64)
    wobble = (whole.displaced(trial.subject.zeros(columns)).values - whole.value).abs().nan_to_num()
    for column in range(columns):
        size, own = float(trial.sizes[column]), abs(float(trial.subject.point[column]))
        found = _column(trial, whole, column, size, wobble)
        if 0.0 < own < size / 2.0:
            # Next to a small number the function may be another one than a wide step shows.
            found = [_nearer(*pair) for pair in zip(found, _column(trial, whole, column, own, wobble), strict=True)]
        for row, (value, error) in enumerate(found):
            values[row, column], errors[row, column] = value, error
    return values, errors


def _column(trial: Trial, whole: _Whole, column: int, size: float, wobble: Tensor) -> list[tuple[float, float]]:
    """The slope of every output along one coordinate, by steps of this size."""
    u = trial.subject.zeros(trial.subject.domain.size)
    u[column] = size
    units = torch.eye(whole.codomain.size, dtype=torch.float64)
    claims = [Claim(unit, lambda displacement, t: 0.0) for unit in units]
    ladders = climb(whole, u, claims, wobble, steps_for(whole.epsilon))
    return [_slope(read(rungs), size) for rungs in ladders]


def _slope(reading: Reading, size: float) -> tuple[float, float]:
    """A value and its error bar: infinite where there is no slope, half the difference of two slopes at a kink."""
    bar = math.inf if reading.steep or reading.jump else reading.error.error
    if reading.bent:
        bar += abs(reading.kink.value) + reading.kink.error
    return reading.error.value / size, bar / size


def _nearer(wide: tuple[float, float], near: tuple[float, float]) -> tuple[float, float]:
    """The sharper of two that agree; where they do not, the one with the smaller steps."""
    return near if not abs(wide[0] - near[0]) <= wide[1] + near[1] or near[1] < wide[1] else wide


def _blocks(subject: TorchSubject, codomain: Space, values: Tensor, errors: Tensor) -> NumericalJacobian:
    def cut(matrix: Tensor) -> tuple[tuple[Tensor, ...], ...]:
        return tuple(
            tuple(
                matrix[codomain.slice(i), subject.domain.slice(j)].reshape(
                    *_shape(output.coordinates), *_shape(source.coordinates)
                )
                for j, source in enumerate(subject.domain.leaves)
            )
            for i, output in enumerate(codomain.leaves)
        )

    names = tuple(leaf.name for leaf in codomain.leaves), tuple(leaf.name for leaf in subject.domain.leaves)
    return NumericalJacobian(cut(values), cut(errors), *names)


def _shape(coordinates: object) -> tuple[int, ...]:
    if isinstance(coordinates, Dense):
        return (*coordinates.shape, 2) if coordinates.parts == 2 else tuple(coordinates.shape)
    return (coordinates.size,)  # type: ignore[attr-defined]


def _only(blocks: tuple[tuple[Tensor, ...], ...]) -> Tensor:
    if len(blocks) != 1 or len(blocks[0]) != 1:
        raise InvalidProblemError("there are several outputs or inputs: take a block of `values` or `errors`")
    return blocks[0][0]
