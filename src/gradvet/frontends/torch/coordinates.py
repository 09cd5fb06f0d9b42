"""Real coordinates of dense values: one per real number, two (real, imaginary) per complex number."""

from __future__ import annotations

import math
from typing import Any, TypeGuard

import torch
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
