"""The Jacobian by differences alone, in the shapes of the user's tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradvet.core.ladder import read
from gradvet.core.lines import Claim
from gradvet.core.trial import Trial
from gradvet.errors import InvalidProblemError
from gradvet.frontends.torch.binding import Request, bind
from gradvet.frontends.torch.coordinates import Dense
from gradvet.frontends.torch.preservation import undisturbed
from gradvet.frontends.torch.randomness import forked
from gradvet.frontends.torch.subject import TorchSubject
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
            return _blocks(subject, *_measured(Trial(subject, Options(seed=seed))))


def _measured(trial: Trial) -> tuple[Tensor, Tensor]:
    subject = trial.subject
    rows, columns = subject.codomain.size, subject.domain.size
    values, errors = torch.zeros(rows, columns, dtype=torch.float64), torch.zeros(rows, columns, dtype=torch.float64)
    units = torch.eye(rows, dtype=torch.float64)
    for column in range(columns):
        size = float(trial.sizes[column])
        u = subject.zeros(columns)
        u[column] = size
        claims = [Claim(units[row], lambda displacement, t: 0.0) for row in range(rows)]
        for row, rungs in enumerate(trial.climb(u, claims)):
            found = read(rungs).error
            values[row, column], errors[row, column] = found.value / size, found.error / size
    return values, errors


def _blocks(subject: TorchSubject, values: Tensor, errors: Tensor) -> NumericalJacobian:
    def cut(matrix: Tensor) -> tuple[tuple[Tensor, ...], ...]:
        return tuple(
            tuple(
                matrix[subject.codomain.slice(i), subject.domain.slice(j)].reshape(
                    *_shape(output.coordinates), *_shape(source.coordinates)
                )
                for j, source in enumerate(subject.domain.leaves)
            )
            for i, output in enumerate(subject.codomain.leaves)
        )

    names = tuple(leaf.name for leaf in subject.codomain.leaves), tuple(leaf.name for leaf in subject.domain.leaves)
    return NumericalJacobian(cut(values), cut(errors), *names)


def _shape(coordinates: object) -> tuple[int, ...]:
    if isinstance(coordinates, Dense):
        return (*coordinates.shape, 2) if coordinates.parts == 2 else tuple(coordinates.shape)
    return (coordinates.size,)  # type: ignore[attr-defined]


def _only(blocks: tuple[tuple[Tensor, ...], ...]) -> Tensor:
    if len(blocks) != 1 or len(blocks[0]) != 1:
        raise InvalidProblemError("there are several outputs or inputs: take a block of `values` or `errors`")
    return blocks[0][0]
