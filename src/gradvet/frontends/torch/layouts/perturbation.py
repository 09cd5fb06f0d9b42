"""Perturbs and restores all inputs of a problem."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from gradvet.core.problem import Move
from gradvet.core.spaces import Coordinates
from gradvet.frontends.torch import private
from gradvet.frontends.torch.coordinates import is_working_tensor
from gradvet.frontends.torch.layouts.strided import Strided


class Perturbable(Protocol):
    """The part of a layout that perturbation needs."""

    @property
    def coordinates(self) -> Coordinates: ...
    def rounded(self, displacement: Tensor) -> tuple[Any, Tensor]: ...
    def place(self, displacement: Any, scale: float) -> Any: ...
    def restore(self) -> None: ...


class SinglePerturbation:
    """A single strided tensor of the working dtype."""

    def __init__(self, layout: Strided) -> None:
        self._tensor, self._base = layout.tensor, layout.base
        self._shaped = layout.coordinates.shaped
        self._is_perturbed = False
        self.extent = _length(self._base.flatten())

    def move(self, displacement: Tensor) -> Move:
        part = (self._base + self._shaped(displacement)).sub_(self._base)
        return Move([part], part.flatten())

    def place(self, move: Move, scale: float) -> None:
        """Perturb the tensor; the function is called with it."""
        self._is_perturbed = True
        torch.add(self._base, move.parts[0], alpha=scale, out=self._tensor.data)

    def restore(self) -> None:
        if self._is_perturbed:
            self._tensor.data.copy_(self._base)
            self._is_perturbed = False

    def gathered(self, gradients: Sequence[Any]) -> Tensor | None:
        """Gradients as one vector in its own memory; None if they are not strided tensors of the working dtype."""
        (gradient,) = gradients
        if not is_working_tensor(gradient):
            return None
        vector: Tensor = gradient.clone() if gradient.dim() == 1 else gradient.flatten().clone()
        return vector


class GenericPerturbation:
    """Inputs of any layout and dtype."""

    extent = math.inf

    def __init__(self, layouts: Sequence[Perturbable]) -> None:
        self._layouts = layouts
        self._sizes = [layout.coordinates.size for layout in layouts]

    def move(self, displacement: Tensor) -> Move:
        pieces = displacement.split(self._sizes)
        rounded = [layout.rounded(piece) for layout, piece in zip(self._layouts, pieces, strict=True)]
        return Move([part for part, _ in rounded], torch.cat([vector for _, vector in rounded]))

    def place(self, move: Move, scale: float) -> Sequence[Any]:
        """Perturb the inputs; the function is called with those that are returned."""
        self.restore()
        return [layout.place(part, scale) for layout, part in zip(self._layouts, move.parts, strict=True)]

    def restore(self) -> None:
        for layout in self._layouts:
            layout.restore()

    def gathered(self, gradients: Sequence[Any]) -> None:
        """Their layouts and dtypes may differ."""


class ForeachPerturbation:
    """Several strided tensors of the working dtype, with one call of torch for all of them."""

    def __init__(self, layouts: Sequence[Strided]) -> None:
        self._tensors = [layout.tensor for layout in layouts]
        self._bases = [layout.base for layout in layouts]
        self._base: Tensor = private.flatten_tensors(self._bases)
        self._is_perturbed = False
        self.extent = _length(self._base)

    def move(self, displacement: Tensor) -> Move:
        vector = (self._base + displacement).sub_(self._base)
        return Move(private.unflatten_vector(vector, self._bases), vector)

    def place(self, move: Move, scale: float) -> None:
        """Perturb the tensors; the function is called with them."""
        self.restore()
        self._is_perturbed = True
        # In turn: if a tensor is passed twice, both displacements count.
        private.add_in_turn([tensor.data for tensor in self._tensors], move.parts, scale)

    def restore(self) -> None:
        if self._is_perturbed:
            private.copy_in_turn([tensor.data for tensor in self._tensors], self._bases)
            self._is_perturbed = False

    def gathered(self, gradients: Sequence[Any]) -> Tensor | None:
        if all(map(is_working_tensor, gradients)):
            return private.flatten_tensors(gradients)
        return None


def perturbation_of(
    layouts: Sequence[Perturbable],
) -> SinglePerturbation | GenericPerturbation | ForeachPerturbation:
    """The fastest perturbation for these layouts. No number of the inputs exceeds its `extent`."""
    working = [layout for layout in layouts if isinstance(layout, Strided) and _is_working(layout)]
    # On other devices than the CPU additions may overlap; infinite numbers need the generic way.
    if len(working) == len(layouts) and (len(working) == 1 or all(layout.base.is_cpu for layout in working)):
        perturbation = SinglePerturbation(working[0]) if len(working) == 1 else ForeachPerturbation(working)
        if perturbation.extent < math.inf:
            return perturbation
    return GenericPerturbation(layouts)


def _is_working(layout: Strided) -> bool:
    return is_working_tensor(layout.base) and not layout.tensor.is_neg()


def _length(vector: Tensor) -> float:
    return math.sqrt(float(vector @ vector))
