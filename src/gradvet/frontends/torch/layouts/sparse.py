"""Sparse arguments of every layout: their coordinates, and how stored numbers are perturbed; the pattern stays."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from gradvet.frontends.torch.layouts.dense import WORKING_DTYPE, Dense, dual_of, separate, step_rounding
from gradvet.frontends.torch.layouts.sparse_storage import is_sparse, materialised, storage_of


class Pattern:
    """The specified places of a sparse tensor, in order and once each.

    `ranks` holds the index of the place of every stored number, `first` the index of the first number of every place.
    The pattern is `simple` if the numbers are stored in the order of their places, with no place twice.
    """

    __slots__ = ("first", "places", "ranks", "shape", "simple", "storage", "unspecified")

    def __init__(self, tensor: Tensor) -> None:
        self.storage = storage_of(tensor)
        self.shape = tensor.shape
        places = self.storage.places()
        entries = torch.arange(len(places), device=places.device)
        self.simple = bool((places[1:] > places[:-1]).all())
        if self.simple:
            self.places, self.ranks, self.first = places, entries, entries
        else:
            self.places, self.ranks = torch.unique(places, return_inverse=True)
            last = torch.full_like(self.places, len(places))
            self.first = last.scatter_reduce_(0, self.ranks, entries, "amin")
        self.unspecified = math.prod(self.shape) - len(self.places)

    def is_of(self, value: Tensor) -> bool:
        """Whether a sparse value has the same indices as this tensor."""
        own, other = self.storage, storage_of(value)
        return (
            value.layout is own.tensor.layout
            and value.shape == self.shape
            and other.numbers.shape == own.numbers.shape
            and all(map(torch.equal, other.indices, own.indices))
        )

    def find(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """For other places: the index of each among these, and whether it is one of them."""
        ranks = torch.searchsorted(self.places, places)
        inside = ranks < len(self.places)
        inside[inside.clone()] = self.places[ranks[inside]] == places[inside]
        return ranks, inside


class SparseCoordinates:
    """The elements at the places of a pattern, in the order of their indices; complex ones as (real, imaginary).

    `flatten` reads those places from values of any layout and pattern, without a dense copy. `unflatten` gives a tensor
    of the pattern's layout; where that has a place twice, the first entry holds the number.
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
        """The inverse of `stored`."""
        numbers = numbers.reshape(-1)
        return self._vector(numbers if self.pattern.simple else numbers[self.pattern.first])

    def _vector(self, numbers: Tensor) -> Tensor:
        """One number per place, as real coordinates on the home device."""
        if self.parts == 2:
            numbers = torch.view_as_real(numbers.to(torch.complex128).resolve_conj()).reshape(-1)
        elif numbers.is_complex():
            numbers = numbers.real
        return numbers.to(self.home, WORKING_DTYPE)

    def _read(self, value: Tensor) -> tuple[Tensor, float]:
        """The numbers of a value at these places, and its largest magnitude elsewhere."""
        pattern = self.pattern
        if not is_sparse(value):
            return self._read_dense(value)
        stored = storage_of(value)
        numbers = stored.numbers.reshape(-1)
        numbers = numbers.to(torch.complex128 if numbers.is_complex() else WORKING_DTYPE)
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


class MaskedSparseCoordinates(SparseCoordinates):
    """The specified elements, and the magnitude of the largest unspecified element of a value.

    That number is zero for every tensor of the pattern and perturbing it changes nothing, so a correct derivative under
    masked semantics is zero there. All unspecified elements together cost one column.
    """

    __slots__ = ()

    def __init__(self, pattern: Pattern, home: torch.device) -> None:
        super().__init__(pattern, home)
        self.size += self.parts

    def flatten(self, value: Any) -> Tensor:
        inside, outside = self._read(value.detach())
        extra = torch.tensor([outside, 0.0][: self.parts], dtype=WORKING_DTYPE, device=self.home)
        return torch.cat([self._vector(inside), extra])

    def stored(self, vector: Tensor) -> Tensor:
        return super().stored(vector[: self.size - self.parts])

    def label(self, index: int) -> str:
        return super().label(index) if index < self.size - self.parts else "outside its pattern"


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


class Sparse:
    """Perturbs `perturbed`: the caller's tensor, so that captured references see it, or a copy.

    Under unmasked semantics unspecified elements are perturbed too. They have no storage, so a copy with every element
    specified is perturbed instead. Derivatives are those of the caller's tensor.
    """

    __slots__ = ("_numbers", "_rounding", "base", "coordinates", "independent", "perturbed", "tensor")

    def __init__(self, tensor: Tensor, masked: bool, home: torch.device, copies: Copies) -> None:
        self.tensor = self.perturbed = tensor
        pattern = Pattern(tensor)
        if pattern.unspecified and not masked:
            if id(tensor) not in copies:
                copies[id(tensor)] = materialised(tensor).requires_grad_()
            self.perturbed = copies[id(tensor)]
            pattern = Pattern(self.perturbed)
        self.coordinates = (MaskedSparseCoordinates if pattern.unspecified else SparseCoordinates)(pattern, home)
        self._numbers = storage_of(self.perturbed).numbers
        self.base = self._numbers.clone()
        self._rounding = step_rounding(self.base, 1.0)
        self.independent = separate(self._numbers.size(), self._numbers.stride())

    def displacement(self, vector: Tensor) -> Tensor:
        return self.coordinates.stored(vector)

    def rounded(self, vector: Tensor) -> tuple[Tensor, Tensor]:
        rounded = (self.base + self.displacement(vector)) - self.base
        if not self._rounding < torch.inf:
            rounded = torch.nan_to_num(rounded, 0.0, 0.0, 0.0)
        realised = self.coordinates.read_stored(rounded)
        # Coordinates outside the pattern change nothing and are not rounded.
        return rounded, torch.cat([realised, vector[len(realised) :]])

    def place(self, displacement: Tensor, scale: float) -> Any:
        self._numbers.add_(displacement, alpha=scale)
        return self.perturbed

    def points(self, displacements: Tensor) -> Tensor | None:
        return None

    def restore(self) -> None:
        self._numbers.copy_(self.base)

    def step_rounding(self, step: float) -> float:
        return self._rounding / step

    def dual(self, tangent: Tensor | None) -> Tensor:
        return dual_of(self.tensor.detach(), tangent)

    def mismatches(self, gradient: Any) -> list[tuple[str, str, str]]:
        found, expected = _attributes(gradient), _attributes(self.tensor)
        # A dense gradient of a sparse tensor is usual; one of another sparse layout is an error.
        if gradient.layout is not torch.strided:
            found, expected = _kind(gradient) | found, _kind(self.tensor) | expected
        return [(name, str(found[name]), str(expected[name])) for name in found if found[name] != expected[name]]


def _kind(tensor: Tensor) -> dict[str, Any]:
    return {"layout": tensor.layout, "sparse_dim": tensor.sparse_dim(), "dense_dim": tensor.dense_dim()}


def _attributes(tensor: Tensor) -> dict[str, Any]:
    return {"dtype": tensor.dtype, "device": tensor.device, "shape": tensor.shape}
