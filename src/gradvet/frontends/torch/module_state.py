"""The state of a module outside its arguments: attributes such as caches and counters, frozen parameters, buffers.

`FixedState` gives every call of a function the same start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from gradvet.frontends.torch import private
from gradvet.frontends.torch.blame.source_lines import is_foreign
from gradvet.frontends.torch.random_state import RandomState

MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))
"""Attributes that every module has."""


class Attributes:
    """The attributes of the user's modules and the hooks of all modules at one moment.

    Containers are kept with their items, tensors by value. Needed by `test_hooks_installed_by_the_first_call_stay_few`.
    """

    def __init__(self, model: nn.Module) -> None:
        self._hooks = [(hooks, set(hooks)) for module in model.modules() for hooks in _hooks_of(module)]
        self._kept = [
            (module, {name: _copied(value) for name, value in attributes_of(module)})
            for module in (*model.modules(), *_replicated(model))
            if not is_foreign(type(module).__module__)
        ]

    def restore(self) -> bool:
        """Give every module the attributes that it had, and no new hooks; whether anything was another one."""
        has_changed = False
        for hooks, known in self._hooks:
            for key in hooks.keys() - known if len(hooks) > len(known) else ():
                del hooks[key]
                has_changed = True
        for module, kept in self._kept:
            now = dict(attributes_of(module))
            for name in now.keys() - kept.keys():
                del module.__dict__[name]
                has_changed = True
            for name, value in kept.items():
                if name not in now or not _is_same(value, now[name]):
                    module.__dict__[name] = _put_back(value)
                    has_changed = True
        return has_changed


def _hooks_of(module: nn.Module) -> list[dict[int, Any]]:
    """The tables of hooks of a module."""
    return [table for name, table in vars(module).items() if "_hooks" in name and isinstance(table, dict)]


def _replicated(module: nn.Module) -> Iterator[nn.Module]:
    """The modules that a replica stands for: it has their parameters and children, not their attributes."""
    inner = vars(module).get("gradvet_inner")
    if inner is not None:
        yield inner
        yield from _replicated(inner)


def attributes_of(module: nn.Module) -> list[tuple[str, Any]]:
    """The attributes of a module that not every module has."""
    return [(name, value) for name, value in vars(module).items() if name not in MODULE_ATTRIBUTES]


class _Kept:
    """A tensor with its values at one moment."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.version, self.values = tensor, private.version(tensor), tensor.detach().clone()


def _copied(value: Any) -> Any:
    """A container with copies of the containers inside, a tensor outside any graph with its values, anything else."""
    if type(value) is list:
        return [_copied(item) for item in value]
    if type(value) is dict:
        return {key: _copied(item) for key, item in value.items()}
    if type(value) is Tensor and not value.requires_grad and not value.is_inference() and not value.is_meta:
        return _Kept(value)
    return set(value) if type(value) is set else value


def _put_back(value: Any) -> Any:
    """The container, tensor or value that was copied. A tensor that was written to is a new one with its old values."""
    if type(value) is list:
        return [_put_back(item) for item in value]
    if type(value) is dict:
        return {key: _put_back(item) for key, item in value.items()}
    if type(value) is _Kept:
        return value.tensor if private.version(value.tensor) == value.version else value.values.clone()
    return set(value) if type(value) is set else value


def _is_same(kept: Any, now: Any) -> bool:
    """Whether a copy is that of a value: containers hold the same objects, and tensors were not written to."""
    if type(kept) is _Kept:
        return now is kept.tensor and private.version(now) == kept.version
    if kept is now:
        return type(kept) is not set
    if type(kept) is not type(now):
        return False
    if type(kept) is list:
        return len(kept) == len(now) and all(map(_is_same, kept, now))
    if type(kept) is dict:
        return kept.keys() == now.keys() and all(_is_same(value, now[key]) for key, value in kept.items())
    if type(kept) is set:
        return bool(kept == now)
    return isinstance(kept, (int, float, str, bool)) and bool(kept == now)


@contextmanager
def without_gradients(model: nn.Module) -> Iterator[None]:
    """Take the gradients of all parameters away inside a block: code that is replayed may write to them."""
    before = [(parameter, parameter.grad) for parameter in model.parameters()]
    try:
        for parameter, _ in before:
            parameter.grad = None
        yield
    finally:
        for parameter, gradient in before:
            parameter.grad = gradient


class TensorState:
    """Copies of parameters and buffers at one moment."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._kept = [(t, t.detach().clone()) for t in tensors if not (t.is_meta or t.is_inference())]

    def restore(self) -> bool:
        """Write the values back into tensors that have others; whether there were any."""
        changed = [(tensor, kept) for tensor, kept in self._kept if not torch.equal(tensor.detach(), kept)]
        for tensor, kept in changed:
            tensor.data.copy_(kept)
        return bool(changed)


class FixedState:
    """Gives every call of a function the same random state, and the same buffers, attributes and frozen parameters.

    Caches and counters are attributes; a teacher whose weights follow those of its student has frozen parameters.
    Needed by `test_model_that_changes_its_own_state_passes`.
    """

    def __init__(self, owner: Any) -> None:
        self._start = RandomState()
        self._draws_from_torch_alone: bool | None = None
        self._is_first = True
        is_module = isinstance(owner, nn.Module)
        self._buffers = [
            (module, name, buffer, buffer.detach().clone(), private.version(buffer))
            for module in (owner.modules() if is_module else ())
            for name, buffer in private.buffers_of(module).items()
            if buffer is not None and not buffer.is_inference()
        ]
        self._others: list[Attributes | TensorState] = []
        if is_module:
            frozen = TensorState(p for p in owner.parameters() if not p.requires_grad)
            self._others = [Attributes(owner), frozen]

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
        changed = [state for state in self._others if state.restore()]
        if self._draws_from_torch_alone is not None and self._is_first:
            self._is_first, self._others = False, changed  # what the first call left as it was is not looked at again

    def _renew_buffers(self) -> None:
        """Replace buffers that a call may have changed by copies of their first values."""
        for module, name, buffer, copy, version in self._buffers:
            changed = getattr(module, name) is not buffer or private.version(buffer) != version
            # In training `batch_norm` writes uncounted.
            if module.training or changed:
                setattr(module, name, copy.clone())
