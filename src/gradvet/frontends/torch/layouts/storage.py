"""How a sparse tensor is stored: the numbers, and where in the dense shape each of them stands.

The numbers of every sparse layout lie in one strided tensor. What differs is how their places are written down, and
that is all that `Coo` and `Compressed` know. A place is a row-major index into the dense shape.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from gradvet.frontends.torch.layouts.compressed import Compressed
from gradvet.frontends.torch.layouts.coo import Coo

LAYOUTS: dict[torch.layout, type[Coo | Compressed]] = {
    torch.sparse_coo: Coo,
    torch.sparse_csr: Compressed,
    torch.sparse_csc: Compressed,
    torch.sparse_bsr: Compressed,
    torch.sparse_bsc: Compressed,
}


class Storage(Protocol):
    """One sparse tensor, taken apart."""

    @property
    def tensor(self) -> Tensor:
        """The tensor, without its graph."""
        ...

    @property
    def numbers(self) -> Tensor:
        """The stored numbers, strided. Writing to them changes the sparse tensor, and no version is counted."""
        ...

    @property
    def indices(self) -> tuple[Tensor, ...]:
        """The index tensors. Two tensors of one layout, shape and indices have the same places."""
        ...

    @property
    def once(self) -> bool:
        """Whether no place can be there twice."""
        ...

    def places(self) -> Tensor:
        """The place of each stored number, in the order of `numbers.reshape(-1)`."""
        ...

    def holding(self, numbers: Tensor) -> Tensor:
        """A tensor with the same indices and other numbers, differentiable in them."""
        ...

    def everywhere(self) -> Tensor:
        """A tensor of the same layout, shape and dtype in which every element is specified, and zero."""
        ...


def is_sparse(tensor: Tensor) -> bool:
    """Whether the layout is one of the sparse ones."""
    return tensor.layout in LAYOUTS


def storage_of(tensor: Tensor) -> Storage:
    """A sparse tensor, taken apart."""
    return LAYOUTS[tensor.layout](tensor.detach())


def materialised(tensor: Tensor) -> Tensor:
    """The same values in the same layout, with every element specified."""
    stored, full = storage_of(tensor), storage_of(storage_of(tensor).everywhere())
    dense = stored.numbers.new_zeros(tensor.numel())
    dense.index_add_(0, stored.places(), stored.numbers.reshape(-1))
    full.numbers.copy_(dense[full.places()].view(full.numbers.shape))
    return full.tensor


def unspecified(tensor: Tensor) -> int:
    """How many elements of a tensor have no stored number; none of a dense one."""
    if not is_sparse(tensor):
        return 0
    storage = storage_of(tensor)
    return tensor.numel() - (storage.numbers.numel() if storage.once else len(torch.unique(storage.places())))
