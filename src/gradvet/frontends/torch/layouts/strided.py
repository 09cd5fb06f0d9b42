"""Strided tensors and tensor-like objects: perturbed in place, so that captured references see it."""

from __future__ import annotations

from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor

from gradvet.frontends.torch.coordinates import Dense


class Strided:
    """Perturbs the caller's tensor through `.data`, which counts no version."""

    __slots__ = ("_is_perturbed", "_rounding", "base", "coordinates", "independent", "tensor")

    def __init__(self, tensor: Any, home: torch.device) -> None:
        self.tensor = tensor
        self.base = tensor.data.clone()
        self._is_perturbed = False
        self._rounding: float | None = None
        size = tensor.size()
        if isinstance(tensor, Tensor):
            self.coordinates = Dense(size, tensor.dtype, tensor.device, home)
            self.independent = tensor.is_contiguous() or separate(size, tensor.stride())
        else:
            self.coordinates = Dense(size, tensor.dtype, home, home)
            self.independent = separate(size, tensor.stride())

    def rounded(self, displacement: Tensor) -> tuple[Tensor, Tensor]:
        rounded: Tensor = (self.base + self.coordinates.shaped(displacement)).sub_(self.base)
        # Infinite elements cannot be perturbed: inf - inf is NaN.
        if not self.coarseness(1.0) < torch.inf:
            rounded = torch.nan_to_num(rounded, 0.0, 0.0, 0.0)
        if self.coordinates.is_plain and isinstance(rounded, Tensor):
            return rounded, rounded.flatten()
        return rounded, self.coordinates.flatten(rounded)

    def place(self, displacement: Tensor, scale: float) -> Any:
        self._is_perturbed = True
        # Added, not assigned: if a tensor is passed twice, both displacements count.
        self.tensor.data.add_(displacement, alpha=scale)
        return self.tensor

    def put(self, value: Tensor) -> None:
        """Set the tensor to a value until it is restored."""
        self._is_perturbed = True
        self.tensor.data.copy_(value)

    def points(self, displacements: Tensor) -> Tensor:
        stacked: Tensor = self.base + self.coordinates.unflatten_rows(displacements)
        return stacked

    def restore(self) -> None:
        if self._is_perturbed:
            self.tensor.data.copy_(self.base)
            self._is_perturbed = False

    def undo_writes(self) -> bool:
        """Restore the tensor, which is not perturbed; whether something had written to it."""
        if same_numbers(self.tensor.data, self.base):
            return False
        self.tensor.data.copy_(self.base)
        return True

    def coarseness(self, step: float) -> float:
        if self._rounding is None:
            self._rounding = coarseness(self.base, 1.0)
        return self._rounding / step

    def dual(self, tangent: Tensor | None) -> Tensor:
        primal: Tensor = self.tensor.detach()
        if tangent is None:
            return primal
        dual: Tensor = forward_ad.make_dual(primal, tangent)
        return dual

    def misfits(self, gradient: Any) -> list[tuple[str, str, str]]:
        if not isinstance(gradient, Tensor) or not isinstance(self.tensor, Tensor):
            return []
        found, expected = (
            (tensor.layout, tensor.dtype, tensor.device, tensor.shape) for tensor in (gradient, self.tensor)
        )
        if found == expected:
            return []
        names = ("layout", "dtype", "device", "shape")
        return [(name, str(a), str(b)) for name, a, b in zip(names, found, expected, strict=True) if a != b]


def same_numbers(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors hold the same numbers; NaN counts as equal to NaN."""
    return not one.numel() or torch.equal(one, other) or torch.equal(one.nan_to_num(), other.nan_to_num())


def coarseness(base: Any, step: float) -> float:
    """Half a unit in the last place of the largest number, relative to the step."""
    if not base.nelement():
        return 0.0
    least, most = torch.aminmax(torch.view_as_real(base) if base.is_complex() else base)
    # Both are NaN if there is one.
    return torch.finfo(base.dtype).eps / 2.0 * max(most.item(), -least.item()) / step


def separate(size: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether no two indices share memory, by the usual sufficient test: each stride clears the smaller dimensions."""
    reach = 0
    for step, length in sorted(zip(strides, size, strict=True)):
        if length > 1:
            if step <= reach:
                return False
            reach += step * (length - 1)
    return True
