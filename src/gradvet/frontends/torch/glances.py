"""A glance at some point without the whole apparatus: a call or two and one backward pass.

What a glance does not settle, for whatever reason, is for others to find out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gradvet.core.lines import NEAR
from gradvet.core.problem import Cost
from gradvet.core.screening import AGREEMENT, COARSE
from gradvet.core.scrutiny import ROUNDOFFS
from gradvet.core.trial import DROWNING, LEAST_SIZE
from gradvet.frontends.torch.binding import Binding
from gradvet.frontends.torch.coordinates import WORK
from gradvet.frontends.torch.passes import swift_gradients
from gradvet.frontends.torch.problem import differentiable, tensors_in
from gradvet.frontends.torch.subject import signed_numbers

EPSILON = torch.finfo(WORK).eps


class Glance:
    """What may be expected of a function elsewhere, given what is known of it at the user's point.

    Values larger than `most` are out of all proportion, slopes smaller than `immaterial` are nothing.
    """

    def __init__(self, most: float, immaterial: float, seed: int, cost: Cost) -> None:
        self.most, self.immaterial, self.cost = most, immaterial, cost
        self._seed = seed

    @cached_property
    def _generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self._seed)

    def are_finite(self, *bindings: Binding) -> bool:
        """Whether nowhere a value or an entry of a gradient is infinite, not a number or, of values, out of proportion.

        All points in one backward pass.
        """
        self.cost.forwards, self.cost.pulls = self.cost.forwards + len(bindings), self.cost.pulls + 1
        try:
            live = [output for binding in bindings for output in _live(binding, binding.arguments)]
            if not live or not _size(live) <= self.most:
                return False
            sources = tuple([source for binding in bindings for source in _sources(binding)])
            found = swift_gradients(tuple(live), sources, tuple([torch.ones_like(y) for y in live]))
            gradients = [gradient for gradient in found if gradient is not None]
            return not gradients or _size(gradients) < torch.inf
        except Exception:
            return False

    def agrees(self, binding: Binding) -> bool:
        """Whether the gradient is the slope along all inputs at once, towards one side; for ordinary tensors alone."""
        self.cost.forwards, self.cost.pulls = self.cost.forwards + 2, self.cost.pulls + 1
        try:
            return all(map(_is_ordinary, _sources(binding))) and self._agrees(binding)
        except Exception:
            return False

    def _agrees(self, binding: Binding) -> bool:
        sources = _sources(binding)
        live = _live(binding, binding.arguments)
        if not live or not all(map(_is_ordinary, live)):
            return False
        # A copy: an output may be a view of an input.
        f0, x = _vector(live).clone(), _vector(sources)
        if not f0.numel() or not _size([f0]) <= self.most:
            return False
        sizes = torch.cat([_sizes(source) for source in sources])
        ahead = x + NEAR * sizes * signed_numbers(x.numel(), self._generator)
        moved, slope = (ahead - x) / NEAR, (_vector(_live(binding, _at(binding, ahead))) - f0) / NEAR
        noise, size = EPSILON * f0.abs(), slope.abs()
        if not (top := float(size.max())) < torch.inf:
            return False
        # Every output counts about the same, unless its slope drowns in its roundoff.
        weight = size + noise * (DROWNING / NEAR) + (COARSE * top or 1.0)
        v = signed_numbers(f0.numel(), self._generator) * (weight.min() / weight)
        w = _gradient(live, sources, v)
        allowed = AGREEMENT * max(_norm(w * moved), _norm(v * slope))
        allowed += ROUNDOFFS * _norm(v * noise) / NEAR + self.immaterial * _norm(v)
        return abs(float(v @ slope) - float(w @ moved)) <= allowed < torch.inf


def _sources(binding: Binding) -> tuple[Any, ...]:
    return tuple([binding.arguments[place] for place in binding.checked])


def _live(binding: Binding, arguments: Sequence[Any]) -> list[Any]:
    return [output for output in tensors_in(binding.function(*arguments)) if differentiable(output)]


def _is_ordinary(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype is WORK and value.layout is torch.strided and value.is_cpu


def _vector(tensors: Sequence[Tensor]) -> Tensor:
    if len(tensors) == 1:
        return tensors[0].detach().reshape(-1)
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def _at(binding: Binding, vector: Tensor) -> list[Any]:
    """The arguments with these numbers in place of those that are checked."""
    arguments, start = list(binding.arguments), 0
    for place in binding.checked:
        own = arguments[place]
        arguments[place] = vector[start : start + own.numel()].view(own.shape).clone().requires_grad_()
        start += own.numel()
    return arguments


def _gradient(live: Sequence[Tensor], sources: Sequence[Tensor], v: Tensor) -> Tensor:
    cotangents = [
        part.view(output.shape).clone()
        for part, output in zip(v.split([output.numel() for output in live]), live, strict=True)
    ]
    found = swift_gradients(tuple(live), tuple(sources), tuple(cotangents))
    return _vector([torch.zeros_like(s) if g is None else g for g, s in zip(found, sources, strict=True)])


def _sizes(source: Tensor) -> Tensor:
    """By how much to move each number: by its own size, or a quarter of what is usual in its tensor."""
    size = source.detach().reshape(-1).abs()
    usual = math.sqrt(float(size @ size) / max(size.numel(), 1))
    return size.clamp_(min=LEAST_SIZE * (usual or 1.0 / LEAST_SIZE))


def _norm(vector: Tensor) -> float:
    return math.sqrt(float(vector @ vector))


def _size(tensors: Sequence[Tensor]) -> float:
    """The largest size of a number; not a number where one of them is not; infinite where a tensor has none."""
    if not all(tensor.layout is torch.strided and tensor.numel() for tensor in tensors):
        return torch.inf
    return float(torch.cat([tensor.detach().reshape(-1) for tensor in tensors]).abs().max())
