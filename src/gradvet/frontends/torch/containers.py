"""Which values contain others, what their items are called, and how to make the same container with other items.

Mappings, tuples, named tuples, lists, dataclasses, attrs classes, and types that are registered with torch's pytree or
with optree. Other objects are not opened, even if they hold tensors, as a key-value cache does.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType, MethodType, ModuleType
from typing import Any

import optree
import torch
from torch import Tensor, nn

from gradvet.frontends.torch import private

MAX_DEPTH = 4
"""Levels of attributes below which an object is not searched for tensors."""

CLOSED = (str, bytes, int, float, complex, torch.dtype, torch.device, torch.Size, torch.Generator)
NOT_SEARCHED = (*CLOSED, type, nn.Module, FunctionType, MethodType, ModuleType)


@dataclass(frozen=True, slots=True)
class Container:
    """The items of a container, each with the label that follows the container's name."""

    labels: Sequence[str]
    items: Sequence[Any]
    rebuilt: Callable[[Sequence[Any]], Any]
    """The same container with other items."""


def opened(value: Any) -> Container | None:
    """The items of a container; None for a value that contains nothing that gradvet looks into."""
    if value is None or isinstance(value, (Tensor, CLOSED, type)):
        return None
    if isinstance(value, Mapping):
        # A mapping that is a dataclass too, as the outputs of Hugging Face's models, has attributes of the same names.
        has_fields = dataclasses.is_dataclass(value)
        labels = [f".{key}" if has_fields else _key_label(key) for key in value]
        return Container(labels, list(value.values()), lambda items: _mapping(value, items))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return Container([f".{name}" for name in value._fields], value, lambda items: type(value)(*items))
    if isinstance(value, (tuple, list)):
        return Container(_numbers(value), value, type(value))
    if (fields := _fields(value)) is not None:
        items = [getattr(value, name) for name in fields]
        return Container([f".{name}" for name in fields], items, lambda items: _with_fields(value, fields, items))
    return private.registered_container(value, Container) or _of_optree(value)


def _key_label(key: Any) -> str:
    return f'["{key}"]' if isinstance(key, str) else f"[{key!r}]"


def _numbers(items: Sequence[Any]) -> list[str]:
    return [f"[{number}]" for number in range(len(items))]


def _mapping(value: Any, items: Sequence[Any]) -> Any:
    pairs = dict(zip(value, items, strict=True))
    if type(value) is dict:
        return pairs
    try:
        duplicate = copy.copy(value)
        for key, item in pairs.items():
            duplicate[key] = item
        return duplicate
    except TypeError:  # it cannot be changed
        return type(value)(pairs)


def _fields(value: Any) -> list[str] | None:
    """The names of the fields of a dataclass or an attrs class that have a value; None for other values."""
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
    elif hasattr(type(value), "__attrs_attrs__"):
        names = [field.name for field in type(value).__attrs_attrs__]
    else:
        return None
    return [name for name in names if hasattr(value, name)]


def _with_fields(value: Any, fields: Sequence[str], items: Sequence[Any]) -> Any:
    duplicate = copy.copy(value)
    for name, item in zip(fields, items, strict=True):
        object.__setattr__(duplicate, name, item)
    return duplicate


def _of_optree(value: Any) -> Container | None:
    if optree.tree_is_leaf(value, none_is_leaf=True):
        return None
    items, structure = optree.tree_flatten(value, none_is_leaf=True, is_leaf=lambda inner: inner is not value)
    return Container(_numbers(items), items, lambda others: optree.tree_unflatten(structure, list(others)))


def holds_tensors(value: Any, depth: int = MAX_DEPTH) -> bool:
    """Whether an object that is no container keeps tensors in its attributes, or in what these contain."""
    if isinstance(value, Tensor):
        return True
    if not depth or value is None or isinstance(value, NOT_SEARCHED):
        return False
    container = opened(value)
    inside = container.items if container is not None else list(_attributes(value))
    return any(holds_tensors(item, depth - 1) for item in inside)


def _attributes(value: Any) -> Iterator[Any]:
    yield from getattr(value, "__dict__", {}).values()
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        yield from (getattr(value, name, None) for name in ([slots] if isinstance(slots, str) else slots))
