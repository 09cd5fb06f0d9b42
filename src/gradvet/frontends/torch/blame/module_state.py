"""The state of a model outside its arguments: attributes such as caches and counters, parameters, buffers, leaves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gradvet.core.blame import CodeLine
from gradvet.frontends.torch.arguments import ArgumentTree
from gradvet.frontends.torch.autograd_graph import nodes_behind
from gradvet.frontends.torch.blame import private
from gradvet.frontends.torch.blame.source_lines import assignment, is_foreign

MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))
"""Attributes that every module has."""


class Attributes:
    """The attributes of the user's modules at one moment. Containers are kept with their items."""

    def __init__(self, model: nn.Module) -> None:
        self._kept = [
            (module, {name: _copied(value) for name, value in _attributes(module)})
            for module in model.modules()
            if not is_foreign(type(module).__module__)
        ]

    def restore(self) -> None:
        """Give every module the attributes that it had."""
        for module, kept in self._kept:
            now = dict(_attributes(module))
            for name in now.keys() - kept.keys():
                del module.__dict__[name]
            for name, value in kept.items():
                if name not in now or not _is_same(value, now[name]):
                    module.__dict__[name] = _copied(value)


def _attributes(module: nn.Module) -> Iterable[tuple[str, Any]]:
    return [(name, value) for name, value in vars(module).items() if name not in MODULE_ATTRIBUTES]


def _copied(value: Any) -> Any:
    """A container with copies of the containers inside; anything else is the value itself."""
    if type(value) is list:
        return [_copied(item) for item in value]
    if type(value) is dict:
        return {key: _copied(item) for key, item in value.items()}
    return set(value) if type(value) is set else value


def _is_same(one: Any, other: Any) -> bool:
    """Whether two containers hold the same objects."""
    if one is other:
        return type(one) not in (list, dict, set)
    if type(one) is not type(other):
        return False
    if type(one) is list:
        return len(one) == len(other) and all(map(_is_same, one, other))
    if type(one) is dict:
        return one.keys() == other.keys() and all(_is_same(value, other[key]) for key, value in one.items())
    if type(one) is set:
        return bool(one == other)
    return isinstance(one, (int, float, str, bool)) and one == other


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
        self._kept = [(tensor, tensor.detach().clone()) for tensor in tensors if not tensor.is_meta]

    def restore(self) -> None:
        """Write the values back into tensors that have others."""
        for tensor, kept in self._kept:
            if not torch.equal(tensor.detach(), kept):
                tensor.data.copy_(kept)


@dataclass(frozen=True, slots=True)
class Unregistered:
    """A leaf that requires grad and is kept by a module, but is none of its parameters."""

    path: str
    attribute: str
    place: CodeLine | None
    shape: torch.Size


def unregistered_leaves(model: nn.Module, outputs: list[Tensor]) -> list[Unregistered]:
    """The leaves behind the outputs that attributes of modules hold and that are no registered parameters."""
    leaves = [private.leaf_of(node) for node in nodes_behind([y for y in outputs if y.requires_grad])]
    own = {id(parameter) for parameter in model.parameters()}
    loose = {id(leaf): leaf for leaf in leaves if leaf is not None and id(leaf) not in own}
    found = []
    for path, module in model.named_modules() if loose else ():
        for attribute, value in vars(module).items():
            if attribute in MODULE_ATTRIBUTES or isinstance(value, nn.Module):
                continue
            tree = ArgumentTree()
            tree.template(value, "")
            for tensor in tree.tensors:
                if loose.pop(id(tensor), None) is not None:
                    found.append(Unregistered(path, attribute, assignment(type(module), attribute), tensor.shape))
    return found
