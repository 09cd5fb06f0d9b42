"""Shapes that nobody tries: one element, none, or one less along a dimension, in all arguments that share its length.

Which dimensions belong together is not known. Those of one length are changed together; where the function does not
accept that, those of one length at one place alone. A module's parameters keep their shapes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gradvet.frontends.torch.binding import Binding
from gradvet.frontends.torch.points import Neighbourhood, Point

Dimensions = Sequence[tuple[int, int]]
"""Pairs of an argument's place and a dimension of it."""


def special_shapes(near: Neighbourhood, thorough: bool, *, empty: bool = True) -> Iterator[Point]:
    """Other lengths along the dimensions that are surely free, or thoroughly along all; the length 0 if allowed."""
    binding = near.binding
    for number, length in enumerate(_lengths(binding) if thorough else _free_lengths(near)):
        for other in _others(length, empty=thorough or (empty and not number)):
            name = f"length {other} instead of {length}"
            yield Point(name, _forms(near, length, other, thorough))
            places = sorted({place for place, _ in _all_of(binding, length)})
            for place in places if thorough and len(places) > 1 else []:
                alone = [dimension for dimension in _all_of(binding, length) if dimension[0] == place]
                yield Point(f"{name} in {binding.names[place]}", _resized(near, [alone], other))


def _free_lengths(near: Neighbourhood) -> list[int]:
    """Of the first input: the first dimension, and if there is no other input, the last one.

    Native code that is handed lengths that do not belong together may end the process instead of refusing them. So
    nothing is changed where there are integers, which may be indices and offsets, and a length that several arguments
    have is left alone where another length is a multiple of it or divides it.
    """
    tensors = [tensor for tensor in near.binding.arguments if _is_free(tensor) and tensor.dim()]
    first = next((tensor for tensor in tensors if tensor.requires_grad and all(tensor.shape)), None)
    if first is None or near.reaches_integers:
        return []
    if len(tensors) == 1:
        return list(dict.fromkeys((first.shape[0], first.shape[-1])))
    length = first.shape[0]
    shared = len({place for place, _ in _all_of(near.binding, length)}) > 1
    others = {size for tensor in tensors for size in tensor.shape} - {0, 1, length}
    derived = any(size % length == 0 or length % size == 0 for size in others)
    return [] if shared and derived else [length]


def _others(length: int, *, empty: bool) -> list[int]:
    """One, the nearest of the other parity, and none."""
    near = length - 1 if length > 2 else 3
    return [other for other in dict.fromkeys((near, 1, *([0] if empty else []))) if other != length]


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


def _forms(near: Neighbourhood, length: int, other: int, thorough: bool) -> Iterator[Binding]:
    together = _all_of(near.binding, length)
    aligned = [(place, dimension) for place, dimension in together if dimension == together[0][1]]
    yield from _resized(near, [together, *([aligned] if thorough and aligned != together else [])], other)


def _resized(near: Neighbourhood, choices: Sequence[Dimensions], other: int) -> Iterator[Binding]:
    for dimensions in choices:
        arguments: list[Any] = list(near.binding.arguments)
        for place, dimension in dimensions:
            arguments[place] = _with_length(arguments[place], dimension, other)
        changed = {place for place, _ in dimensions}
        inside = all(near.domain.inside(place, arguments[place], arguments[place]) is not None for place in changed)
        if inside:
            yield near.binding.at(arguments)


def _is_free(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout is torch.strided and not isinstance(value, nn.Parameter)


def _with_length(tensor: Tensor, dimension: int, other: int) -> Tensor:
    """The first entries along a dimension; where there are too few, the same again a little changed."""
    length = tensor.shape[dimension]
    index = torch.arange(other, device=tensor.device) % max(length, 1)
    found = tensor.detach().index_select(dimension, index)
    if other > length and (found.is_floating_point() or found.is_complex()):
        fresh = found.narrow(dimension, length, other - length)
        fresh.mul_(0.75)
    return found.contiguous().requires_grad_(tensor.requires_grad)
