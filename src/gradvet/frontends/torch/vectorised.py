"""Many points or many rows in one call: vmap of the function or of its backward pass.

A vectorised call runs other kernels, so the engine compares it with plain calls before it relies on it.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gradvet.core.spaces import Space
from gradvet.frontends.torch import derivatives, private
from gradvet.frontends.torch.layouts.strided import WORKING_DTYPE, Dense

if TYPE_CHECKING:
    from gradvet.frontends.torch.problem import TorchProblem


def evaluate_together(problem: TorchProblem, displacements: Tensor) -> Tensor | None:
    """The outputs at each displaced point by one `vmap` of the function; None if it cannot be mapped."""
    pieces = torch.split(displacements, [leaf.coordinates.size for leaf in problem.domain.leaves], dim=1)
    points: list[Any] = [layout.points(piece) for layout, piece in zip(problem.layouts, pieces, strict=True)]
    if not problem.is_plain or any(point is None for point in points):
        return None

    def outputs(*values: Tensor) -> tuple[Tensor, ...]:
        return tuple(problem.call(problem.arguments_with(values)))

    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            found = torch.func.vmap(outputs)(*points)
    except Exception:  # the points can still be evaluated one by one
        return None
    return _rows(found, len(displacements), problem.home)


def vjp_rows(problem: TorchProblem, output: int, rows: range) -> Tensor | None:
    """Some rows of one output by one batched backward pass; None if the derivative cannot be mapped."""
    chosen = problem.differentiable_outputs[output]
    if not problem.is_plain or any(tensor.layout is not torch.strided for tensor in (chosen, *problem.inputs)):
        return None
    coordinates = problem.codomain.leaves[output].coordinates
    assert isinstance(coordinates, Dense)
    units = torch.zeros(len(rows), coordinates.size, dtype=WORKING_DTYPE, device=problem.home)
    units[:, rows.start : rows.stop].fill_diagonal_(1.0)
    cotangents = coordinates.unflatten_rows(units)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            recorded = problem.recorded_outputs()[output]
            gradients = private.run_batched_backward((recorded,), problem.inputs, (cotangents,))
    except Exception:  # the rows can still be computed one by one
        return None
    problem.cost.pulls += 1
    found = [
        units.new_zeros(len(rows), *tensor.shape, dtype=tensor.dtype) if gradient is None else gradient
        for tensor, gradient in zip(problem.inputs, gradients, strict=True)
    ]
    return _rows(found, len(rows), problem.home)


def jvp_batched(problem: TorchProblem, U: Sequence[Tensor]) -> list[Tensor]:
    """J u for several tangents by one `vmap` of the forward mode."""
    vmap = private.dual_vmap()
    pairs_of = derivatives.nested_tangents if vmap is None else derivatives.output_tangents

    def jvp(*tangents: Tensor) -> tuple[Tensor, ...]:
        found = [tangent for _, tangent in pairs_of(problem, tangents)]
        return tuple(
            torch.zeros_like(y) if tangent is None else tangent
            for y, tangent in zip(problem.differentiable_outputs, found, strict=True)
        )

    with derivatives.slow_vmap_accepted():
        found = (vmap or torch.func.vmap)(jvp)(*stacked(problem.domain, U))
    return [problem.vector(problem.codomain, [tangent[k] for tangent in found]) for k in range(len(U))]


def stacked(space: Space, vectors: Sequence[Tensor]) -> list[Tensor]:
    """The tensors of several vectors of a space, stacked along a first axis."""
    return [torch.stack(column) for column in zip(*[space.unflatten(vector) for vector in vectors], strict=True)]


def _rows(values: Any, number: int, home: torch.device) -> Tensor | None:
    """Batched values as real coordinates, one row each; None if one of them is not strided."""
    columns = []
    for value in values:
        if value.layout is not torch.strided:
            return None
        real = torch.view_as_real(value.resolve_conj()) if value.is_complex() else value
        columns.append(real.detach().reshape(number, -1).to(home, WORKING_DTYPE))
    return columns[0] if len(columns) == 1 else torch.cat(columns, dim=1)
