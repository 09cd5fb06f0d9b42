"""Sparse tensors of every layout and kind, with fixed numbers; shapes and blocks are not square."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

LAYOUTS = ("sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc")
COMPRESSED = LAYOUTS[1:]
BLOCK = (2, 3)
SHAPE = (4, 9)


def numbers(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 1) -> Tensor:
    """Normally distributed numbers, the same in every run."""
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def mask() -> Tensor:
    """Which elements of `holed` are specified: half of the blocks, in every row and column of blocks at least one."""
    return torch.tensor([[1, 0, 1], [0, 1, 0]]).repeat_interleave(BLOCK[0], 0).repeat_interleave(BLOCK[1], 1)


def stored(dense: Tensor, layout: str, dense_dim: int = 0) -> Tensor:
    """`dense` in the named layout, its zeros unspecified (in blocks of 2 × 3 where the layout has blocks)."""
    blocksize = BLOCK if layout in ("sparse_bsr", "sparse_bsc") else None
    extra = {} if layout == "sparse_coo" else {"dense_dim": dense_dim}
    return dense.to_sparse(layout=getattr(torch, layout), blocksize=blocksize, **extra)


def holed(layout: str, dtype: torch.dtype = torch.float64) -> Tensor:
    """A 4 × 9 tensor of which half of the blocks of 2 × 3 are not specified."""
    return stored(numbers(*SHAPE, dtype=dtype) * mask(), layout)


def full(layout: str, dtype: torch.dtype = torch.float64) -> Tensor:
    """A 4 × 9 tensor with every element specified."""
    return stored(numbers(*SHAPE, dtype=dtype), layout)


def specified(tensor: Tensor) -> Tensor:
    """Which elements of the dense shape have a stored number."""
    if tensor.layout is torch.sparse_coo:
        ones = torch.ones_like(tensor._values(), dtype=torch.float64)
        return torch.sparse_coo_tensor(tensor._indices(), ones, tensor.shape).to_dense() != 0
    by_rows = tensor.layout in (torch.sparse_csr, torch.sparse_bsr)
    pointers = tensor.crow_indices() if by_rows else tensor.ccol_indices()
    plain = tensor.col_indices() if by_rows else tensor.row_indices()
    ones = torch.ones_like(tensor.values(), dtype=torch.float64)
    return torch.sparse_compressed_tensor(pointers, plain, ones, tensor.shape, layout=tensor.layout).to_dense() != 0


def coo(indices: list[list[int]], shape: tuple[int, ...], dtype: torch.dtype = torch.float64) -> Tensor:
    """A COO tensor with numbers, or dense blocks of them, at the indices, as they are given."""
    where = torch.tensor(indices, dtype=torch.int64).reshape(len(indices), -1)
    values = numbers(where.shape[1], *shape[len(indices) :], dtype=dtype)
    return torch.sparse_coo_tensor(where, values, shape, check_invariants=True)


def _hybrid(layout: str, batch: tuple[int, ...] = ()) -> Tensor:
    """Vectors of two numbers instead of numbers, and perhaps a batch in which every matrix has another pattern."""
    patterns = torch.stack([mask().roll(BLOCK[1] * shift, 1) for shift in range(math.prod(batch))])
    return stored(numbers(*batch, *SHAPE, 2) * patterns.view(*batch, *SHAPE, 1), layout, dense_dim=1)


def _batched(layout: str) -> Tensor:
    return stored(numbers(2, *SHAPE) * torch.stack([mask(), mask().roll(BLOCK[1], 1)]), layout)


def _with_int32_indices(layout: str) -> Tensor:
    tensor = holed(layout)
    by_rows = layout in ("sparse_csr", "sparse_bsr")
    pointers = tensor.crow_indices() if by_rows else tensor.ccol_indices()
    plain = tensor.col_indices() if by_rows else tensor.row_indices()
    return torch.sparse_compressed_tensor(
        pointers.int(), plain.int(), tensor.values(), tensor.shape, layout=tensor.layout
    )


def _empty(layout: str, *shape: int) -> Tensor:
    return stored(torch.zeros(shape, dtype=torch.float64), layout)


KINDS: dict[str, Callable[[], Tensor]] = {
    "coo": partial(holed, "sparse_coo"),
    "coo-full": partial(full, "sparse_coo"),
    "coo-uncoalesced": partial(coo, [[0, 0, 1, 0], [1, 2, 0, 1]], (2, 3)),
    "coo-unordered": partial(coo, [[1, 0, 0], [0, 2, 1]], (2, 3)),
    "coo-cube": partial(coo, [[0, 2, 1], [1, 0, 0], [1, 1, 0]], (3, 2, 2)),
    "coo-hybrid": lambda: coo([[0, 2]], (4, 2)).coalesce(),
    "coo-hybrid-uncoalesced": partial(coo, [[0, 2, 0]], (4, 2)),
    "coo-complex": partial(holed, "sparse_coo", torch.complex128),
    "coo-complex-uncoalesced": partial(coo, [[0, 0, 1, 0], [1, 2, 0, 1]], (2, 3), torch.complex128),
    "coo-no-entries": partial(_empty, "sparse_coo", 2, 3),
    "coo-numbers-of-size-zero": partial(coo, [[0, 2]], (4, 0)),
    "coo-scalar": lambda: torch.sparse_coo_tensor(torch.zeros(0, 1, dtype=torch.int64), numbers(1), ()),
}
for _layout in COMPRESSED:
    _name = _layout.removeprefix("sparse_")
    KINDS |= {
        _name: partial(holed, _layout),
        f"{_name}-full": partial(full, _layout),
        f"{_name}-int32": partial(_with_int32_indices, _layout),
        f"{_name}-complex": partial(holed, _layout, torch.complex128),
        f"{_name}-hybrid": partial(_hybrid, _layout),
        f"{_name}-batched": partial(_batched, _layout),
        f"{_name}-batched-hybrid": partial(_hybrid, _layout, (2, 1)),
        f"{_name}-no-entries": partial(_empty, _layout, *SHAPE),
        f"{_name}-no-rows": partial(_empty, _layout, 0, 9),
    }
