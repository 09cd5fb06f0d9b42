"""The differentiable operators by name: `addmm/float64`, `addmm/inplace/float64`, each with its samples."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from gradvet.errors import InvalidProblemError
from gradvet.frontends.torch.inputs import differentiable
from gradvet.frontends.torch.opdb.database import (
    Variant,
    dtype_name,
    is_differentiable,
    operator_named,
    operators,
    variants,
)
from gradvet.frontends.torch.opdb.marks import Mark, marks, settings
from gradvet.frontends.torch.opdb.samples import Sample, coordinates, draw


@dataclass(frozen=True, slots=True)
class Specimen:
    """A sample, ready for `gradvet.check(function, inputs, **settings)`."""

    function: Callable[..., Any]
    inputs: tuple[torch.Tensor, ...]
    settings: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Group:
    """One operator in one variant, dtype and place."""

    operator: str
    variant: Variant
    dtype: torch.dtype
    device: str

    def __str__(self) -> str:
        inplace = "/inplace" if self.variant is Variant.INPLACE else ""
        return f"{self.operator}{inplace}/{dtype_name(self.dtype)}"

    def indices(self, limit: int | None) -> list[int]:
        """The numbers of its samples, or of some at random; those with nothing to differentiate at are taken last."""
        samples = _drawn(self)
        if limit is None or len(samples) <= limit:
            return list(samples)
        shuffled = random.Random(0).sample(list(samples), len(samples))
        return sorted(sorted(shuffled, key=lambda index: not coordinates(samples[index].inputs))[:limit])

    def sample(self, index: int) -> Specimen | None:
        sample = _drawn(self).get(index)
        if sample is None:
            return None
        return Specimen(sample.function, sample.inputs, settings(operator_named(self.operator), self.variant))

    def marks(self) -> list[Mark]:
        """What PyTorch's own gradient tests let this operator off."""
        return marks(operator_named(self.operator), self.dtype, self.variant, self.device)


def groups(glob: str, dtypes: Sequence[str], device: str) -> list[Group]:
    """The operators that fit and are declared to be differentiable there."""
    kinds = [differentiable(name) for name in dtypes]
    return [
        Group(operator.full_name, variant, dtype, device)
        for operator in operators(glob)
        for dtype in kinds
        if is_differentiable(operator, dtype, device)
        for variant in variants(operator)
    ]


def group_named(name: str, device: str) -> Group:
    """The group that `str` calls so."""
    operator, *rest = name.split("/")
    variant = Variant.INPLACE if rest[:-1] == ["inplace"] else Variant.FUNCTION
    if not rest or not operators(operator):
        raise InvalidProblemError(f"the operator database has no {name!r}: a name is such as addmm/float64")
    return Group(operator, variant, differentiable(rest[-1]), device)


@lru_cache(maxsize=8)
def _drawn(group: Group) -> dict[int, Sample]:
    """Cases of one operator come one after the other, so its samples are kept until others are wanted."""
    samples = draw(operator_named(group.operator), group.dtype, group.variant, device=group.device)
    return {sample.index: sample for sample in samples}
