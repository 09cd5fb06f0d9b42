"""Which elements of a sparse tensor are specified, and where their numbers are stored."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gradvet.frontends.torch.layouts.storage import storage_of


class Pattern:
    """The places of a sparse tensor, in order and once each.

    `ranks` gives for every stored number which place it belongs to, `first` for every place the first number of it.
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
        """Whether a sparse value has the very indices of this tensor."""
        own, other = self.storage, storage_of(value)
        return (
            value.layout is own.tensor.layout
            and value.shape == self.shape
            and other.numbers.shape == own.numbers.shape
            and all(map(torch.equal, other.indices, own.indices))
        )

    def find(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """For other places: which of these each is, and whether it is one of them at all."""
        ranks = torch.searchsorted(self.places, places)
        inside = ranks < len(self.places)
        inside[inside.clone()] = self.places[ranks[inside]] == places[inside]
        return ranks, inside
