"""Coordinates of sparse values: the elements that are specified.

Unmasked semantics materialises every element first, so that all of them are. Under masked semantics the others are no
coordinates. A gradient that is not zero there has left the space, and `Masked` says how far.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradvet.frontends.torch.coordinates import WORK, Dense
from gradvet.frontends.torch.layouts.storage import is_sparse, storage_of


class Specified:
    """The elements at the places of `tensor`, in the order of their indices; complex ones as (real, imaginary).

    `flatten` reads those places from values of any layout and pattern, without a dense copy. `unflatten` gives a tensor
    of the layout and pattern of `tensor`; where that has a place twice, the number stands in the first entry.
    """

    __slots__ = ("_dense", "_first", "_ranks", "_storage", "_where", "home", "parts", "places", "shape", "size")

    def __init__(self, tensor: Tensor, home: torch.device) -> None:
        self._storage = storage_of(tensor)
        self._dense = Dense(tensor.shape, tensor.dtype, tensor.device, home)
        self.shape, self.home, self.parts = tensor.shape, home, self._dense.parts
        self.places, self._ranks, self._first = _ordered(self._storage.places())
        self._where = () if self.complete else torch.unravel_index(self.places, self.shape)
        self.size = len(self.places) * self.parts

    @property
    def complete(self) -> bool:
        """Whether every element of the dense shape is specified."""
        return len(self.places) == math.prod(self.shape)

    def flatten(self, value: Any) -> Tensor:
        value = value.detach()
        return self._vector(self._gather(self._entries(value)) if is_sparse(value) else self._pick(value))

    def unflatten(self, vector: Tensor) -> Any:
        return self._storage.holding(self.stored(vector))

    def label(self, index: int) -> str:
        number, part = divmod(index, self.parts)
        return self._dense.label(int(self.places[number]) * self.parts + part)

    def stored(self, vector: Tensor) -> Tensor:
        """A vector of coordinates in the shape of the stored numbers."""
        numbers = self._storage.numbers
        vector = vector.clone().to(numbers.device)
        found = (torch.view_as_complex(vector.view(-1, 2)) if self.parts == 2 else vector).to(numbers.dtype)
        spread = torch.zeros(numbers.numel(), dtype=numbers.dtype, device=numbers.device)
        spread[self._first] = found
        return spread.view(numbers.shape)

    def read_stored(self, numbers: Tensor) -> Tensor:
        """The coordinates of what `stored` gave."""
        return self._vector(numbers.reshape(-1)[self._first])

    def _vector(self, numbers: Tensor) -> Tensor:
        """One number per place, as real coordinates on the home device."""
        if self.parts == 2:
            numbers = torch.view_as_real(numbers.to(torch.complex128).resolve_conj()).reshape(-1)
        elif numbers.is_complex():
            numbers = numbers.real
        return numbers.to(self.home, WORK)

    def _pick(self, value: Tensor) -> Tensor:
        """The numbers of a dense value at these places."""
        return value[self._where] if self._where else value.reshape(-1)[: len(self.places)]

    def _gather(self, entries: _Entries) -> Tensor:
        """The numbers of a sparse value at these places; those of one place add up."""
        found = entries.numbers.new_zeros(len(self.places))
        return found.index_add_(0, entries.ranks[entries.inside], entries.numbers[entries.inside])

    def _entries(self, value: Tensor) -> _Entries:
        stored, own = storage_of(value), self._storage
        numbers = stored.numbers.reshape(-1)
        numbers = numbers.to(torch.complex128 if numbers.is_complex() else WORK)
        if (
            value.layout is own.tensor.layout
            and stored.numbers.shape == own.numbers.shape
            and all(map(torch.equal, stored.indices, own.indices))
        ):
            return _Entries(numbers, self._ranks, self._ranks >= 0, self._ranks)
        places = stored.places()
        ranks = torch.searchsorted(self.places, places)
        inside = ranks < len(self.places)
        inside[inside.clone()] = self.places[ranks[inside]] == places[inside]
        return _Entries(numbers, ranks, inside, places)


class Masked(Specified):
    """The specified elements, and one number more: how large a value is at its largest unspecified element.

    That number is zero for every tensor of the pattern, and moving it moves nothing, so a derivative that is right
    under masked semantics has nothing there. All the unspecified elements together cost one column.
    """

    __slots__ = ()

    def __init__(self, tensor: Tensor, home: torch.device) -> None:
        super().__init__(tensor, home)
        self.size += self.parts

    def flatten(self, value: Any) -> Tensor:
        value = value.detach()
        if is_sparse(value):
            entries = self._entries(value)
            inside, outside = self._gather(entries), entries.largest_outside()
        else:
            inside = self._pick(value)
            outside = self._largest_outside(value, inside)
        beside = torch.tensor([outside, 0.0][: self.parts], dtype=WORK, device=self.home)
        return torch.cat([self._vector(inside), beside])

    def stored(self, vector: Tensor) -> Tensor:
        return super().stored(vector[: self.size - self.parts])

    def label(self, index: int) -> str:
        return super().label(index) if index < self.size - self.parts else "outside its pattern"

    def _largest_outside(self, value: Tensor, inside: Tensor) -> float:
        """Looks at each number in memory once: an expanded gradient may stand for more elements than memory holds."""
        expanded = [step == 0 and length > 1 for step, length in zip(value.stride(), value.shape, strict=True)]
        kept = value[tuple(slice(0, 1) if whole else slice(None) for whole in expanded)]
        copies = math.prod(length for length, whole in zip(value.shape, expanded, strict=True) if whole)
        if int(torch.count_nonzero(kept)) * copies == int(torch.count_nonzero(inside)):
            return 0.0
        where = zip(torch.unravel_index(self.places, self.shape), expanded, strict=True)
        covered = torch.zeros(kept.shape, dtype=torch.int64, device=kept.device)
        covered.index_put_(
            tuple(torch.zeros_like(index) if whole else index for index, whole in where),
            torch.ones_like(self.places),
            accumulate=True,
        )
        return float(kept[covered < copies].abs().max())


@dataclass(frozen=True, slots=True)
class _Entries:
    """The stored numbers of a sparse value: which coordinate each would be, whether it is one, and its place."""

    numbers: Tensor
    ranks: Tensor
    inside: Tensor
    places: Tensor

    def largest_outside(self) -> float:
        if bool(self.inside.all()):
            return 0.0
        places, ranks = torch.unique(self.places[~self.inside], return_inverse=True)
        total = self.numbers.new_zeros(len(places)).index_add_(0, ranks, self.numbers[~self.inside])
        return float(total.abs().max())


def _ordered(places: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The places in order and once each; for every entry the number of its place; for every place its first entry."""
    entries = torch.arange(len(places), device=places.device)
    if bool((places[1:] > places[:-1]).all()):
        return places, entries, entries
    ordered, ranks = torch.unique(places, return_inverse=True)
    first = torch.full_like(ordered, len(places)).scatter_reduce_(0, ranks, entries, "amin")
    return ordered, ranks, first
