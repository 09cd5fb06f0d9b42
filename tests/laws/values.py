"""Random values of every layout for laws that must hold for all of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor

DTYPES = (torch.float64, torch.complex128, torch.float32, torch.complex64)
COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def random(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    """Normally distributed numbers."""
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


@dataclass(frozen=True, slots=True)
class Pattern:
    """A sparse tensor and which elements of the dense shape it specifies, known from how it was made."""

    tensor: Tensor
    mask: Tensor

    def __repr__(self) -> str:
        t = self.tensor
        return f"{t.layout} {tuple(t.shape)} {t.dtype} specified at {self.mask.nonzero().tolist()}"


dtypes = st.sampled_from(DTYPES)
seeds = st.integers(0, 2**16)
lengths = st.integers(1, 3)


@st.composite
def coo(draw: st.DrawFn) -> Pattern:
    """Coalesced or not, in any order, with up to two dense dimensions, possibly without entries or of size zero."""
    outer = tuple(draw(st.lists(lengths, min_size=1, max_size=3)))
    inner = tuple(draw(st.lists(st.integers(0, 2), max_size=2)))
    places = draw(st.lists(st.tuples(*(st.integers(0, n - 1) for n in outer)), max_size=6))
    indices = torch.tensor(places, dtype=torch.int64).reshape(-1, len(outer)).t()
    values = random((len(places), *inner), draw(dtypes), draw(seeds))
    tensor = torch.sparse_coo_tensor(indices, values, (*outer, *inner), check_invariants=True)
    mask = torch.zeros(*outer, *inner, dtype=torch.bool)
    for place in places:
        mask[place] = True
    return Pattern(tensor.coalesce() if draw(st.booleans()) else tensor, mask)


@st.composite
def compressed(draw: st.DrawFn) -> Pattern:
    """By rows or columns, in blocks or not, with or without batch and dense dimensions, with either type of indices."""
    layout = draw(st.sampled_from(COMPRESSED))
    block = (draw(lengths), draw(lengths)) if layout in (torch.sparse_bsr, torch.sparse_bsc) else (1, 1)
    batch, inner = tuple(draw(st.lists(lengths, max_size=1))), tuple(draw(st.lists(lengths, max_size=1)))
    rows, columns = draw(lengths), draw(st.integers(1, 4))
    pattern = torch.tensor(
        draw(st.lists(st.lists(st.booleans(), min_size=columns, max_size=columns), min_size=rows, max_size=rows))
    )
    # Every matrix of a batch must have as many entries as the others; a roll keeps their number and moves them.
    every = torch.stack([pattern.roll(shift, 1) for shift in range(batch[0] if batch else 1)])
    mask = every.repeat_interleave(block[0], 1).repeat_interleave(block[1], 2)
    mask = mask.view(*batch, *mask.shape[1:], *[1] * len(inner)).expand(*batch, *mask.shape[1:], *inner)
    blocksize = block if layout in (torch.sparse_bsr, torch.sparse_bsc) else None
    ones = mask.double().to_sparse(layout=layout, blocksize=blocksize, dense_dim=len(inner))
    by_rows = layout in (torch.sparse_csr, torch.sparse_bsr)
    pointers, plain = (
        (ones.crow_indices(), ones.col_indices()) if by_rows else (ones.ccol_indices(), ones.row_indices())
    )
    index = draw(st.sampled_from((torch.int64, torch.int32)))
    values = random(tuple(ones.values().shape), draw(dtypes), draw(seeds))
    tensor = torch.sparse_compressed_tensor(pointers.to(index), plain.to(index), values, ones.shape, layout=layout)
    return Pattern(tensor, mask.contiguous())


sparse = st.one_of(coo(), compressed())


@st.composite
def dense(draw: st.DrawFn) -> Tensor:
    """A dense tensor of zero to three dimensions, contiguous or transposed, conjugated or not."""
    shape = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
    tensor = random(shape, draw(dtypes), draw(seeds))
    tensor = tensor.transpose(0, -1) if shape and draw(st.booleans()) else tensor
    return tensor.conj() if tensor.is_complex() and draw(st.booleans()) else tensor
