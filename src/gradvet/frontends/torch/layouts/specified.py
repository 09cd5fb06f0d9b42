"""Coordinates of sparse values: the elements that are specified.

Unmasked semantics materialises every element first, so that all of them are. Under masked semantics the others are no
coordinates. A gradient that is not zero there has left the space, and `Masked` says how far.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from gradvet.frontends.torch.coordinates import WORK, Dense
from gradvet.frontends.torch.layouts.pattern import Pattern
from gradvet.frontends.torch.layouts.storage import is_sparse, storage_of


class Specified:
    """The elements at the places of a pattern, in the order of their indices; complex ones as (real, imaginary).

    `flatten` reads those places from values of any layout and pattern, without a dense copy. `unflatten` gives a tensor
    of the pattern's own layout; where that has a place twice, the number stands in the first entry.
    """

    __slots__ = ("_dense", "home", "parts", "pattern", "size")

    def __init__(self, pattern: Pattern, home: torch.device) -> None:
        tensor = pattern.storage.tensor
        self.pattern, self.home = pattern, home
        self._dense = Dense(tensor.shape, tensor.dtype, tensor.device, home)
        self.parts = self._dense.parts
        self.size = len(pattern.places) * self.parts

    def flatten(self, value: Any) -> Tensor:
        return self._vector(self._read(value.detach())[0])

    def unflatten(self, vector: Tensor) -> Any:
        return self.pattern.storage.holding(self.stored(vector))

    def label(self, index: int) -> str:
        number, part = divmod(index, self.parts)
        return self._dense.label(int(self.pattern.places[number]) * self.parts + part)

    def stored(self, vector: Tensor) -> Tensor:
        """A vector of coordinates in the shape of the stored numbers."""
        numbers = self.pattern.storage.numbers
        vector = vector.clone().to(numbers.device)
        found = (torch.view_as_complex(vector.view(-1, 2)) if self.parts == 2 else vector).to(numbers.dtype)
        if self.pattern.simple:
            return found.view(numbers.shape)
        spread = torch.zeros(numbers.numel(), dtype=numbers.dtype, device=numbers.device)
        spread[self.pattern.first] = found
        return spread.view(numbers.shape)

    def read_stored(self, numbers: Tensor) -> Tensor:
        """The coordinates of what `stored` gave."""
        numbers = numbers.reshape(-1)
        return self._vector(numbers if self.pattern.simple else numbers[self.pattern.first])

    def _vector(self, numbers: Tensor) -> Tensor:
        """One number per place, as real coordinates on the home device."""
        if self.parts == 2:
            numbers = torch.view_as_real(numbers.to(torch.complex128).resolve_conj()).reshape(-1)
        elif numbers.is_complex():
            numbers = numbers.real
        return numbers.to(self.home, WORK)

    def _read(self, value: Tensor) -> tuple[Tensor, float]:
        """The numbers of a value at these places, and how large it is elsewhere."""
        pattern = self.pattern
        if not is_sparse(value):
            return self._read_dense(value)
        stored = storage_of(value)
        numbers = stored.numbers.reshape(-1)
        numbers = numbers.to(torch.complex128 if numbers.is_complex() else WORK)
        if pattern.is_of(value):
            return (numbers if pattern.simple else _added(numbers, pattern.ranks, len(pattern.places))), 0.0
        places = stored.places()
        ranks, inside = pattern.find(places)
        return (
            _added(numbers[inside], ranks[inside], len(pattern.places)),
            _largest_total(numbers[~inside], places[~inside]),
        )

    def _read_dense(self, value: Tensor) -> tuple[Tensor, float]:
        pattern = self.pattern
        if not pattern.unspecified:
            return value.reshape(-1), 0.0
        where = torch.unravel_index(pattern.places, pattern.shape)
        inside = value[where]
        return inside, _largest_outside(value, where, inside)


class Masked(Specified):
    """The specified elements, and one number more: how large a value is at its largest unspecified element.

    That number is zero for every tensor of the pattern, and moving it moves nothing, so a derivative that is right
    under masked semantics has nothing there. All the unspecified elements together cost one column.
    """

    __slots__ = ()

    def __init__(self, pattern: Pattern, home: torch.device) -> None:
        super().__init__(pattern, home)
        self.size += self.parts

    def flatten(self, value: Any) -> Tensor:
        inside, outside = self._read(value.detach())
        beside = torch.tensor([outside, 0.0][: self.parts], dtype=WORK, device=self.home)
        return torch.cat([self._vector(inside), beside])

    def stored(self, vector: Tensor) -> Tensor:
        return super().stored(vector[: self.size - self.parts])

    def label(self, index: int) -> str:
        return super().label(index) if index < self.size - self.parts else "outside its pattern"


def _added(numbers: Tensor, ranks: Tensor, count: int) -> Tensor:
    """Numbers of the same rank add up."""
    return numbers.new_zeros(count).index_add_(0, ranks, numbers)


def _largest_total(numbers: Tensor, places: Tensor) -> float:
    """The largest magnitude, where numbers at the same place add up."""
    if not len(places):
        return 0.0
    distinct, ranks = torch.unique(places, return_inverse=True)
    return float(_added(numbers, ranks, len(distinct)).abs().max())


def _largest_outside(value: Tensor, where: tuple[Tensor, ...], inside: Tensor) -> float:
    """The largest magnitude of a dense value, not counting the elements at `where`, whose numbers are `inside`.

    Each number in memory is looked at once: an expanded gradient may stand for more elements than memory could hold.
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
