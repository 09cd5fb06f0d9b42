"""The state that a check may change, and its restoration: settings of the process, tensors, modules."""

from __future__ import annotations

import functools
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from types import FunctionType, MethodType, ModuleType, NoneType
from typing import Any

import torch
from torch import Tensor, nn

from gradvet.frontends.torch import private
from gradvet.frontends.torch.double_precision import AUTOCAST_DEVICES
from gradvet.frontends.torch.layouts import numbers_of
from gradvet.frontends.torch.layouts.strided import separate
from gradvet.frontends.torch.private_contexts import OpenContexts
from gradvet.frontends.torch.random_state import RandomState
from gradvet.frontends.torch.validation import has_values

MAX_OBJECTS = 24
"""Callables, containers and objects that are entered in search of modules, the nearest first."""

MAX_SEARCHED_OBJECTS = 256
"""The same in search of tensors, which are deeper inside."""

MAX_ITEMS = 32
"""Items of one container or object that are considered."""

OPAQUE_TYPES = (nn.Module, Tensor, type, ModuleType, str, int, float, complex, NoneType)
"""Types of objects that are not entered."""


class PreservedState:
    """All state that a check may change, as it was when this was made. Leaving the context restores it.

    It is entered twice, as `with state, state:`. An exception such as KeyboardInterrupt may come at any line, also
    while the state is restored; the outer exit then restores it once more.

    - process: grad mode, default dtype, autocast, TF32, anomaly mode, deterministic algorithms, warnings filters, the
      profiling function, open modes, transforms and levels of dual numbers, random generators;
    - arguments: values, `.grad`, `requires_grad`;
    - modules that the function refers to: training mode, buffers, and for each parameter which tensor it is, its
      `.grad` and `requires_grad`;
    - other tensors that it refers to: `.grad`, `requires_grad`.
    """

    def __init__(self, function: Any, arguments: Sequence[Any], *, full_float32: bool = False) -> None:
        """`function` may be a tuple of all objects that the check may call; `full_float32`: without TF32 inside."""
        self._full_float32 = full_float32
        self._process = ProcessState()
        self._random = RandomState()
        given = [argument for argument in arguments if isinstance(argument, Tensor)]
        reached = list(reachable_objects(function, *arguments))
        modules = _modules_in(reached)
        parameters = [p for module in modules for p in private.parameters_of(module).values() if p is not None]
        captured = [thing for thing in reached if isinstance(thing, Tensor)]
        self._gradients = _gradients(given)
        # A function that calls backward itself adds to the gradients of its arguments.
        added_to = [gradient for _, gradient, _ in self._gradients if gradient is not None]
        self._copies = [_Copy(numbers) for tensor in (*given, *added_to) if (numbers := numbers_of(tensor)) is not None]
        self._gradients += _gradients((*parameters, *captured))
        self._modules = [_ModuleState(module) for module in modules]
        self._is_restored = False

    def __enter__(self) -> None:
        self._is_restored = False
        for module in self._modules:
            module.keep_memory()
        if self._full_float32:
            _set_tf32((False, "highest"))

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        if not self._is_restored:
            self._restore(interrupted=kind is not None and not issubclass(kind, Exception))

    def _restore(self, *, interrupted: bool) -> None:
        # First the modes: in a mode that is still open, copying would go through it.
        self._process.restore(interrupted=interrupted)
        for module in self._modules:
            module.restore()
        for copy in self._copies:
            copy.restored()
        for tensor, gradient, requires_grad in self._gradients:
            if tensor.requires_grad != requires_grad:
                tensor.requires_grad_(requires_grad)
            if tensor.grad is not gradient:
                tensor.grad = gradient
        self._random.restore()
        self._is_restored = True


def _gradients(tensors: Sequence[Tensor]) -> list[tuple[Tensor, Tensor | None, bool]]:
    """`.grad` and `requires_grad` of those tensors to whose `.grad` a backward pass writes."""
    return [(t, t.grad, t.requires_grad) for t in tensors if t.is_leaf or t.retains_grad]


def preserved_state(function: Any, arguments: Sequence[Any], *, full_float32: bool = False) -> PreservedState:
    """The state to restore after calls of a function, or of several in a tuple, with these arguments.

    `full_float32` switches TF32 off inside: torch's own products of float32 numbers are not rounded to ten bits.
    """
    return PreservedState(function, arguments, full_float32=full_float32)


class ProcessState:
    """Settings of this process and thread."""

    __slots__ = ("_contexts", "_filters", "_settings", "_shown_filters", "_showwarning")

    def __init__(self) -> None:
        self._settings = [read() for read, _ in SETTINGS]
        self._contexts = OpenContexts.now()
        self._filters, self._shown_filters = warnings.filters, list(warnings.filters)
        self._showwarning = warnings.showwarning

    def restore(self, *, interrupted: bool) -> None:
        self._contexts.close_others(interrupted=interrupted)
        for (read, write), value in zip(SETTINGS, self._settings, strict=True):
            if read() != value:
                write(value)
        if warnings.filters is not self._filters or self._filters != self._shown_filters:
            with warnings.catch_warnings():  # on exit, it makes Python forget what the filters decided
                pass
            warnings.filters = self._filters
            warnings.filters[:] = self._shown_filters  # type: ignore[index]
        if warnings.showwarning is not self._showwarning:
            warnings.showwarning = self._showwarning


