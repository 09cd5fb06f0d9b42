"""Generated shapes: one element, none, or one less along a dimension, in all arguments that share its length.

Dimensions of one length are changed together or, if the function refuses that, those at one position alone. A module's
parameters keep their shapes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gradvet.core.frontend import Point
from gradvet.frontends.torch.binding import Binding
from gradvet.frontends.torch.points import PointSource

MAX_ELEMENTS = 1 << 20
"""Elements up to which an argument may grow: many dimensions of length 1 together would need any amount of memory."""

Dimensions = Sequence[tuple[int, int]]
"""Pairs of an argument's position and a dimension of it."""


def generated_shapes(source: PointSource, thorough: bool, *, empty: bool = True) -> Iterator[Point]:
    """Other lengths along dimensions that are independent of others, or along all if `thorough`; 0 if `empty`."""
    binding = source.binding
    for number, length in enumerate(_lengths(binding) if thorough else _free_lengths(source)):
        for other in _others(length, empty=thorough or (empty and not number)):
            name = f"length {other} instead of {length}"
            yield Point(name, _forms(source, length, other, thorough))
            places = sorted({place for place, _ in _all_of(binding, length)})
            for place in places if thorough and len(places) > 1 else []:
                alone = [dimension for dimension in _all_of(binding, length) if dimension[0] == place]
                yield Point(f"{name} in {binding.names[place]}", _resized(source, [alone], other))


def _free_lengths(source: PointSource) -> list[int]:
    """Of the first input: the first dimension, and if there is no other input, the last one.

    Native code may crash on inconsistent lengths. So nothing is changed if there are integers, which may be indices and
    offsets, and a length of several arguments is kept if another length is a multiple or a divisor of it.
    """
    tensors = [tensor for tensor in source.binding.arguments if _is_free(tensor) and tensor.dim()]
    first = next((tensor for tensor in tensors if tensor.requires_grad and all(tensor.shape)), None)
    if first is None or source.reaches_integers:
        return []
    if len(tensors) == 1:
        return list(dict.fromkeys((first.shape[0], first.shape[-1])))
    length = first.shape[0]
    shared = len({place for place, _ in _all_of(source.binding, length)}) > 1
    others = {size for tensor in tensors for size in tensor.shape} - {0, 1, length}
    derived = any(size % length == 0 or length % size == 0 for size in others)
    return [] if shared and derived else [length]


def _others(length: int, *, empty: bool) -> list[int]:
    """One, the nearest of the other parity, and none."""
    nearest = length - 1 if length > 2 else 3
    return [other for other in dict.fromkeys((nearest, 1, *([0] if empty else []))) if other != length]


def _lengths(binding: Binding) -> list[int]:
    """Lengths of dimensions of inputs that may be changed, in the order of the first tensor that is checked."""
    checked = [binding.arguments[i] for i in binding.checked]
    own = [tensor for tensor in checked if _is_free(tensor)]
    return list(dict.fromkeys(int(length) for tensor in own for length in tensor.shape if length))


def _all_of(binding: Binding, length: int) -> Dimensions:
    return [
        (place, dimension)
        for place, tensor in enumerate(binding.arguments)
        if _is_free(tensor)
        for dimension, size in enumerate(tensor.shape)
        if size == length
    ]


def _forms(source: PointSource, length: int, other: int, thorough: bool) -> Iterator[Binding]:
    together = _all_of(source.binding, length)
    aligned = [(place, dimension) for place, dimension in together if dimension == together[0][1]]
    yield from _resized(source, [together, *([aligned] if thorough and aligned != together else [])], other)


def _resized(source: PointSource, choices: Sequence[Dimensions], other: int) -> Iterator[Binding]:
    for dimensions in choices:
        arguments: list[Any] = list(source.binding.arguments)
        if any(_elements(arguments[place], dimensions, place, other) > MAX_ELEMENTS for place, _ in dimensions):
            continue
        for place, dimension in dimensions:
            arguments[place] = _with_length(arguments[place], dimension, other)
        changed = {place for place, _ in dimensions}
        inside = all(source.regions.inside(place, arguments[place], arguments[place]) is not None for place in changed)
        if inside:
            yield source.binding.at(arguments)


def _elements(tensor: Tensor, dimensions: Dimensions, place: int, other: int) -> float:
    """The number of elements of a tensor with another length along some dimensions, or 0 if it does not grow."""
    changed = {dimension for argument, dimension in dimensions if argument == place}
    lengths = [other if dimension in changed else length for dimension, length in enumerate(tensor.shape)]
    return 0 if math.prod(lengths) <= tensor.numel() else math.prod(lengths)


def _is_free(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout is torch.strided and not isinstance(value, nn.Parameter)


def _with_length(tensor: Tensor, dimension: int, other: int) -> Tensor:
    """The first entries along a dimension, repeated with a factor of 0.75 if there are too few."""
    length = tensor.shape[dimension]
    index = torch.arange(other, device=tensor.device) % max(length, 1)
    found = tensor.detach().index_select(dimension, index)
    if other > length and (found.is_floating_point() or found.is_complex()):
        fresh = found.narrow(dimension, length, other - length)
        fresh.mul_(0.75)
    return found.contiguous().requires_grad_(tensor.requires_grad)
