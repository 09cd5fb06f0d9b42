"""How a sparse tensor is stored: its numbers, and the place of each in the dense shape.

The numbers of every sparse layout are in one strided tensor; `Coo` and `Compressed` differ in how they store places. A
place is a row-major index into the dense shape.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gradvet.frontends.torch import private

BY_ROWS = (torch.sparse_csr, torch.sparse_bsr)
IN_BLOCKS = (torch.sparse_bsr, torch.sparse_bsc)


class Coo:
    """One column of indices per entry; an entry is a number or, in hybrid tensors, a dense block. Coalesced or not."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    @property
    def numbers(self) -> Tensor:
        """The stored numbers, strided. Writing to them changes the sparse tensor and counts no version."""
        return private.coo_values(self.tensor).data

    @property
    def indices(self) -> tuple[Tensor, ...]:
        """The index tensors. Two tensors of one layout, shape and indices have the same places."""
        return (private.coo_indices(self.tensor),)

    @property
    def once(self) -> bool:
        """Whether every place occurs at most once."""
        return self.tensor.is_coalesced()

    def places(self) -> Tensor:
        """The place of each stored number, in the order of `numbers.reshape(-1)`."""
        indices, shape = private.coo_indices(self.tensor), self.tensor.shape
        place = torch.zeros(indices.shape[1], dtype=torch.int64, device=indices.device)
        for length, index in zip(shape[: len(indices)], indices, strict=True):
            place = place * length + index
        inner = torch.arange(math.prod(shape[len(indices) :]), device=indices.device)
        return (place[:, None] * len(inner) + inner).reshape(-1)

    def holding(self, numbers: Tensor) -> Tensor:
        """A tensor with the same indices and other numbers, differentiable in them."""
        indices, coalesced = private.coo_indices(self.tensor), self.tensor.is_coalesced()
        return torch.sparse_coo_tensor(
            indices, numbers, self.tensor.shape, is_coalesced=coalesced, check_invariants=False
        )

    def everywhere(self) -> Tensor:
        """A tensor of the same layout, shape and dtype in which every element is specified, and zero."""
        tensor, outer = self.tensor, self.tensor.sparse_dim()
        indices = torch.ones(tensor.shape[:outer], dtype=torch.bool, device=tensor.device).nonzero().t()
        numbers = self.numbers.new_zeros(indices.shape[1], *tensor.shape[outer:])
        return torch.sparse_coo_tensor(indices, numbers, tensor.shape, is_coalesced=True, check_invariants=False)


class Compressed:
    """Storage by rows (CSR, BSR) or by columns (CSC, BSC), of numbers or of blocks.

    The numbers have the shape (*batch, entries, *block, *dense); only the blocked layouts have `block`.
    """

    __slots__ = ("_batch", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self._batch = tensor.dim() - tensor.sparse_dim() - tensor.dense_dim()

    @property
    def numbers(self) -> Tensor:
        return self.tensor.values().data

    @property
    def indices(self) -> tuple[Tensor, Tensor]:
        if self.tensor.layout in BY_ROWS:
            return self.tensor.crow_indices(), self.tensor.col_indices()
        return self.tensor.ccol_indices(), self.tensor.row_indices()

    @property
    def once(self) -> bool:
        return True

    def places(self) -> Tensor:
        pointers, plain = self.indices
        shape, device = self.tensor.shape, self.tensor.device
        batches, lines = math.prod(shape[: self._batch]), pointers.shape[-1] - 1
        # Line i of each batch has pointers[i + 1] - pointers[i] entries.
        every = torch.arange(lines, device=device).repeat(batches)
        line = torch.repeat_interleave(every, pointers.diff().reshape(-1).long()).view(batches, plain.shape[-1])
        across = plain.reshape(batches, plain.shape[-1]).long()
        row, column = (line, across) if self.tensor.layout in BY_ROWS else (across, line)
        height, width = self._block
        # From here on (batches, entries, height, width): the place of every number of a block.
        row = row[..., None, None] * height + torch.arange(height, device=device)[:, None]
        column = column[..., None, None] * width + torch.arange(width, device=device)
        batch = torch.arange(batches, device=device)[:, None, None, None]
        place = (batch * shape[self._batch] + row) * shape[self._batch + 1] + column
        inner = torch.arange(math.prod(shape[self._batch + 2 :]), device=device)
        return (place[..., None] * len(inner) + inner).reshape(-1)

    def holding(self, numbers: Tensor) -> Tensor:
        pointers, plain = self.indices
        return self._build(pointers, plain, numbers)

    def everywhere(self) -> Tensor:
        pointers, plain = self.indices
        shape, (height, width) = self.tensor.shape, self._block
        rows, columns = shape[self._batch] // height, shape[self._batch + 1] // width
        lines, across = (rows, columns) if self.tensor.layout in BY_ROWS else (columns, rows)
        batch = shape[: self._batch]
        full_pointers = torch.arange(lines + 1, dtype=pointers.dtype, device=pointers.device) * across
        full_plain = torch.arange(across, dtype=plain.dtype, device=plain.device).repeat(lines)
        return self._build(
            full_pointers.expand(*batch, -1).contiguous(),
            full_plain.expand(*batch, -1).contiguous(),
            self.numbers.new_zeros(*batch, lines * across, *self.numbers.shape[self._batch + 1 :]),
        )

    @property
    def _block(self) -> tuple[int, int]:
        if self.tensor.layout not in IN_BLOCKS:
            return 1, 1
        height, width = self.numbers.shape[self._batch + 1 : self._batch + 3]
        return height, width

    def _build(self, pointers: Tensor, plain: Tensor, numbers: Tensor) -> Tensor:
        return torch.sparse_compressed_tensor(
            pointers, plain, numbers, self.tensor.shape, layout=self.tensor.layout, check_invariants=False
        )


LAYOUTS: dict[torch.layout, type[Coo | Compressed]] = {
    torch.sparse_coo: Coo,
    torch.sparse_csr: Compressed,
    torch.sparse_csc: Compressed,
    torch.sparse_bsr: Compressed,
    torch.sparse_bsc: Compressed,
}


def is_sparse(tensor: Tensor) -> bool:
    """Whether the layout is one of the sparse ones."""
    return tensor.layout in LAYOUTS


def storage_of(tensor: Tensor) -> Coo | Compressed:
    """The parts of a sparse tensor."""
    return LAYOUTS[tensor.layout](tensor.detach())


def materialised(tensor: Tensor) -> Tensor:
    """The same values in the same layout, with every element specified."""
    stored, full = storage_of(tensor), storage_of(storage_of(tensor).everywhere())
    dense = stored.numbers.new_zeros(tensor.numel())
    dense.index_add_(0, stored.places(), stored.numbers.reshape(-1))
    full.numbers.copy_(dense[full.places()].view(full.numbers.shape))
    return full.tensor


def unspecified(tensor: Tensor) -> int:
    """The number of elements without a stored number."""
    if not is_sparse(tensor):
        return 0
    storage = storage_of(tensor)
    return tensor.numel() - (storage.numbers.numel() if storage.once else len(torch.unique(storage.places())))
