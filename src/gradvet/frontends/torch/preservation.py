"""Leaves the world as it was found: random state, buffers of modules, gradients and arguments of the user's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from gradvet.frontends.torch.contents import modules_in
from gradvet.frontends.torch.generators import Generators


@contextmanager
def preserved_state(function: Any, arguments: Sequence[Any]) -> Iterator[None]:
    """Whatever the calls inside do to these things is undone at the end, also when they raise."""
    generators, cpu = Generators(), torch.get_rng_state()
    cuda: dict[torch.device, Tensor] = {}
    tensors: list[_Kept] = []
    gradients: list[tuple[Tensor, _Kept | None]] = []
    for argument in arguments:
        if isinstance(argument, Tensor):
            if argument.is_cuda and argument.device not in cuda:
                cuda[argument.device] = torch.cuda.get_rng_state(argument.device)
            if not argument.requires_grad:
                tensors.append(_Kept(argument))
            elif argument.is_leaf:
                gradients.append((argument, _Kept.of(argument.grad)))
    buffers = [
        (module, {name: _Kept.of(buffer) for name, buffer in module._buffers.items()})
        for root in modules_in(function, *arguments)
        for module in root.modules()
        if module._buffers
    ]
    try:
        yield
    finally:
        torch.set_rng_state(cpu)
        generators.restore()
        for device, state in cuda.items():
            torch.cuda.set_rng_state(state, device)
        for kept in tensors:
            kept.restored()
        for tensor, gradient in gradients:
            if tensor.grad is not None or gradient is not None:
                tensor.grad = gradient.restored() if gradient else None
        for module, kept_buffers in buffers:
            for name, buffer in kept_buffers.items():
                module._buffers[name] = buffer.restored() if buffer else None


class _Kept:
    """A tensor and a copy of its values, written back only if somebody wrote to it.

    Not every write is counted: `batch_norm` updates its running statistics behind the version's back.
    """

    __slots__ = ("copy", "tensor", "version")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.version = None if tensor.is_inference() else tensor._version
        self.copy = None if self.version is None else tensor.detach().clone()

    @classmethod
    def of(cls, tensor: Tensor | None) -> _Kept | None:
        return None if tensor is None else cls(tensor)

    def restored(self) -> Tensor:
        if self.copy is not None and not (self.tensor._version == self.version and self._is_alike(self.copy)):
            self.tensor.data.copy_(self.copy)
        return self.tensor

    def _is_alike(self, copy: Tensor) -> bool:
        return self.tensor.layout is not torch.strided or torch.equal(self.tensor, copy)
