"""A glance at some point without the whole apparatus: a call or two and one backward pass.

What a glance does not settle, for whatever reason, is for others to find out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gradvet.core.context import DROWNING, LEAST_SIZE
from gradvet.core.finite_differences import NEAR
from gradvet.core.line_test import COARSE, POINT_AGREEMENT, ROUNDOFFS
from gradvet.core.problem import Cost
from gradvet.frontends.torch.binding import Binding
from gradvet.frontends.torch.coordinates import WORK
from gradvet.frontends.torch.draws import SHARP, fresh
from gradvet.frontends.torch.passes import swift_gradients
from gradvet.frontends.torch.problem import differentiable, tensors_in

EPS = torch.finfo(WORK).eps


@dataclass(frozen=True, slots=True, eq=False)
class _Start:
    """A call of the function at a point."""

    binding: Binding
    sources: tuple[Tensor, ...]
    live: list[Tensor]
    value: Tensor


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

    def agree(self, bindings: Sequence[Binding]) -> list[bool]:
        """Whether at each of some points the gradient is the slope along all inputs at once, towards one side.

        For ordinary tensors alone. Points with tensors of the same shapes share one backward pass; where that fails,
        each is looked at by itself.
        """
        alike: dict[object, list[int]] = {}
        for number, binding in enumerate(bindings):
            alike.setdefault(tuple([source.shape for source in _sources(binding)]), []).append(number)
        found = [False] * len(bindings)
        for numbers in alike.values():
            for number, answer in zip(numbers, self._agree([bindings[i] for i in numbers]), strict=True):
                found[number] = answer
        return found

    def _agree(self, bindings: Sequence[Binding]) -> list[bool]:
        starts = [self._start(binding) for binding in bindings]
        started = [start for start in starts if start is not None]
        try:
            compared = bool(started) and started[0].value.numel() > 0
            answers = iter(self._hold(started) if compared else [self._runs(start) for start in started])
        except Exception:
            if len(started) > 1:
                return [start is not None and self._agree([start.binding])[0] for start in starts]
            return [False] * len(bindings)
        return [start is not None and next(answers) for start in starts]

    def _start(self, binding: Binding) -> _Start | None:
        """A call at the point itself; None where there is nothing to hold a gradient to."""
        sources = _sources(binding)
        if not all(map(_is_ordinary, sources)):
            return None
        self.cost.forwards += 1
        try:
            live = _live(binding, binding.arguments)
        except Exception:
            return None
        if not live or not all(map(_is_ordinary, live)):
            return None
        # A copy: an output may be a view of an input.
        value = _vector(live).clone()
        return None if value.numel() and not _size([value]) <= self.most else _Start(binding, sources, live, value)

    def _runs(self, start: _Start) -> bool:
        """Whether there is a backward pass where there is no number to compare."""
        self.cost.pulls += 1
        return len(swift_gradients(tuple(start.live), start.sources, tuple(map(torch.zeros_like, start.live)))) > 0

    def _hold(self, starts: Sequence[_Start]) -> list[bool]:
        """Each gradient held to a slope: a row for every point, which all have as many inputs and outputs."""
        self.cost.forwards, self.cost.pulls = self.cost.forwards + len(starts), self.cost.pulls + 1
        x = torch.stack([_vector(start.sources) for start in starts])
        f0 = torch.stack([start.value for start in starts])
        u, v = fresh(SHARP, x.numel() + f0.numel(), self._generator).split([x.numel(), f0.numel()])
        ahead = (_sizes(x, starts[0].sources) * u.view(x.shape)).mul_(NEAR).add_(x)
        there = [
            _vector(_live(start.binding, _at(start.binding, row))) for start, row in zip(starts, ahead, strict=True)
        ]
        moved, slope = (ahead - x).div_(NEAR), torch.stack(there).sub_(f0).div_(NEAR)
        noise, size = f0.abs().mul_(EPS / NEAR), slope.abs()
        # Every output counts about the same, unless its slope drowns in its roundoff.
        top = size.amax(1, keepdim=True).mul_(COARSE)
        weight = (noise * DROWNING).add_(size).add_(top.masked_fill_(top == 0.0, 1.0))
        v = v.view(f0.shape) * (weight.amin(1, keepdim=True) / weight)
        w = _gradients(starts, v)
        predicted, seen = w * moved, v * slope
        slopes = zip(predicted.sum(1).tolist(), seen.sum(1).tolist(), strict=True)
        outputs = torch.linalg.vector_norm(torch.stack((seen, v * noise, v)), dim=2).tolist()
        norms = zip(torch.linalg.vector_norm(predicted, dim=1).tolist(), *outputs, strict=True)
        return [
            abs(one - other) <= POINT_AGREEMENT * max(p, s) + ROUNDOFFS * n + self.immaterial * c < torch.inf
            for (one, other), (p, s, n, c) in zip(slopes, norms, strict=True)
        ]


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


def _gradients(starts: Sequence[_Start], v: Tensor) -> Tensor:
    """The gradient at each point for its row of codirections, as a row."""
    live = [output for start in starts for output in start.live]
    sources = [source for start in starts for source in start.sources]
    numbers = v.flatten().split([output.numel() for output in live])
    cotangents = [part.view(output.shape).clone() for part, output in zip(numbers, live, strict=True)]
    found = swift_gradients(tuple(live), tuple(sources), tuple(cotangents))
    return _vector([torch.zeros_like(s) if g is None else g for g, s in zip(found, sources, strict=True)]).view(
        len(starts), -1
    )


def _sizes(x: Tensor, sources: Sequence[Tensor]) -> Tensor:
    """By how much to move each number of a row: by its own size, or a quarter of what is usual in its tensor."""
    if len(sources) > 1:
        parts = x.split([source.numel() for source in sources], 1)
        return torch.cat([_sizes(part, sources[:1]) for part in parts], 1)
    lengths = x.abs()
    usual = torch.linalg.vector_norm(lengths, dim=1, keepdim=True).mul_(LEAST_SIZE / math.sqrt(max(x.shape[1], 1)))
    return torch.maximum(lengths, usual.masked_fill_(usual == 0.0, 1.0))


def _size(tensors: Sequence[Tensor]) -> float:
    """The largest size of a number; not a number where one of them is not; infinite where a tensor has none."""
    if not all(tensor.layout is torch.strided and tensor.numel() for tensor in tensors):
        return torch.inf
    return float(_vector(tensors).abs().max())
