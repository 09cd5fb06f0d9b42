"""Leaves the world as it was found: random state, buffers of modules, gradients and arguments of the user's."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

DEPTH = 3
"""How many callables within callables are followed in search of modules."""


@contextmanager
def undisturbed(function: Any, arguments: Sequence[Any]) -> Iterator[None]:
    """Whatever the calls inside do to these things is undone at the end, also when they raise."""
    cpu, python = torch.get_rng_state(), random.getstate()
    devices = {a.device for a in arguments if isinstance(a, Tensor) and a.is_cuda}
    cuda = [(device, torch.cuda.get_rng_state(device)) for device in devices]
    tensors = [_Kept(t) for t in arguments if isinstance(t, Tensor) and not t.requires_grad]
    gradients = [(t, _Kept.of(t.grad)) for t in arguments if isinstance(t, Tensor) and t.requires_grad and t.is_leaf]
    buffers = [
        (module, {name: _Kept.of(buffer) for name, buffer in module._buffers.items()})
        for root in modules_in(function)
        for module in root.modules()
        if module._buffers
    ]
    try:
        yield
    finally:
        torch.set_rng_state(cpu)
        random.setstate(python)
        for device, state in cuda:
            torch.cuda.set_rng_state(state, device)
        for kept in tensors:
            kept.restored()
        for tensor, gradient in gradients:
            if tensor.grad is not None or gradient is not None:
                tensor.grad = gradient.restored() if gradient else None
        for module, contents in buffers:
            for name, buffer in contents.items():
                module._buffers[name] = buffer.restored() if buffer else None


class _Kept:
    """A tensor and a copy of its values, written back only if somebody wrote to it."""

    __slots__ = ("copy", "tensor", "version")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.version = None if tensor.is_inference() else tensor._version
        self.copy = None if self.version is None else tensor.detach().clone()

    @classmethod
    def of(cls, tensor: Tensor | None) -> _Kept | None:
        return None if tensor is None else cls(tensor)

    def restored(self) -> Tensor:
        if self.copy is not None and self.tensor._version != self.version:
            self.tensor.data.copy_(self.copy)
        return self.tensor


def modules_in(function: Any) -> list[nn.Module]:
    """Modules that a callable is, is bound to, closes over, or reads from its globals."""
    found: dict[int, nn.Module] = {}
    _search(function, found, DEPTH)
    return list(found.values())


def _search(thing: Any, found: dict[int, nn.Module], depth: int) -> None:
    if isinstance(thing, nn.Module):
        found[id(thing)] = thing
    elif depth and isinstance(thing, functools.partial):
        for inner in (thing.func, *thing.args, *thing.keywords.values()):
            _search(inner, found, depth - 1)
    elif depth and hasattr(thing, "__code__"):
        _search(getattr(thing, "__self__", None), found, depth - 1)
        for cell in thing.__closure__ or ():
            try:
                _search(cell.cell_contents, found, depth - 1)
            except ValueError:  # the cell is still empty
                continue
        for name in thing.__code__.co_names:
            if isinstance(value := thing.__globals__.get(name), nn.Module):
                found[id(value)] = value
