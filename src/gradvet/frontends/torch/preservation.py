"""Leaves random state, buffers of modules, `.grad` and arguments as they were found."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from types import FunctionType, MethodType, ModuleType, NoneType
from typing import Any

import torch
from torch import Tensor, nn

from gradvet.frontends.torch import private
from gradvet.frontends.torch.random_state import HostRandomState, RandomState

MAX_OBJECTS = 24
"""Callables, containers and objects that are entered in search of modules, the nearest first."""

MAX_ITEMS = 32
"""Items of one container or object that are considered."""

OPAQUE_TYPES = (nn.Module, Tensor, type, ModuleType, str, int, float, complex, NoneType)
"""Types of objects that are not entered."""


@contextmanager
def preserved_state(function: Any, arguments: Sequence[Any]) -> Iterator[None]:
    """Restore random states, buffers, `.grad` and arguments without grad on exit, also after an exception."""
    host, cpu = HostRandomState(), torch.get_rng_state()
    cuda: dict[torch.device, Tensor] = {}
    tensors: list[_Copy] = []
    gradients: list[tuple[Tensor, _Copy | None]] = []
    for argument in arguments:
        if isinstance(argument, Tensor):
            if argument.is_cuda and argument.device not in cuda:
                cuda[argument.device] = torch.cuda.get_rng_state(argument.device)
            if not argument.requires_grad:
                tensors.append(_Copy(argument))
            elif argument.is_leaf:
                gradients.append((argument, _Copy.of(argument.grad)))
    buffers = [
        (module, {name: _Copy.of(buffer) for name, buffer in private.buffers_of(module).items()})
        for root in reachable_modules(function, *arguments)
        for module in root.modules()
        if private.buffers_of(module)
    ]
    try:
        yield
    finally:
        torch.set_rng_state(cpu)
        host.restore()
        for device, state in cuda.items():
            torch.cuda.set_rng_state(state, device)
        for copy in tensors:
            copy.restored()
        for tensor, gradient in gradients:
            if tensor.grad is not None or gradient is not None:
                tensor.grad = gradient.restored() if gradient else None
        for module, copies in buffers:
            for name, buffer in copies.items():
                setattr(module, name, buffer.restored() if buffer else None)


class _Copy:
    """A tensor and a copy of its values, written back only after a write.

    Equal versions do not prove that nothing was written: `batch_norm` updates its running statistics uncounted.
    """

    __slots__ = ("copy", "tensor", "version")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.version = private.version(tensor)
        self.copy = None if tensor.is_inference() else tensor.detach().clone()

    @classmethod
    def of(cls, tensor: Tensor | None) -> _Copy | None:
        return None if tensor is None else cls(tensor)

    def restored(self) -> Tensor:
        if self.copy is not None and not self._is_unchanged(self.copy):
            self.tensor.data.copy_(self.copy)
        return self.tensor

    def _is_unchanged(self, copy: Tensor) -> bool:
        if private.version(self.tensor) != self.version:
            return False
        return self.tensor.layout is not torch.strided or torch.equal(self.tensor, copy)


class FixedState:
    """Gives every call of a function the same random state and the same buffers of its module."""

    def __init__(self, owner: Any) -> None:
        self._start = RandomState()
        self._draws_from_torch_alone: bool | None = None
        modules = owner.modules() if isinstance(owner, nn.Module) else ()
        self._buffers = [
            (module, name, buffer, buffer.detach().clone(), private.version(buffer))
            for module in modules
            for name, buffer in private.buffers_of(module).items()
            if buffer is not None and not buffer.is_inference()
        ]

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, called from this state."""

        def from_fixed_state(*values: Any) -> Any:
            self.restore()
            result = function(*values)
            # Seen in the first call: torch's generators alone are restored a hundred times faster.
            if self._draws_from_torch_alone is None:
                self._draws_from_torch_alone = self._start.is_host_current()
            return result

        return from_fixed_state

    def restore(self) -> None:
        """Restore the random state, and replace buffers that were changed."""
        self._start.restore_torch() if self._draws_from_torch_alone else self._start.restore()
        self._renew_buffers()

    def _renew_buffers(self) -> None:
        """Replace buffers that a call may have changed by copies of their first values."""
        for module, name, buffer, copy, version in self._buffers:
            changed = getattr(module, name) is not buffer or private.version(buffer) != version
            # In training `batch_norm` writes uncounted.
            if module.training or changed:
                setattr(module, name, copy.clone())


def reachable_modules(*things: Any) -> list[nn.Module]:
    """The modules that callables are, are bound to, close over, have as defaults, or read from their globals."""
    return list({id(thing): thing for thing in reachable_objects(*things) if isinstance(thing, nn.Module)}.values())


def reachable_objects(*things: Any, limit: int = MAX_OBJECTS) -> Iterator[Any]:
    """Objects that these refer to, the nearest first. Modules and tensors are not entered."""
    seen: set[int] = set()
    ahead = deque(things)
    while ahead and len(seen) < limit:
        thing = ahead.popleft()
        yield thing
        if not isinstance(thing, OPAQUE_TYPES) and id(thing) not in seen:
            seen.add(id(thing))
            ahead.extend(_inside(thing))


def _inside(thing: Any) -> Iterator[Any]:
    """The objects to which a callable, a container or an object refers directly."""
    if isinstance(thing, FunctionType):
        if thing.__defaults__ or thing.__kwdefaults__:
            yield from (*(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values())
        for cell in thing.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # the cell is still empty
                continue
        # Globals that the function names, without functions of other files.
        for name in thing.__code__.co_names:
            value = thing.__globals__.get(name)
            if value is not None and (not isinstance(value, FunctionType) or value.__globals__ is thing.__globals__):
                yield value
    elif isinstance(thing, functools.partial):
        yield from (thing.func, *thing.args, *thing.keywords.values())
    elif isinstance(thing, (tuple, list, dict)):
        items = list(thing.values() if isinstance(thing, dict) else thing)
        yield from (item for item in items if isinstance(item, nn.Module))
        yield from items[:MAX_ITEMS]
    elif isinstance(thing, MethodType):
        yield from (thing.__self__, thing.__func__)
        if isinstance(thing.__self__, type):  # an autograd.Function, whose passes are methods of the class
            yield from (getattr(thing.__self__, name, None) for name in ("forward", "backward"))
    else:
        yield from islice(getattr(thing, "__dict__", {}).values(), MAX_ITEMS)
