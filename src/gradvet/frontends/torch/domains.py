"""Regions of inputs, as the user gives them in `domain=`, and candidate values brought into them.

The region of one input is an interval `(low, high)` with None for no bound; a function of candidate values that returns
which are inside (a mask, or one truth value) or other values of the same shape (a sampler); or a Hypothesis strategy of
numbers or of tensors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradvet.core.frontend import examples, is_strategy
from gradvet.errors import InvalidProblemError

MAX_EXAMPLES = 64
"""Numbers that are drawn from a strategy of numbers; larger tensors repeat them."""


Region = Any
"""An interval, a function of candidate values, or a Hypothesis strategy."""


@dataclass(frozen=True, slots=True)
class Regions:
    """The region of each argument by its position; arguments without an entry may have any value."""

    regions: Mapping[int, Region]

    @classmethod
    def of(cls, given: Any, names: Sequence[str]) -> Regions:
        """From one region per input in their order, by name or number, or one region for all inputs."""
        if given is None:
            return cls({})
        if isinstance(given, Mapping):
            regions = {_place(key, names): region for key, region in given.items()}
        elif isinstance(given, list):
            if len(given) > len(names):
                raise InvalidProblemError(f"domain= has {len(given)} entries for {len(names)} inputs: give one each")
            regions = {place: region for place, region in enumerate(given) if region is not None}
        else:
            regions = dict.fromkeys(range(len(names)), given)
        return cls(regions)

    @property
    def strategies(self) -> list[int]:
        """The positions of arguments that have a strategy."""
        return [place for place, region in self.regions.items() if is_strategy(region)]

    def example(self, place: int, like: Tensor, seed: int) -> Tensor:
        """A value from the strategy of an argument."""
        return _drawn(self.regions[place], like, seed)

    def edges(self, place: int) -> list[float]:
        """The finite ends of an interval."""
        region = self.regions.get(place)
        ends = region if isinstance(region, tuple) else ()
        return [float(end) for end in ends if end is not None and math.isfinite(end)]

    def inside(self, place: int, candidate: Tensor, own: Tensor) -> Tensor | None:
        """The candidate with numbers outside of the region replaced by the user's; None if all are outside."""
        region = self.regions.get(place)
        if region is None:
            return candidate
        if is_strategy(region):
            return own if own.shape == candidate.shape else None
        if isinstance(region, tuple):
            if candidate.is_complex():
                raise InvalidProblemError("an interval is for real inputs; give a function for a complex one")
            low, high = (-math.inf if region[0] is None else region[0], math.inf if region[1] is None else region[1])
            return _kept(candidate, (candidate >= low) & (candidate <= high), own)
        answer = region(candidate)
        if isinstance(answer, Tensor) and answer.dtype is not torch.bool:
            if answer.shape != candidate.shape:
                raise InvalidProblemError(
                    f"the sampler of domain= must give values of the shape {tuple(candidate.shape)} that it receives, "
                    f"found {tuple(answer.shape)}"
                )
            return answer.detach().to(candidate.dtype)
        if isinstance(answer, Tensor) and answer.dim():
            return _kept(candidate, answer, own)
        return candidate if bool(answer) else None


def _kept(candidate: Tensor, allowed: Tensor, own: Tensor) -> Tensor | None:
    if bool(allowed.all()):
        return candidate
    if candidate.shape != own.shape:
        return None
    return torch.where(allowed, candidate, own) if bool(allowed.any()) else None


def _drawn(strategy: Any, like: Tensor, seed: int) -> Tensor:
    """A tensor from a strategy of tensors, or numbers from a strategy of numbers."""
    first = examples(strategy, min(MAX_EXAMPLES, max(1, like.numel())), seed)
    whole = [torch.as_tensor(value, device=like.device) for value in first]
    for tensor in whole:
        if tensor.dim() and tensor.shape == like.shape:
            return tensor.detach().to(like.dtype).clone()
    numbers = torch.stack([tensor.reshape(-1)[0] for tensor in whole if tensor.numel()]).to(like.dtype)
    index = torch.arange(like.numel(), device=like.device) % len(numbers)
    return numbers[index].reshape(like.shape)


def _place(key: Any, names: Sequence[str]) -> int:
    if isinstance(key, int) and 0 <= key < len(names):
        return key
    if key in names:
        return names.index(key)
    raise InvalidProblemError(f"domain= names {key!r}, but the inputs are: {', '.join(names)}")
