"""Leaves the world as it was found: random state, buffers of modules, gradients and arguments of the user's."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType, NoneType
from typing import Any

import torch
from torch import Tensor, nn

from gradvet.frontends.torch.generators import Generators

REACH = 24
"""How many callables, containers and objects are looked into in search of modules, the nearest first."""

WITHIN = 32
"""How much of what one of them holds is looked at."""

PLAIN = (Tensor, type, ModuleType, str, int, float, complex, NoneType)
"""What has no modules in it."""

LEGIBLE = (FunctionType, MethodType, BuiltinFunctionType)
"""Callables whose code can be read, or that have none of their own."""

OPAQUE = (nn.Module, *PLAIN)
"""What is not looked into."""


@dataclass(frozen=True, slots=True)
class Contents:
    """What functions and arguments lead to, as far as one can see."""

    modules: list[nn.Module]
    hookless: bool
    """Whether no code there puts hooks on tensors."""

    @classmethod
    def of(cls, *things: Any) -> Contents:
        """Modules that callables are, are bound to, close over, have as defaults, or read from their globals."""
        found: dict[int, nn.Module] = {}
        hookless = True
        for thing in reachable(*things):
            if isinstance(thing, nn.Module):
                found[id(thing)] = thing
            elif isinstance(thing, FunctionType):
                hookless = hookless and not _registers_hooks(thing.__code__)
        # The code of a module, or of another object that can be called, is not looked into.
        return cls(list(found.values()), hookless and not found and isinstance(things[0], LEGIBLE))


@functools.lru_cache(maxsize=1024)
def _registers_hooks(code: CodeType) -> bool:
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return "register_hook" in code.co_names or any(map(_registers_hooks, inner))


@contextmanager
def undisturbed(function: Any, arguments: Sequence[Any]) -> Iterator[Contents]:
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
    contents = Contents.of(function, *arguments)
    buffers = [
        (module, {name: _Kept.of(buffer) for name, buffer in module._buffers.items()})
        for root in contents.modules
        for module in root.modules()
        if module._buffers
    ]
    try:
        yield contents
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


def reachable(*things: Any, reach: int = REACH) -> Iterator[Any]:
    """What callables, containers and objects lead to, the nearest first; modules and tensors are not looked into."""
    seen: set[int] = set()
    ahead = deque(things)
    while ahead and len(seen) < reach:
        thing = ahead.popleft()
        yield thing
        if not isinstance(thing, OPAQUE) and id(thing) not in seen:
            seen.add(id(thing))
            ahead.extend(_inside(thing))


def _inside(thing: Any) -> Iterator[Any]:
    """What a callable, a container or an object can reach at once."""
    if isinstance(thing, functools.partial):
        yield from (thing.func, *thing.args, *thing.keywords.values())
    elif isinstance(thing, (tuple, list, dict)):
        items = list(thing.values() if isinstance(thing, dict) else thing)
        yield from (item for item in items if isinstance(item, nn.Module))
        yield from items[:WITHIN]
    elif isinstance(thing, MethodType):
        yield from (thing.__self__, thing.__func__)
        if isinstance(thing.__self__, type):  # an autograd.Function, whose passes are methods of the class
            yield from (getattr(thing.__self__, name, None) for name in ("forward", "backward"))
    elif isinstance(thing, FunctionType):
        yield from thing.__defaults__ or ()
        yield from (thing.__kwdefaults__ or {}).values()
        for cell in thing.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # the cell is still empty
                continue
        # Of what stands beside the function in its file: modules, what may hold one, and other functions.
        for name in thing.__code__.co_names:
            value = thing.__globals__.get(name)
            if not isinstance(value, FunctionType) or value.__globals__ is thing.__globals__:
                yield value
    else:
        yield from islice(getattr(thing, "__dict__", {}).values(), WITHIN)
