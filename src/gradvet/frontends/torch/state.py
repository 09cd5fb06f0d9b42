"""State beside the arguments of a function: attributes, buffers, frozen parameters.

`FixedState` gives every call of a function the same start.
"""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from gradvet.core.provenance import is_foreign
from gradvet.errors import raise_interruption
from gradvet.frontends.torch import private
from gradvet.frontends.torch.inputs import has_values
from gradvet.frontends.torch.layouts.dense import separate
from gradvet.frontends.torch.random_state import RandomState

Restore = Callable[[], bool]
"""Restores a state; whether anything had changed."""


CONTAINERS = (list, dict, set, OrderedDict)
"""Types of containers whose items are restored."""


class KeptItems:
    """The items of lists, mappings and sets, and of those inside of them; a container stays the same object."""

    def __init__(self, values: Iterable[Any]) -> None:
        kept: dict[int, tuple[Any, tuple[Any, ...]]] = {}
        ahead = list(values)
        while ahead:
            value = ahead.pop()
            if type(value) in CONTAINERS and id(value) not in kept:
                kept[id(value)] = value, (items := tuple(_items(value)) if value else ())
                ahead += items
        self._kept = list(kept.values())

    def tensors(self) -> list[Tensor]:
        return [item for _, items in self._kept for item in items if isinstance(item, Tensor)]

    def restore(self, renewed: Mapping[int, Any] | None = None) -> bool:
        """Put the items back, some by identity replaced by others; whether anything had changed."""
        has_changed = False
        for container, kept in self._kept:
            if not container and not kept:  # most of those of a module
                continue
            items = tuple(renewed.get(id(item), item) for item in kept) if renewed else kept
            size = len(items) // 2 if isinstance(container, dict) else len(items)
            if len(container) == size and all(map(operator.is_, _items(container), items)):
                continue
            has_changed = True
            container.clear()
            if isinstance(container, list):
                container.extend(items)
            else:
                pairs = zip(items[:size], items[size:], strict=True)
                container.update(pairs if isinstance(container, dict) else items)
        return has_changed


def _items(container: Any) -> Iterable[Any]:
    """The items of a list or set; of a mapping, the keys and then the values."""
    return chain(container, container.values()) if isinstance(container, dict) else container


def kept_attributes(model: nn.Module) -> Restore:
    """Keeps the attributes of the user's modules, and removes hooks of all modules that are added.

    Containers are kept with their items, tensors outside any graph by value: one that was written to is replaced by a
    new one with its old values. Needed by `test_hooks_installed_by_the_first_call_stay_few`.
    """
    hooks = [(table, set(table)) for module in model.modules() for table in private.hooks_of(module)]
    known = [
        (module, dict(private.attributes_of(module)))
        for module in (*model.modules(), *_replicated(model))
        if not is_foreign(type(module).__module__)
    ]
    values = [value for _, attributes in known for value in attributes.values()]
    inside = KeptItems(values)
    values += inside.tensors()
    tensors = [(value, private.version(value), value.detach().clone()) for value in values if _is_constant(value)]

    def restore() -> bool:
        renewed = {id(t): copy.clone() for t, version, copy in tensors if private.version(t) != version}
        has_changed = inside.restore(renewed)
        for table, before in hooks:
            for key in table.keys() - before:
                del table[key]
                has_changed = True
        for module, kept in known:
            wanted = {name: renewed.get(id(value), value) for name, value in kept.items()} if renewed else kept
            now = dict(private.attributes_of(module))
            if now.keys() != wanted.keys() or any(now[name] is not value for name, value in wanted.items()):
                for name in now.keys() - wanted.keys():
                    del module.__dict__[name]
                module.__dict__.update(wanted)
                has_changed = True
        return has_changed

    return restore


def _is_constant(value: Any) -> bool:
    """Whether a value is a plain tensor in no graph whose numbers can be read."""
    return type(value) is Tensor and not (value.requires_grad or value.is_inference() or value.is_meta)


