"""Coordinate storage: one column of indices per entry, each entry a number or, in hybrid tensors, a dense block."""

from __future__ import annotations

import math

import torch
from torch import Tensor


class Coo:
    """A COO tensor, coalesced or not."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    @property
    def numbers(self) -> Tensor:
        return self.tensor._values().data

    @property
    def indices(self) -> tuple[Tensor, ...]:
        return (self.tensor._indices(),)

    @property
    def once(self) -> bool:
        return self.tensor.is_coalesced()

    def places(self) -> Tensor:
        indices, shape = self.tensor._indices(), self.tensor.shape
        place = torch.zeros(indices.shape[1], dtype=torch.int64, device=indices.device)
        for length, index in zip(shape[: len(indices)], indices, strict=True):
            place = place * length + index
        inner = torch.arange(math.prod(shape[len(indices) :]), device=indices.device)
        return (place[:, None] * len(inner) + inner).reshape(-1)

    def holding(self, numbers: Tensor) -> Tensor:
        indices, coalesced = self.tensor._indices(), self.tensor.is_coalesced()
        return torch.sparse_coo_tensor(
            indices, numbers, self.tensor.shape, is_coalesced=coalesced, check_invariants=False
        )

    def everywhere(self) -> Tensor:
        tensor, outer = self.tensor, self.tensor.sparse_dim()
        indices = torch.ones(tensor.shape[:outer], dtype=torch.bool, device=tensor.device).nonzero().t()
        numbers = self.numbers.new_zeros(indices.shape[1], *tensor.shape[outer:])
        return torch.sparse_coo_tensor(indices, numbers, tensor.shape, is_coalesced=True, check_invariants=False)
