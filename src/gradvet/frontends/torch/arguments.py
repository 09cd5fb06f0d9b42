"""Tensors in nested arguments and results: where they are, what they are called, and how to replace them."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import optree
import torch
from torch import Tensor
from torch.overrides import is_tensor_like

from gradvet.errors import InvalidProblemError, OutputsChangedError


def tensors_in(result: Any) -> list[Any]:
    """The tensors in a function's result, in order."""
    if isinstance(result, Tensor):
        return [result]
    if type(result) in (tuple, list) and all(isinstance(item, Tensor) for item in result):
        return list(result)
    leaves = optree.tree_leaves(result, none_is_leaf=True)
    tensors = [leaf for leaf in leaves if is_tensor_like(leaf)]
    if leaves and not tensors:
        raise InvalidProblemError(
            f"the function returned no tensor but {type(result).__name__}, so there is no derivative to check: return "
            "the tensor that you want checked"
        )
    return tensors


def is_differentiable(tensor: Any) -> bool:
    """Whether a tensor requires grad and has a dtype with derivatives."""
    return bool(tensor.requires_grad) and bool(tensor.is_floating_point() or tensor.is_complex())


def signature_of(outputs: Sequence[Any]) -> list[tuple[torch.Size, torch.dtype]]:
    """Shape and dtype of each output."""
    return [(output.size(), output.dtype) for output in outputs]


def outputs_changed(outputs: Sequence[Any], signature: Sequence[tuple[torch.Size, torch.dtype]]) -> OutputsChangedError:
    """Names the first attribute in which outputs next to the point differ from those at the point."""
    attribute, index = "number", 0
    before: object = len(signature)
    after: object = len(outputs)
    for i, (found, expected) in enumerate(zip(signature_of(outputs), signature, strict=False)):
        if found != expected:
            which = 0 if found[0] != expected[0] else 1
            attribute, index, before, after = ("shape", "dtype")[which], i, expected[which], found[which]
            break
    return OutputsChangedError(
        f"the function must return outputs with the same {attribute} when inputs are perturbed: output {index} has "
        f"{attribute} {before} at the point and {after} next to it. Choose inputs away from such a switch."
    )


@dataclass(frozen=True, slots=True)
class Slot:
    """Stands in a template for tensor number `index`."""

    index: int


class ArgumentTree:
    """The distinct tensors of nested values, in order, with a name for each."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.names: list[str] = []
        self._numbers: dict[int, int] = {}

    def template(self, value: Any, name: str) -> Any:
        """The value with a slot in place of every tensor."""
        if isinstance(value, Tensor):
            if id(value) not in self._numbers:
                self._numbers[id(value)] = len(self.tensors)
                self.tensors.append(value)
                self.names.append(name)
            return Slot(self._numbers[id(value)])
        children = dict(_children(value))
        return _rebuilt(value, {key: self.template(child, name + label) for (key, label), child in children.items()})


def fill(template: Any, tensors: Sequence[Any]) -> Any:
    """The template with tensors in its slots."""
    if isinstance(template, Slot):
        return tensors[template.index]
    children = dict(_children(template))
    return _rebuilt(template, {key: fill(child, tensors) for (key, _), child in children.items()})


def map_tensors(change: Callable[[Tensor], Any], value: Any) -> Any:
    """The value with `change` applied to every tensor."""
    tree = ArgumentTree()
    template = tree.template(value, "")
    return fill(template, [change(tensor) for tensor in tree.tensors])


def _children(value: Any) -> Iterator[tuple[tuple[Any, str], Any]]:
    """The items of a container by key and label; nothing for other values."""
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
    """The same container with other items; a value without items is returned itself."""
    if not children or isinstance(value, Slot):
        return value
    if type(value) is dict:
        return children
    if isinstance(value, Mapping):
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


def require_output(problem: Any) -> None:
    """Raise if the function returns no floating-point or complex tensor."""
    if not problem.codomain.leaves and not problem.nondifferentiable.leaves:
        found = ", ".join(str(output.dtype) for output in problem.outputs) or "no tensor"
        raise InvalidProblemError(
            f"{problem.binding.title} returns nothing differentiable: a floating-point or complex tensor was expected, "
            f"found {found}. Return the values that depend on the inputs."
        )
