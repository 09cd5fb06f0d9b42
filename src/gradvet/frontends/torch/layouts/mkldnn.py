"""mkldnn tensors: opaque blocks that are perturbed through a dense copy."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradvet.errors import InvalidProblemError
from gradvet.frontends.torch.layouts.strided import Dense, coarseness


class Mkldnn:
    """Each displaced point is a new tensor; the caller's tensor is never written to."""

    __slots__ = ("base", "coordinates", "independent", "tensor")

    def __init__(self, tensor: Tensor, home: torch.device) -> None:
        self.tensor = tensor
        self.base = tensor.detach().to_dense()
        self.coordinates = Dense(tensor.size(), tensor.dtype, tensor.device, home)
        self.independent = True

    def rounded(self, displacement: Tensor) -> tuple[Tensor, Tensor]:
        rounded = (self.base + self.coordinates.unflatten(displacement)) - self.base
        return rounded, self.coordinates.flatten(rounded)

    def place(self, displacement: Tensor, scale: float) -> Tensor:
        return (self.base + scale * displacement).to_mkldnn().requires_grad_()

    def points(self, displacements: Tensor) -> Tensor | None:
        return None

    def restore(self) -> None:
        """The caller's tensor was not changed."""

    def coarseness(self, step: float) -> float:
        return coarseness(self.base, step)

    def dual(self, tangent: Tensor | None) -> Tensor:
        raise InvalidProblemError("MKLDNN inputs are not support for forward AD gradcheck.")

    def misfits(self, gradient: Any) -> list[tuple[str, str, str]]:
        return [
            (attribute, str(getattr(gradient, attribute)), str(getattr(self.tensor, attribute)))
            for attribute in ("dtype", "device", "shape")
            if getattr(gradient, attribute) != getattr(self.tensor, attribute)
        ]
