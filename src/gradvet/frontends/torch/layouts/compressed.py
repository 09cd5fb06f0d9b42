"""Compressed storage by rows (CSR, BSR) or columns (CSC, BSC), of numbers or of blocks, batched and hybrid or not."""

from __future__ import annotations

import math

import torch
from torch import Tensor

BY_ROWS = (torch.sparse_csr, torch.sparse_bsr)
IN_BLOCKS = (torch.sparse_bsr, torch.sparse_bsc)


class Compressed:
    """The numbers have the shape (*batch, entries, *block, *dense); only the blocked layouts have `block`."""

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
