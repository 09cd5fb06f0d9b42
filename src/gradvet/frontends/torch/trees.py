"""Tensors inside any arrangement of arguments: where they are, what they are called, and how to put others there."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import optree
from torch import Tensor

NAMESPACE = ""
"""Container types that were registered with optree for every caller are followed as well."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Stands in a template where tensor number `index` belongs."""

    index: int


class Tree:
    """The tensors of some nested value, each once however often it occurs, with a name for each."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.names: list[str] = []
        self._numbers: dict[int, int] = {}

    def template(self, value: Any, name: str) -> Any:
        """The value with a slot for every tensor in it."""
        if isinstance(value, Tensor):
            if id(value) not in self._numbers:
                self._numbers[id(value)] = len(self.tensors)
                self.tensors.append(value)
                self.names.append(name)
            return Slot(self._numbers[id(value)])
        children = dict(_children(value))
        return _rebuilt(value, {key: self.template(child, name + label) for (key, label), child in children.items()})


def filled(template: Any, tensors: Sequence[Any]) -> Any:
    """The template with tensors in its slots."""
    if isinstance(template, Slot):
        return tensors[template.index]
    children = dict(_children(template))
    return _rebuilt(template, {key: filled(child, tensors) for (key, _), child in children.items()})


def mapped(change: Callable[[Tensor], Any], value: Any) -> Any:
    """The value with every tensor in it changed."""
    tree = Tree()
    template = tree.template(value, "")
    return filled(template, [change(tensor) for tensor in tree.tensors])


def _children(value: Any) -> Iterator[tuple[tuple[Any, str], Any]]:
    """What a container holds, by key and label; nothing for anything else."""
    if isinstance(value, Slot):
        return
    if isinstance(value, Mapping):
        yield from (((key, f"[{key!r}]"), child) for key, child in value.items())
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        yield from (((field, f".{field}"), getattr(value, field)) for field in value._fields)
    elif isinstance(value, (tuple, list)):
        yield from (((number, f"[{number}]"), child) for number, child in enumerate(value))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from (((f.name, f".{f.name}"), getattr(value, f.name)) for f in dataclasses.fields(value))
    elif not optree.tree_is_leaf(value, none_is_leaf=True):
        children, _ = optree.tree_flatten_one_level(value, none_is_leaf=True)[:2]
        yield from (((number, f"[{number}]"), child) for number, child in enumerate(children))


def _rebuilt(value: Any, children: dict[Any, Any]) -> Any:
    """The same container with other contents; whatever holds nothing is kept itself."""
    if not children or isinstance(value, Slot):
        return value
    if isinstance(value, Mapping):
        if type(value) is dict:
            return children
        duplicate: Any = copy.copy(value)
        for key, child in children.items():
            duplicate[key] = child
        return duplicate
    if isinstance(value, tuple):
        return type(value)(**children) if hasattr(value, "_fields") else tuple(children.values())
    if isinstance(value, list):
        return list(children.values())
    if dataclasses.is_dataclass(value):
        duplicate = copy.copy(value)
        for field, child in children.items():
            object.__setattr__(duplicate, field, child)
        return duplicate
    _, structure = optree.tree_flatten(value, none_is_leaf=True, is_leaf=lambda inner: inner is not value)
    return optree.tree_unflatten(structure, list(children.values()))
