"""Points at which functions are checked: fixed numbers, distinct and of both signs, never of unit scale throughout."""

from __future__ import annotations

import torch
from torch import Tensor

LAYOUTS = ("sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc")


def numbers(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 1) -> Tensor:
    """Normally distributed numbers that are the same in every run; the global random state is not touched."""
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def leaf(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 1) -> Tensor:
    """`numbers` as a leaf that requires grad."""
    return numbers(*shape, dtype=dtype, seed=seed).requires_grad_()


def sparse(dense: Tensor, layout: str) -> Tensor:
    """`dense` in the named layout, with blocks of 2 x 2 where the layout has blocks."""
    blocksize = (2, 2) if layout in ("sparse_bsr", "sparse_bsc") else None
    return dense.to_sparse(layout=getattr(torch, layout), blocksize=blocksize)
