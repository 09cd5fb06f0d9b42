"""Sparse arguments of every layout: their stored numbers are moved in place, and their pattern stays."""

from __future__ import annotations

from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor

from gradvet.frontends.torch.layouts.pattern import Pattern
from gradvet.frontends.torch.layouts.specified import Masked, Specified
from gradvet.frontends.torch.layouts.storage import materialised, storage_of
from gradvet.frontends.torch.layouts.strided import coarseness, separate

Copies = dict[int, Tensor]
"""Materialised copies by the identity of the tensors: one that is given twice must move in both places."""


class Sparse:
    """Calls happen with `moving`: the caller's own tensor, so that captured references see it move, or a copy of it.

    Under unmasked semantics unspecified elements move too. They have no storage, so a copy with every element
    specified moves instead; derivatives are still those of the caller's own tensor.
    """

    __slots__ = ("_moved", "_numbers", "_rounding", "base", "coordinates", "independent", "moving", "tensor")

    def __init__(self, tensor: Tensor, masked: bool, home: torch.device, copies: Copies) -> None:
        self.tensor = self.moving = tensor
        pattern = Pattern(tensor)
        if pattern.unspecified and not masked:
            if id(tensor) not in copies:
                copies[id(tensor)] = materialised(tensor).requires_grad_()
            self.moving = copies[id(tensor)]
            pattern = Pattern(self.moving)
        self.coordinates = (Masked if pattern.unspecified else Specified)(pattern, home)
        self._numbers = storage_of(self.moving).numbers
        self.base = self._numbers.clone()
        self._moved = False
        self._rounding = coarseness(self.base, 1.0)
        self.independent = separate(self._numbers.size(), self._numbers.stride())

    def rounded(self, displacement: Tensor) -> tuple[Tensor, Tensor]:
        rounded = (self.base + self.coordinates.stored(displacement)) - self.base
        if not self._rounding < torch.inf:
            rounded = torch.nan_to_num(rounded, 0.0, 0.0, 0.0)
        difference_along = self.coordinates.read_stored(rounded)
        # What lies outside the pattern moves nothing, and is walked as it is.
        return rounded, torch.cat([difference_along, displacement[len(difference_along) :]])

    def place(self, displacement: Tensor, scale: float) -> Any:
        self._moved = True
        self._numbers.add_(displacement, alpha=scale)
        return self.moving

    def points(self, displacements: Tensor) -> Tensor | None:
        return None

    def restore(self) -> None:
        if self._moved:
            self._numbers.copy_(self.base)
            self._moved = False

    def coarseness(self, step: float) -> float:
        return self._rounding / step

    def dual(self, tangent: Tensor | None) -> Tensor:
        primal: Tensor = self.tensor.detach()
        if tangent is None:
            return primal
        dual: Tensor = forward_ad.make_dual(primal, tangent)
        return dual

    def misfits(self, gradient: Any) -> list[tuple[str, str, str]]:
        found, expected = _attributes(gradient), _attributes(self.tensor)
        # A dense gradient of a sparse tensor is usual; one that is sparse in another way is a mistake.
        if gradient.layout is not torch.strided:
            found, expected = _kind(gradient) | found, _kind(self.tensor) | expected
        return [(name, str(found[name]), str(expected[name])) for name in found if found[name] != expected[name]]


def _kind(tensor: Tensor) -> dict[str, Any]:
    return {"layout": tensor.layout, "sparse_dim": tensor.sparse_dim(), "dense_dim": tensor.dense_dim()}


def _attributes(tensor: Tensor) -> dict[str, Any]:
    return {"dtype": tensor.dtype, "device": tensor.device, "shape": tensor.shape}
