"""Many points or many rows in one vectorised call, where the function and its derivative allow it."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gradvet.frontends.torch.coordinates import WORK, Dense

if TYPE_CHECKING:
    from gradvet.frontends.torch.problem import TorchProblem


def evaluate_together(problem: TorchProblem, displacements: Tensor) -> Tensor | None:
    """The outputs at each displaced point by one `vmap` of the function; None if it cannot be mapped."""
    pieces = torch.split(displacements, [leaf.coordinates.size for leaf in problem.domain.leaves], dim=1)
    points: list[Any] = [layout.points(piece) for layout, piece in zip(problem.layouts, pieces, strict=True)]
    if not problem.ordinary or any(point is None for point in points):
        return None

    def at(*values: Tensor) -> tuple[Tensor, ...]:
        arguments = list(problem.arguments)
        for leaf, value in zip(problem.domain.leaves, values, strict=True):
            arguments[leaf.position] = value
        return tuple(problem.call(arguments))

    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            found = torch.func.vmap(at)(*points)
    except Exception:  # whatever stops vmap, the points can still be evaluated one by one
        return None
    return _rows(found, len(displacements), problem.home)


def vjp_rows(problem: TorchProblem, output: int, rows: range) -> Tensor | None:
    """Some rows of one output by one batched backward pass; None if the derivative cannot be mapped."""
    live = problem.live[output]
    if not problem.ordinary or any(tensor.layout is not torch.strided for tensor in (live, *problem.inputs)):
        return None
    coordinates = problem.codomain.leaves[output].coordinates
    assert isinstance(coordinates, Dense)
    units = torch.zeros(len(rows), coordinates.size, dtype=WORK, device=problem.home)
    units[:, rows.start : rows.stop].fill_diagonal_(1.0)
    cotangents = coordinates.unflatten_rows(units)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            gradients = torch.autograd.grad(
                live, problem.inputs, cotangents, retain_graph=True, allow_unused=True, is_grads_batched=True
            )
    except Exception:  # whatever stops vmap, the rows can still be pulled one by one
        return None
    problem.cost.pulls += 1
    found = [
        units.new_zeros(len(rows), *tensor.shape, dtype=tensor.dtype) if gradient is None else gradient
        for tensor, gradient in zip(problem.inputs, gradients, strict=True)
    ]
    return _rows(found, len(rows), problem.home)


def _rows(values: Any, number: int, home: torch.device) -> Tensor | None:
    """Batched values as real coordinates, one row each; None if one of them is not strided."""
    columns = []
    for value in values:
        if value.layout is not torch.strided:
            return None
        real = torch.view_as_real(value.resolve_conj()) if value.is_complex() else value
        columns.append(real.detach().reshape(number, -1).to(home, WORK))
    return columns[0] if len(columns) == 1 else torch.cat(columns, dim=1)
