"""Tensors in nested arguments and results: where they are, what they are called, and how to replace them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import is_tensor_like

from gradvet.errors import InvalidProblemError, OutputsChangedError
from gradvet.frontends.torch.containers import Container, holds_tensors, opened


def tensors_in(result: Any) -> list[Any]:
    """The tensors in a function's result, in order."""
    if isinstance(result, Tensor):
        return [result]
    if type(result) in (tuple, list) and all(isinstance(item, Tensor) for item in result):
        return list(result)
    tensors = [leaf for _, leaf in _leaves(result, "") if is_tensor_like(leaf)]
    if not tensors and not (type(result) in (tuple, list) and not result):
        raise InvalidProblemError(
            f"the function returned no tensor but {type(result).__name__}, so there is no derivative to check: return "
            "the tensor that you want checked"
        )
    return tensors


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """What stands in nested containers, with its name."""
    container = None if is_tensor_like(value) else opened(value)
    if container is None:
        yield name, value
        return
    for label, item in zip(container.labels, container.items, strict=True):
        yield from _leaves(item, name + label)


def output_names(result: Any, title: str, *, numbered: bool) -> tuple[list[str], list[str]]:
    """The names of the tensors in a result, and sentences about objects in it whose tensors are left out.

    The items of a tuple have their number (`output 0`), those of other containers their label (`output.logits`). With
    `numbered`, all tensors are counted instead.
    """
    items = result if type(result) in (tuple, list) else [result]
    parts = [(f"{title} {number}" if len(items) > 1 else title, item) for number, item in enumerate(items)]
    leaves = [leaf for name, part in parts for leaf in _leaves(part, name)]
    names = [name for name, leaf in leaves if is_tensor_like(leaf)]
    if numbered:
        return [f"{title} {number}" for number in range(len(names))], []
    closed = [(name, leaf) for name, leaf in leaves if not is_tensor_like(leaf) and holds_tensors(leaf)]
    return names, [f"{closed_object(name, leaf)} were left out" for name, leaf in closed]


def closed_object(name: str, value: Any) -> str:
    """The beginning of a sentence about an object that holds tensors and is no container."""
    return f"{name} is a {type(value).__name__}, which is no container that gradvet opens: the tensors in it"


def refuse_wrappers(tensors: Sequence[Any], names: Sequence[str]) -> None:
    """Raise if a tensor is a wrapper around others, such as a DTensor."""
    for tensor, name in zip(tensors, names, strict=True):
        if hasattr(type(tensor), "__tensor_flatten__") and not getattr(tensor, "is_nested", False):
            kind = type(tensor).__name__
            local = ", such as x.to_local()" if hasattr(tensor, "to_local") else ""
            raise InvalidProblemError(
                f"{name} is a {kind}, a wrapper around other tensors whose elements cannot be moved one by one: check "
                f"the function of plain tensors{local}, and make the {kind} inside the function"
            )


def signature_of(outputs: Sequence[Any]) -> list[tuple[torch.Size, torch.dtype]]:
    """Shape and dtype of each output."""
    return [(output.size(), output.dtype) for output in outputs]


def tensors_like(result: Any, signature: Sequence[tuple[torch.Size, torch.dtype]]) -> list[Any]:
    """The tensors in a function's result. Raises if they differ from the signature in number, shape or dtype."""
    outputs = tensors_in(result)
    if signature_of(outputs) != signature:
        raise _outputs_changed(outputs, signature)
    return outputs


def _outputs_changed(
    outputs: Sequence[Any], signature: Sequence[tuple[torch.Size, torch.dtype]]
) -> OutputsChangedError:
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


@dataclass(frozen=True, slots=True)
class _Branch:
    """Stands in a template for a container with tensors in it."""

    container: Container
    templates: Sequence[Any]


@dataclass(frozen=True, slots=True)
class _Closed:
    """Stands in a template for an object that holds tensors and is no container: every call gets a copy of it."""

    value: Any

    def copied(self) -> Any:
        try:
            return copy.deepcopy(self.value)
        except Exception:  # such as tensors that are results of other operators
            return self.value


class ArgumentTree:
    """The distinct tensors of nested values, in order, with a name for each."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.names: list[str] = []
        self.notes: list[str] = []
        self._numbers: dict[int, int] = {}

    def template(self, value: Any, name: str) -> Any:
        """The value with a slot in place of every tensor."""
        if isinstance(value, Tensor):
            if id(value) not in self._numbers:
                self._numbers[id(value)] = len(self.tensors)
                self.tensors.append(value)
                self.names.append(name)
            return Slot(self._numbers[id(value)])
        container = opened(value)
        if container is None:
            if not holds_tensors(value):
                return value
            self.notes.append(f"{closed_object(name, value)} were held constant")
            return _Closed(value)
        labelled = zip(container.labels, container.items, strict=True)
        templates = [self.template(item, name + label) for label, item in labelled]
        unchanged = all(one is other for one, other in zip(templates, container.items, strict=True))
        return value if unchanged else _Branch(container, templates)


def fill(template: Any, tensors: Sequence[Any]) -> Any:
    """The template with tensors in its slots."""
    if isinstance(template, Slot):
        return tensors[template.index]
    if isinstance(template, _Branch):
        return template.container.rebuilt([fill(inner, tensors) for inner in template.templates])
    return template.copied() if isinstance(template, _Closed) else template


def map_tensors(change: Callable[[Tensor], Any], value: Any) -> Any:
    """The value with `change` applied to every tensor."""
    tree = ArgumentTree()
    template = tree.template(value, "")
    return fill(template, [change(tensor) for tensor in tree.tensors])


def require_output(problem: Any) -> None:
    """Raise if the function returns no floating-point or complex tensor."""
    if not problem.codomain.leaves and not problem.nondifferentiable.leaves:
        found = ", ".join(str(output.dtype) for output in problem.outputs) or "no tensor"
        raise InvalidProblemError(
            f"{problem.binding.title} returns nothing differentiable: a floating-point or complex tensor was expected, "
            f"found {found}. Return the values that depend on the inputs."
        )