def _autocast() -> tuple[tuple[bool, torch.dtype], ...]:
    return tuple([(torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in AUTOCAST_DEVICES])


def _set_autocast(states: tuple[tuple[bool, torch.dtype], ...]) -> None:
    for device, (enabled, dtype) in zip(AUTOCAST_DEVICES, states, strict=True):
        torch.set_autocast_enabled(device, enabled)
        torch.set_autocast_dtype(device, dtype)


def _tf32() -> tuple[bool, str] | None:
    """Whether cuDNN uses TF32, and the precision of matrix products; None if each kind of operator has its own."""
    try:
        return torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()
    except RuntimeError:  # set by torch's newer interface, which the older one cannot express
        return None


def _set_tf32(state: tuple[bool, str] | None) -> None:
    if state is not None and _tf32() not in (None, state):
        torch.backends.cudnn.allow_tf32, precision = state
        torch.set_float32_matmul_precision(precision)


def _anomaly() -> tuple[bool, bool]:
    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


def _set_anomaly(state: tuple[bool, bool]) -> None:
    torch.autograd.set_detect_anomaly(*state)


SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], object]], ...] = (
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
    (_autocast, _set_autocast),
    (_tf32, _set_tf32),
    (_anomaly, _set_anomaly),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    (sys.getprofile, sys.setprofile),
)
"""How each setting is read and written."""


class _Copy:
    """A strided tensor and a copy of its values, written back only after a write.

    Equal versions do not prove that nothing was written: `batch_norm` updates its running statistics uncounted.
    """

    __slots__ = ("copy", "memory", "tensor", "version")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.memory = _memory(tensor) if has_values(tensor) else tensor
        self.version = private.version(tensor)
        self.copy = self.memory.clone() if self.memory is not tensor else None

    @classmethod
    def of(cls, tensor: Tensor | None) -> _Copy | None:
        return None if tensor is None else cls(tensor)

    def restored(self) -> Tensor:
        if self.copy is not None and not self._is_unchanged(self.copy):
            self.memory.copy_(self.copy)
        return self.tensor

    def _is_unchanged(self, copy: Tensor) -> bool:
        if self.tensor.layout is not torch.strided:
            return private.version(self.tensor) == self.version
        return torch.equal(self.memory, copy)


def _memory(tensor: Tensor) -> Tensor:
    """The tensor without grad and version count; if elements of it share memory, each number once."""
    data = tensor.data
    if data.layout is not torch.strided or data.is_contiguous() or separate(data.size(), data.stride()):
        return data
    reach = sum(step * (length - 1) for step, length in zip(data.stride(), data.size(), strict=True))
    return torch.as_strided(data, (reach + 1,), (1,))


RECURRENT_ATTRIBUTES = ("flatten_parameters", "_flat_weights", "_flat_weight_refs")
"""Of a recurrent module: the method that moves its parameters, and those with which it was last called."""


def _as_they_are() -> None:
    """Leaves parameters where they are in memory."""


class _ModuleState:
    """Training mode, parameters and buffers of one module, without those of its children."""

    __slots__ = ("_attributes", "_buffers", "_module", "_parameters", "_training")

    def __init__(self, module: nn.Module) -> None:
        self._module, self._training = module, module.training
        self._parameters = dict(private.parameters_of(module))
        self._buffers = {name: _Copy.of(buffer) for name, buffer in private.buffers_of(module).items()}
        kept = RECURRENT_ATTRIBUTES if isinstance(module, nn.RNNBase) else ()
        self._attributes = {name: vars(module)[name] for name in kept if name in vars(module)}

    def keep_memory(self) -> None:
        """No recurrent module moves parameters to other memory when it is called with others than last time.

        It would move them while they are perturbed, and backward passes recorded before would see those values.
        """
        if isinstance(self._module, nn.RNNBase):
            vars(self._module)[RECURRENT_ATTRIBUTES[0]] = _as_they_are
            warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk")

    def restore(self) -> None:
        module = self._module
        if isinstance(module, nn.RNNBase):
            for name in RECURRENT_ATTRIBUTES:
                vars(module).pop(name, None)
            vars(module).update(self._attributes)
        if module.training != self._training:
            module.training = self._training
        if self._parameters:
            private.put_parameters(module, self._parameters)
        for name, buffer in self._buffers.items():
            own = buffer.restored() if buffer else None
            if private.buffers_of(module).get(name) is not own:
                setattr(module, name, own)


class PreservedGradients:
    """The leaves without `.grad`; on exit they have their own again. It is entered twice, as `PreservedState` is."""

    def __init__(self, leaves: Iterable[Any]) -> None:
        self._before = {id(leaf): (leaf, leaf.grad) for leaf in leaves}

    def __enter__(self) -> None:
        for leaf, _ in self._before.values():
            leaf.grad = None

    def __exit__(self, *exception: object) -> None:
        for leaf, gradient in self._before.values():
            leaf.grad = gradient


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


def _modules_in(things: Sequence[Any]) -> list[nn.Module]:
    """The modules among some objects, with all their children, each once."""
    roots = [thing for thing in things if isinstance(thing, nn.Module)]
    return list({id(module): module for root in roots for module in root.modules()}.values())


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
