"""Sparse arguments of every layout: stored numbers are perturbed in place, the pattern stays."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradvet.frontends.torch.layouts.sparse_coordinates import MaskedSparseCoordinates, Pattern, SparseCoordinates
from gradvet.frontends.torch.layouts.sparse_storage import materialised, storage_of
from gradvet.frontends.torch.layouts.strided import coarseness, dual_of, separate

Copies = dict[int, Tensor]
"""Materialised copies by the identity of the tensors: one that is passed twice is perturbed in both places."""


class Sparse:
    """Perturbs `perturbed`: the caller's tensor, so that captured references see it, or a copy.

    Under unmasked semantics unspecified elements are perturbed too. They have no storage, so a copy with every element
    specified is perturbed instead. Derivatives are those of the caller's tensor.
    """

    __slots__ = ("_is_perturbed", "_numbers", "_rounding", "base", "coordinates", "independent", "perturbed", "tensor")

    def __init__(self, tensor: Tensor, masked: bool, home: torch.device, copies: Copies) -> None:
        self.tensor = self.perturbed = tensor
        pattern = Pattern(tensor)
        if pattern.unspecified and not masked:
            if id(tensor) not in copies:
                copies[id(tensor)] = materialised(tensor).requires_grad_()
            self.perturbed = copies[id(tensor)]
            pattern = Pattern(self.perturbed)
        self.coordinates = (MaskedSparseCoordinates if pattern.unspecified else SparseCoordinates)(pattern, home)
        self._numbers = storage_of(self.perturbed).numbers
        self.base = self._numbers.clone()
        self._is_perturbed = False
        self._rounding = coarseness(self.base, 1.0)
        self.independent = separate(self._numbers.size(), self._numbers.stride())

    def rounded(self, displacement: Tensor) -> tuple[Tensor, Tensor]:
        rounded = (self.base + self.coordinates.stored(displacement)) - self.base
        if not self._rounding < torch.inf:
            rounded = torch.nan_to_num(rounded, 0.0, 0.0, 0.0)
        realised = self.coordinates.read_stored(rounded)
        # Coordinates outside the pattern change nothing and are not rounded.
        return rounded, torch.cat([realised, displacement[len(realised) :]])

    def place(self, displacement: Tensor, scale: float) -> Any:
        self._is_perturbed = True
        self._numbers.add_(displacement, alpha=scale)
        return self.perturbed

    def points(self, displacements: Tensor) -> Tensor | None:
        return None

    def restore(self) -> None:
        if self._is_perturbed:
            self._numbers.copy_(self.base)
            self._is_perturbed = False

    def coarseness(self, step: float) -> float:
        return self._rounding / step

    def dual(self, tangent: Tensor | None) -> Tensor:
        return dual_of(self.tensor.detach(), tangent)

    def misfits(self, gradient: Any) -> list[tuple[str, str, str]]:
        found, expected = _attributes(gradient), _attributes(self.tensor)
        # A dense gradient of a sparse tensor is usual; one of another sparse layout is an error.
        if gradient.layout is not torch.strided:
            found, expected = _kind(gradient) | found, _kind(self.tensor) | expected
        return [(name, str(found[name]), str(expected[name])) for name in found if found[name] != expected[name]]


def _kind(tensor: Tensor) -> dict[str, Any]:
    return {"layout": tensor.layout, "sparse_dim": tensor.sparse_dim(), "dense_dim": tensor.dense_dim()}


def _attributes(tensor: Tensor) -> dict[str, Any]:
    return {"dtype": tensor.dtype, "device": tensor.device, "shape": tensor.shape}
