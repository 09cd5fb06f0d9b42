"""Which stored numbers of a tensor are coordinates, and how they are perturbed and restored.

A layout belongs to one argument of the function. No other module depends on how tensors are stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradvet.core.vectors import Coordinates
from gradvet.errors import InvalidProblemError
from gradvet.frontends.torch.layouts.dense import Strided, dense_coordinates
from gradvet.frontends.torch.layouts.sparse import (
    IN_BLOCKS,
    Copies,
    Sparse,
    SparseCoordinates,
    is_sparse,
    materialised,
    stored_numbers,
)


def layouts_of(tensors: Sequence[Any], masked: bool, home: torch.device) -> list[Strided]:
    """The layouts of arguments; `masked` says whether only the specified elements of sparse ones count."""
    copies: Copies = {}
    return [_layout(tensor, masked, home, copies) for tensor in tensors]


def _layout(tensor: Any, masked: bool, home: torch.device, copies: Copies) -> Strided:
    if tensor.layout is torch.strided:
        return Strided(tensor, home)
    if tensor.is_mkldnn:
        return Mkldnn(tensor, home)
    if is_sparse(tensor):
        return Sparse(tensor, masked, home, copies)
    raise InvalidProblemError(f"tensors of layout {tensor.layout} cannot be checked")


def coordinates_of(output: Any, masked: bool, home: torch.device) -> Coordinates:
    """The coordinates of an output; a vector of them unflattens to a cotangent that torch accepts for it.

    For a sparse output that is a tensor of its layout, with its pattern if `masked`, with every element otherwise.
    """
    if output.layout is not torch.strided and is_sparse(output):
        return SparseCoordinates(output if masked else materialised(output), home)
    return dense_coordinates(output, home)


def numbers_of(tensor: Any) -> Any:
    """The strided tensor of numbers: the tensor itself, the stored numbers of a sparse one, or None."""
    if tensor.layout is torch.strided:
        return tensor
    return stored_numbers(tensor) if is_sparse(tensor) else None


def can_be_cut(output: Any) -> bool:
    """Whether an output can have an undefined cotangent: torch must be able to make zeros for it."""
    return isinstance(output, Tensor) and output.layout not in IN_BLOCKS


class Mkldnn(Strided):
    """Each displaced point is a new tensor; the caller's tensor, an opaque block, is never written to."""

    __slots__ = ()

    compared = ("dtype", "device", "shape")

    @property
    def numbers(self) -> Tensor:
        """A dense copy."""
        dense: Tensor = self.tensor.detach().to_dense()
        return dense

    def place(self, displacement: Tensor, scale: float) -> Tensor:
        displaced: Tensor = (self.base + scale * displacement).to_mkldnn()
        return displaced.requires_grad_()

    def points(self, displacements: Tensor) -> None:
        return None

    def restore(self) -> None:
        """The caller's tensor was not changed."""

    def dual(self, tangent: Tensor | None) -> Tensor:
        raise InvalidProblemError("MKLDNN inputs are not support for forward AD gradcheck.")