def _replicated(module: nn.Module) -> Iterator[nn.Module]:
    """The modules that a replica replaces: it has their parameters and children, not their attributes."""
    inner = vars(module).get("gradvet_inner")
    if inner is not None:
        yield inner
        yield from _replicated(inner)


def kept_tensors(tensors: Iterable[Tensor]) -> Restore:
    """Keeps the values of tensors; writes back those of tensors that have others.

    Equal versions do not prove that nothing was written: `batch_norm` updates its running statistics uncounted.
    """
    known = [(t, memory := _memory(t), memory.clone(), private.version(t)) for t in tensors if has_values(t)]

    def restore() -> bool:
        has_changed = False
        for tensor, memory, copy, version in known:
            if not _is_as_before(tensor, memory, copy, version):
                memory.copy_(copy)
                has_changed = True
        return has_changed

    return restore


def _is_as_before(tensor: Tensor, memory: Tensor, copy: Tensor, version: float) -> bool:
    """Whether the memory of a tensor holds the numbers of a copy of it; where torch compares none, by its version."""
    try:
        return torch.equal(memory, copy) if tensor.layout is torch.strided else private.version(tensor) == version
    except (RuntimeError, TypeError):  # of this dtype, or of this subclass
        return private.version(tensor) == version


def _memory(tensor: Tensor) -> Tensor:
    """The tensor without grad and version count; if elements of it share memory, each number once."""
    data = tensor.data
    if data.layout is not torch.strided or data.is_contiguous() or separate(data.size(), data.stride()):
        return data
    reach = sum(step * (length - 1) for step, length in zip(data.stride(), data.size(), strict=True))
    return torch.as_strided(data, (reach + 1,), (1,))


class FixedState:
    """Gives every call of a function the same random state, and the same buffers, attributes and frozen parameters.

    Caches and counters are attributes; a teacher whose weights follow those of its student has frozen parameters.
    Needed by `test_model_that_changes_its_own_state_passes`.
    """

    def __init__(self, owner: Any, generators: Sequence[Any] = ()) -> None:
        self._start = RandomState(generators)
        is_module = isinstance(owner, nn.Module)
        self.modules = tuple(owner.modules()) if is_module else ()
        self._buffers = [
            (module, name, buffer, buffer.detach().clone(), private.version(buffer))
            for module in self.modules
            for name, buffer in private.buffers_of(module).items()
            if buffer is not None and not buffer.is_inference()
        ]
        self._others: list[Restore] = []
        if is_module:
            frozen = kept_tensors(p for p in owner.parameters() if not p.requires_grad)
            self._others = [kept_attributes(owner), frozen]
        self._all_others, self._is_left = self._others, False
        self._was_called = False
        self.has_attributes = any(not is_foreign(type(module).__module__) for module in self.modules)
        """Whether there are modules of the user, whose attributes calls may change."""

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, called from this state."""

        def from_fixed_state(*values: Any) -> Any:
            self.restore()
            try:
                result = function(*values)
            except Exception as error:
                raise_interruption(error)
                raise
            self._was_called = True
            return result

        return from_fixed_state

    def restore(self) -> None:
        """Restore the random state, and replace buffers that were changed."""
        self._start.restore()
        self._renew_buffers()
        if self._is_left:
            return
        changed = [restore for restore in self._others if restore()]
        if self._was_called and self._others is self._all_others:
            self._others = changed  # what the first call left as it was is not compared again

    @contextmanager
    def attributes_left(self) -> Iterator[None]:
        """Calls find the attributes of modules as earlier calls and backward passes left them."""
        self._is_left = True
        try:
            yield
        finally:
            self._is_left = False
            for restore in self._all_others:
                restore()

    def _renew_buffers(self) -> None:
        """Replace buffers that a call may have changed by copies of their first values."""
        for module, name, buffer, copy, version in self._buffers:
            changed = getattr(module, name) is not buffer or private.version(buffer) != version
            # In training `batch_norm` writes uncounted.
            if module.training or changed:
                setattr(module, name, copy.clone())
