"""Strided tensors and tensor-like objects: their real coordinates, and how they are perturbed.

A real number has one coordinate, a complex number two (real, imaginary). Tensors are perturbed in place, so that
captured references see it.
"""

from __future__ import annotations

import math
from typing import Any, TypeGuard

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor

WORKING_DTYPE = torch.float64
"""The dtype of every vector that the engine sees."""


def is_working_tensor(value: Any) -> TypeGuard[Tensor]:
    """Whether it is a strided tensor of the working dtype and of no subclass."""
    return type(value) is Tensor and value.dtype is WORKING_DTYPE and value.layout is torch.strided


class Dense:
    """The numbers of a tensor in the order of its indices; complex numbers as (real, imaginary) side by side.

    `home` is the device of the vectors, so that leaves on several devices fit into one vector.
    """

    __slots__ = ("_flat", "device", "dtype", "home", "is_plain", "parts", "shape", "size")

    def __init__(self, shape: torch.Size, dtype: torch.dtype, device: torch.device, home: torch.device) -> None:
        self.shape, self.dtype, self.device, self.home = shape, dtype, device, home
        self.parts = 2 if dtype.is_complex else 1
        self.size = math.prod(shape) * self.parts
        self.is_plain = dtype is WORKING_DTYPE and device == home
        self._flat = self.is_plain and len(shape) == 1

    def flatten(self, value: Any) -> Tensor:
        if self.is_plain and is_working_tensor(value):
            return value.detach() if self._flat else value.detach().flatten()
        tensor = _tensor(value)
        if tensor.layout is not torch.strided:
            tensor = tensor.to_dense()
        if self.parts == 2:
            tensor = torch.view_as_real(tensor.to(torch.complex128).resolve_conj())
        elif tensor.is_complex():
            tensor = tensor.real
        return tensor.reshape(-1).to(self.home, WORKING_DTYPE)

    def unflatten(self, vector: Tensor) -> Tensor:
        # A fresh tensor, no view: forward mode treats views otherwise, and crashes on a misaligned complex one.
        if self.is_plain:
            return vector.clone() if self._flat else vector.view(self.shape).clone()
        if self.parts == 2:
            pairs = vector.clone().view(*self.shape, 2)
            return torch.view_as_complex(pairs).to(self.device, self.dtype, copy=True)
        return vector.view(self.shape).to(self.device, self.dtype, copy=True)

    def shaped(self, vector: Tensor) -> Tensor:
        """The same, perhaps in the memory of the vector: for reading only."""
        if self._flat:
            return vector
        return vector.view(self.shape) if self.is_plain else self.unflatten(vector)

    def unflatten_rows(self, matrix: Tensor) -> Tensor:
        """A value for each row, stacked along a first axis, in their own storage."""
        matrix = matrix.clone().to(self.device).view(len(matrix), *self.shape, *([2] if self.parts == 2 else []))
        return (torch.view_as_complex(matrix) if self.parts == 2 else matrix).to(self.dtype)

    def label(self, index: int) -> str:
        number, part = divmod(index, self.parts)
        indices = []
        for length in reversed(self.shape):
            number, position = divmod(number, length)
            indices.append(position)
        place = str(indices[::-1]) if self.shape else ""
        return place + (".real", ".imag")[part] if self.parts == 2 else place


def _tensor(value: Any) -> Tensor:
    """A tensor with the numbers of a tensor-like value."""
    if isinstance(value, Tensor):
        return value.detach()
    return torch.tensor(value.data.tolist(), dtype=value.dtype, device="cpu")


class Strided:
    """Perturbs the caller's tensor through `.data`, which counts no version."""

    __slots__ = ("_rounding", "base", "coordinates", "independent", "tensor")

    def __init__(self, tensor: Any, home: torch.device) -> None:
        self.tensor = tensor
        self.base = tensor.data.clone()
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
        # Added, not assigned: if a tensor is passed twice, both displacements count.
        self.tensor.data.add_(displacement, alpha=scale)
        return self.tensor

    def points(self, displacements: Tensor) -> Tensor:
        stacked: Tensor = self.base + self.coordinates.unflatten_rows(displacements)
        return stacked

    def restore(self) -> None:
        self.tensor.data.copy_(self.base)

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
        return dual_of(self.tensor.detach(), tangent)

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


def dual_of(primal: Tensor, tangent: Tensor | None) -> Tensor:
    """The dual number of a primal and its tangent; without a tangent the primal itself."""
    dual: Tensor = primal if tangent is None else forward_ad.make_dual(primal, tangent)
    return dual


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
