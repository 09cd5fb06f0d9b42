"""Which stored numbers of a tensor are coordinates, and how they are moved.

A layout is bound to one argument of the function. This package is the only place that knows how tensors are stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from gradvet.core.spaces import Coordinates
from gradvet.errors import InvalidProblemError
from gradvet.frontends.torch.coordinates import Dense
from gradvet.frontends.torch.layouts.compressed import IN_BLOCKS
from gradvet.frontends.torch.layouts.mkldnn import Mkldnn
from gradvet.frontends.torch.layouts.pattern import Pattern
from gradvet.frontends.torch.layouts.sparse import Copies, Sparse
from gradvet.frontends.torch.layouts.specified import Specified
from gradvet.frontends.torch.layouts.storage import is_sparse, materialised, storage_of, unspecified
from gradvet.frontends.torch.layouts.strided import Strided
from gradvet.frontends.torch.layouts.unison import moving

__all__ = [
    "Layout",
    "can_be_cut",
    "coordinates_of",
    "is_sparse",
    "layouts_of",
    "materialised",
    "moving",
    "numbers_of",
    "storage_of",
    "unspecified",
]


class Layout(Protocol):
    """One argument of the function, as coordinates that can be moved."""

    @property
    def coordinates(self) -> Coordinates: ...
    @property
    def independent(self) -> bool:
        """Whether moving one coordinate leaves the others where they are."""
        ...

    def rounded(self, displacement: Tensor) -> tuple[Any, Tensor]:
        """A vector of coordinates as a displacement of the stored numbers, and what is left of it after rounding."""
        ...

    def place(self, displacement: Any, scale: float) -> Any:
        """Move by so much of a rounded displacement; gives what the function is to be called with."""
        ...

    def points(self, displacements: Tensor) -> Tensor | None:
        """Copies of the argument, each moved by one row, stacked for `vmap`; None where the layout cannot be mapped."""
        ...

    def restore(self) -> None:
        """Put the argument back, bit for bit."""
        ...

    def coarseness(self, step: float) -> float:
        """By how much of itself rounding may change a step of this size."""
        ...

    def dual(self, tangent: Tensor | None) -> Tensor:
        """The argument for forward mode: detached, with a tangent (a tensor like it) or without."""
        ...

    def misfits(self, gradient: Any) -> list[tuple[str, str, str]]:
        """(attribute, found, expected) wherever a gradient is not like the argument."""
        ...


def layouts_of(tensors: Sequence[Any], masked: bool, home: torch.device) -> list[Layout]:
    """The layouts of arguments; `masked` says whether only the specified elements of sparse ones count."""
    copies: Copies = {}
    return [_layout(tensor, masked, home, copies) for tensor in tensors]


def _layout(tensor: Any, masked: bool, home: torch.device, copies: Copies) -> Layout:
    if tensor.layout is torch.strided:
        return Strided(tensor, home)
    if tensor.layout is torch._mkldnn:  # type: ignore[attr-defined]
        return Mkldnn(tensor, home)
    if is_sparse(tensor):
        return Sparse(tensor, masked, home, copies)
    raise InvalidProblemError(f"tensors of layout {tensor.layout} cannot be checked")


def coordinates_of(output: Any, masked: bool, home: torch.device) -> Coordinates:
    """The coordinates of an output; a vector of them unflattens to a cotangent that torch accepts for it.

    For a sparse output that is a tensor of its layout, with its pattern if `masked`, with every element otherwise.
    """
    if is_sparse(output):
        return Specified(Pattern(output if masked else materialised(output)), home)
    device = output.device if isinstance(output, Tensor) else home
    return Dense(output.size(), output.dtype, device, home)


def numbers_of(tensor: Any) -> Any:
    """What has strides: the tensor itself, or the stored numbers of a sparse one; None if there is no such thing."""
    if tensor.layout is torch.strided:
        return tensor
    return storage_of(tensor).numbers if is_sparse(tensor) else None


def can_be_cut(output: Any) -> bool:
    """Whether an output can be left without a cotangent: torch must be able to make the zeros that Functions want."""
    return isinstance(output, Tensor) and output.layout not in IN_BLOCKS
