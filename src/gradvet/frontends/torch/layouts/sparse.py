"""Sparse tensors of every layout: how they are stored, their coordinates, and how stored numbers are perturbed.

The numbers of every sparse layout are in one strided tensor; layouts differ in how they store places. A place is a
row-major index into the dense shape. The pattern, which says what places are stored, stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradvet.frontends.torch import private
from gradvet.frontends.torch.layouts.dense import WORKING_DTYPE, Dense, Strided, unit_matrix

BY_ROWS = (torch.sparse_csr, torch.sparse_bsr)
IN_BLOCKS = (torch.sparse_bsr, torch.sparse_bsc)
SPARSE_LAYOUTS = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, *IN_BLOCKS)


def is_sparse(tensor: Tensor) -> bool:
    """Whether the layout is one of the sparse ones."""
    return tensor.layout in SPARSE_LAYOUTS


def stored_numbers(tensor: Tensor) -> Tensor:
    """The stored numbers, strided. Writing to them changes the sparse tensor and counts no version.

    Those of a compressed layout have the shape (*batch, entries, *block, *dense); only blocked layouts have `block`.
    """
    tensor = tensor.detach()
    return (private.coo_values(tensor) if tensor.layout is torch.sparse_coo else tensor.values()).data


def stored_indices(tensor: Tensor) -> tuple[Tensor, ...]:
    """The index tensors. Two tensors of one layout, shape and indices have the same places."""
    tensor = tensor.detach()
    if tensor.layout is torch.sparse_coo:
        return (private.coo_indices(tensor),)
    if tensor.layout in BY_ROWS:
        return tensor.crow_indices(), tensor.col_indices()
    return tensor.ccol_indices(), tensor.row_indices()


def with_numbers(tensor: Tensor, numbers: Tensor, indices: Sequence[Tensor] = ()) -> Tensor:
    """A tensor with the same indices, or these, and other numbers, differentiable in them."""
    parts: list[Any] = [*(indices or stored_indices(tensor)), numbers, tensor.shape]
    if tensor.layout is torch.sparse_coo:
        return torch.sparse_coo_tensor(*parts, is_coalesced=tensor.is_coalesced(), check_invariants=False)
    return torch.sparse_compressed_tensor(*parts, layout=tensor.layout, check_invariants=False)


def places_of(tensor: Tensor) -> Tensor:
    """The place of each stored number, in the order of `stored_numbers(tensor).reshape(-1)`."""
    shape, device = tensor.shape, tensor.device
    if tensor.layout is torch.sparse_coo:
        # One column of indices per entry; an entry is a number or, in hybrid tensors, a dense block.
        (indices,) = stored_indices(tensor)
        place = torch.zeros(indices.shape[1], dtype=torch.int64, device=device)
        for length, index in zip(shape[: len(indices)], indices, strict=True):
            place = place * length + index
        inner = torch.arange(math.prod(shape[len(indices) :]), device=device)
        return (place[:, None] * len(inner) + inner).reshape(-1)
    pointers, plain = stored_indices(tensor)
    first = _batch_dimensions(tensor)
    batches, lines = math.prod(shape[:first]), pointers.shape[-1] - 1
    # Line i of each batch has pointers[i + 1] - pointers[i] entries.
    every = torch.arange(lines, device=device).repeat(batches)
    line = torch.repeat_interleave(every, pointers.diff().reshape(-1).long()).view(batches, plain.shape[-1])
    across = plain.reshape(batches, plain.shape[-1]).long()
    row, column = (line, across) if tensor.layout in BY_ROWS else (across, line)
    height, width = _block(tensor) or (1, 1)
    # From here on (batches, entries, height, width): the place of every number of a block.
    row = row[..., None, None] * height + torch.arange(height, device=device)[:, None]
    column = column[..., None, None] * width + torch.arange(width, device=device)
    batch = torch.arange(batches, device=device)[:, None, None, None]
    place = (batch * shape[first] + row) * shape[first + 1] + column
    inner = torch.arange(math.prod(shape[first + 2 :]), device=device)
    return (place[..., None] * len(inner) + inner).reshape(-1)


def _batch_dimensions(tensor: Tensor) -> int:
    return tensor.dim() - tensor.sparse_dim() - tensor.dense_dim()


def _block(tensor: Tensor) -> tuple[int, int] | None:
    """Height and width of the blocks of a blocked layout."""
    if tensor.layout not in IN_BLOCKS:
        return None
    first = _batch_dimensions(tensor) + 1
    height, width = stored_numbers(tensor).shape[first : first + 2]
    return height, width


def materialised(tensor: Tensor) -> Tensor:
    """The same values in the same layout, with every element specified."""
    if not tensor.numel():
        return tensor.detach()
    ones = torch.ones(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    if tensor.layout is torch.sparse_coo:
        full = ones.to_sparse(tensor.sparse_dim())
    else:
        full = ones.to_sparse(layout=tensor.layout, blocksize=_block(tensor), dense_dim=tensor.dense_dim())
    dense = ones.zero_().view(-1).index_add_(0, places_of(tensor), stored_numbers(tensor).reshape(-1))
    indices = [new.to(own.dtype) for new, own in zip(stored_indices(full), stored_indices(tensor), strict=True)]
    return with_numbers(full, dense[places_of(full)].view(stored_numbers(full).shape), indices)


def unspecified(tensor: Tensor) -> int:
    """The number of elements without a stored number."""
    if not is_sparse(tensor):
        return 0
    once = tensor.layout is not torch.sparse_coo or tensor.is_coalesced()
    return tensor.numel() - (stored_numbers(tensor).numel() if once else len(torch.unique(places_of(tensor))))


class SparseCoordinates:
    """The specified elements of a sparse tensor, once each, in the order of their indices; complex ones as two numbers.

    `flatten` reads those places from values of any layout and pattern, without a dense copy. `unflatten` gives a tensor
    of the same pattern; where that has a place twice, the first entry holds the number.

    With `counts_rest`, there is one number more: the magnitude of the largest unspecified element of a value. It is
    zero for every tensor of the pattern and perturbing it changes nothing, so a correct derivative under masked
    semantics is zero there. All unspecified elements together cost one column.
    """

    __slots__ = ("_dense", "_first", "_places", "_ranks", "_specified", "_tensor", "home", "parts", "size")

    def __init__(self, tensor: Tensor, home: torch.device, *, counts_rest: bool = False) -> None:
        self._tensor, self.home = tensor.detach(), home
        self._dense = Dense(tensor.shape, tensor.dtype, tensor.device, home)
        self.parts = self._dense.parts
        self._places = places_of(tensor)
        # The place of every stored number, and the first number of every place; None where both count upwards.
        self._ranks: Tensor | None = None
        self._first: Tensor | None = None
        if not bool((self._places[1:] > self._places[:-1]).all()):
            entries = torch.arange(len(self._places), device=tensor.device)
            self._places, self._ranks = torch.unique(self._places, return_inverse=True)
            last = torch.full_like(self._places, len(entries))
            self._first = last.scatter_reduce_(0, self._ranks, entries, "amin")
        self._specified = self.size = len(self._places) * self.parts
        if counts_rest and len(self._places) < tensor.numel():
            self.size += self.parts

    def flatten(self, value: Any) -> Tensor:
        inside, outside = self._read(value.detach())
        vector = self._dense.flatten(inside)
        if self.size == self._specified:
            return vector
        rest = torch.tensor([outside, 0.0][: self.parts], dtype=WORKING_DTYPE, device=self.home)
        return torch.cat([vector, rest])

    def unflatten(self, vector: Tensor) -> Any:
        return with_numbers(self._tensor, self.shaped(vector))

    def label(self, index: int) -> str:
        if index >= self._specified:
            return "outside its pattern"
        number, part = divmod(index, self.parts)
        return self._dense.label(int(self._places[number]) * self.parts + part)

    def shaped(self, vector: Tensor) -> Tensor:
        """A vector of coordinates in the shape of the stored numbers."""
        numbers = stored_numbers(self._tensor)
        vector = vector[: self._specified].clone().to(numbers.device)
        found = (torch.view_as_complex(vector.view(-1, 2)) if self.parts == 2 else vector).to(numbers.dtype)
        if self._first is None:
            return found.view(numbers.shape)
        spread = torch.zeros(numbers.numel(), dtype=numbers.dtype, device=numbers.device)
        spread[self._first] = found
        return spread.view(numbers.shape)

    def units(self, first: int, last: int) -> Sequence[Tensor]:
        """Some vectors of the basis, `shaped`."""
        return [self.shaped(vector) for vector in unit_matrix(first, last, self.size, self.home)]

    def flatten_stored(self, numbers: Tensor) -> Tensor:
        """The inverse of `shaped`, without the rest."""
        numbers = numbers.reshape(-1)
        return self._dense.flatten(numbers if self._first is None else numbers[self._first])

    def _read(self, value: Tensor) -> tuple[Tensor, float]:
        """The numbers of a value at these places, and its largest magnitude elsewhere."""
        if not is_sparse(value):
            if len(self._places) == math.prod(self._tensor.shape):
                return value.reshape(-1), 0.0
            where = torch.unravel_index(self._places, self._tensor.shape)
            inside = value[where]
            return inside, _largest_outside(value, where, inside)
        numbers = stored_numbers(value).reshape(-1)
        numbers = numbers.to(torch.complex128 if numbers.is_complex() else WORKING_DTYPE)
        if self._is_pattern_of(value):
            return (numbers if self._ranks is None else _added(numbers, self._ranks, len(self._places))), 0.0
        places = places_of(value)
        ranks = torch.searchsorted(self._places, places)
        found = ranks < len(self._places)
        found[found.clone()] = self._places[ranks[found]] == places[found]
        inside = _added(numbers[found], ranks[found], len(self._places))
        return inside, _largest_total(numbers[~found], places[~found])

    def _is_pattern_of(self, value: Tensor) -> bool:
        """Whether a sparse value has the same indices."""
        own = self._tensor
        return (
            value.layout is own.layout
            and value.shape == own.shape
            and stored_numbers(value).shape == stored_numbers(own).shape
            and all(map(torch.equal, stored_indices(value), stored_indices(own)))
        )


def _added(numbers: Tensor, ranks: Tensor, count: int) -> Tensor:
    """The sums of numbers with the same rank."""
    return numbers.new_zeros(count).index_add_(0, ranks, numbers)


def _largest_total(numbers: Tensor, places: Tensor) -> float:
    """The largest magnitude, of the sums at each place."""
    if not len(places):
        return 0.0
    distinct, ranks = torch.unique(places, return_inverse=True)
    return float(_added(numbers, ranks, len(distinct)).abs().max())


def _largest_outside(value: Tensor, where: tuple[Tensor, ...], inside: Tensor) -> float:
    """The largest magnitude of a dense value, not counting the elements at `where`, whose numbers are `inside`.

    Each number in memory is read once: an expanded gradient may have more elements than fit into memory.
    """
    expanded = [step == 0 and length > 1 for step, length in zip(value.stride(), value.shape, strict=True)]
    kept = value[tuple(slice(0, 1) if whole else slice(None) for whole in expanded)]
    copies = math.prod(length for length, whole in zip(value.shape, expanded, strict=True) if whole)
    if int(torch.count_nonzero(kept)) * copies == int(torch.count_nonzero(inside)):
        return 0.0
    own = tuple(torch.zeros_like(index) if whole else index for index, whole in zip(where, expanded, strict=True))
    covered = torch.zeros(kept.shape, dtype=torch.int64, device=kept.device)
    covered.index_put_(own, torch.ones((), dtype=torch.int64, device=kept.device), accumulate=True)
    return float(kept[covered < copies].abs().max())


Copies = dict[int, Tensor]
"""Materialised copies by the identity of the tensors: one that is passed twice is perturbed in both places."""


class Sparse(Strided):
    """Perturbs the stored numbers of the caller's tensor, so that captured references see it, or those of a copy.

    Under unmasked semantics unspecified elements are perturbed too. They have no storage, so a copy with every element
    specified is perturbed instead. Derivatives are those of the caller's tensor.
    """

    __slots__ = ("_numbers", "_perturbed")

    compared = ("dtype", "device", "shape")

    def __init__(self, tensor: Tensor, masked: bool, home: torch.device, copies: Copies) -> None:
        self._perturbed = tensor
        if not masked and unspecified(tensor):
            if id(tensor) not in copies:
                copies[id(tensor)] = materialised(tensor).requires_grad_()
            self._perturbed = copies[id(tensor)]
        self._numbers = stored_numbers(self._perturbed)
        super().__init__(tensor, home, SparseCoordinates(self._perturbed, home, counts_rest=True))

    @property
    def numbers(self) -> Tensor:
        return self._numbers

    @property
    def unperturbed(self) -> Tensor:
        return self.tensor  # type: ignore[no-any-return]

    def rounded(self, vector: Tensor) -> tuple[Tensor, Tensor]:
        rounded = self._rounded(vector)
        realised = self.coordinates.flatten_stored(rounded)
        # Coordinates outside the pattern change nothing and are not rounded.
        return rounded, torch.cat([realised, vector[len(realised) :]])

    def place(self, displacement: Tensor, scale: float) -> Tensor:
        super().place(displacement, scale)
        return self._perturbed

    def points(self, displacements: Tensor) -> None:
        return None

    def mismatches(self, gradient: Any) -> list[tuple[str, str, str]]:
        found = super().mismatches(gradient)
        if gradient.layout is torch.strided:
            return found  # which is usual; a gradient of another sparse layout is an error
        kinds, expected = _kind(gradient), _kind(self.tensor)
        return [(name, str(kinds[name]), str(own)) for name, own in expected.items() if kinds[name] != own] + found


def _kind(tensor: Tensor) -> dict[str, Any]:
    return {"layout": tensor.layout, "sparse_dim": tensor.sparse_dim(), "dense_dim": tensor.dense_dim()}
