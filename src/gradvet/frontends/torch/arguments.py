"""Tensors in nested arguments and results: which containers are opened, their names, and how to replace them."""

from __future__ import annotations

import copy
import dataclasses
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import is_tensor_like

from gradvet.errors import InvalidProblemError, OutputsChangedError
from gradvet.frontends.torch import private
from gradvet.frontends.torch.layouts.dense import is_freed

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
    """The items of a container; None for a value that contains nothing that gradvet opens."""
    if value is None or isinstance(value, (Tensor, CLOSED, type)):
        return None
    if isinstance(value, Mapping):
        # A mapping that is a dataclass too, as the outputs of Hugging Face's models, has attributes of the same names.
        has_fields = dataclasses.is_dataclass(value)
        labels = [f".{key}" if has_fields else _key_label(key) for key in value]
        return Container(labels, list(value.values()), lambda items: _mapping(value, items))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return Container([f".{name}" for name in value._fields], value, lambda items: type(value)(*items))
    if isinstance(value, (tuple, list, deque)):
        return Container(_numbers(value), list(value), type(value))
    if (fields := _fields(value)) is not None:
        items = [getattr(value, name) for name in fields]
        return Container([f".{name}" for name in fields], items, lambda items: _with_fields(value, fields, items))
    found: Container | None = private.registered_container(value, Container)
    return found


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


def tensors_in(result: Any) -> list[Any]:
    """The tensors in a function's result, in order."""
    if isinstance(result, Tensor):
        return [result]
    if type(result) in (tuple, list) and all(isinstance(item, Tensor) for item in result):
        return list(result)
    try:
        tensors = [leaf for _, leaf in _leaves(result, "") if is_tensor_like(leaf)]
    except RecursionError:
        raise InvalidProblemError("the function returned a container that contains itself: return tensors") from None
    if isinstance(result, torch.autograd.Function):
        name = type(result).__name__
        raise InvalidProblemError(f"the function returned a {name}, which is an autograd.Function: pass {name}.apply")
    if not tensors and not (type(result) in (tuple, list) and not result):
        raise InvalidProblemError(
            f"the function returned no tensor but {type(result).__name__}, so there is no derivative to check: return "
            "the tensor that you want checked"
        )
    return tensors


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The values in nested containers, with their names."""
    container = None if is_tensor_like(value) else opened(value)
    if container is None:
        yield name, value
        return
    for label, item in zip(container.labels, container.items, strict=True):
        yield from _leaves(item, name + label)


def read_outputs(result: Any, title: str, *, is_drop_in: bool) -> tuple[list[Any], list[str], list[str]]:
    """The tensors in a function's first result, their names, and sentences about objects whose tensors are left out.

    With `is_drop_in`, the names are numbers, no object is noted, and wrappers are accepted. Raises if a tensor has no
    values: reading those of freed memory crashes the process.
    """
    outputs = tensors_in(result)
    names, notes = [f"{title} {number}" for number in range(len(outputs))], list[str]()
    if not is_drop_in:
        names, notes = _output_names(result, title)
    for output, name in zip(outputs, names, strict=True):
        if isinstance(output, Tensor) and (output.is_meta or private.is_fake(output)):
            kind = "a meta tensor" if output.is_meta else "a fake tensor"
            raise InvalidProblemError(f"{name} is {kind}, which has a shape but no values: return a tensor with values")
        if isinstance(output, Tensor) and is_freed(output):
            raise InvalidProblemError(f"the memory of {name} was freed: return a tensor with values")
    if not is_drop_in:
        refuse_wrappers(outputs, names)
    return outputs, names, notes


def _output_names(result: Any, title: str) -> tuple[list[str], list[str]]:
    """The names of the tensors in a result, and sentences about objects in it whose tensors are left out.

    The items of a tuple have their number (`output 0`), those of other containers their label (`output.logits`).
    """
    items = result if type(result) in (tuple, list) else [result]
    parts = [(f"{title} {number}" if len(items) > 1 else title, item) for number, item in enumerate(items)]
    leaves = [leaf for name, part in parts for leaf in _leaves(part, name)]
    names = [name for name, leaf in leaves if is_tensor_like(leaf)]
    closed = [(name, leaf) for name, leaf in leaves if not is_tensor_like(leaf) and holds_tensors(leaf)]
    return names, [f"{closed_object(name, leaf)} were left out" for name, leaf in closed]


def closed_object(name: str, value: Any) -> str:
    """The beginning of a sentence about an object that holds tensors and is no container."""
    return f"{name} is a {type(value).__name__}, which is no container that gradvet opens: the tensors in it"


def refuse_wrappers(tensors: Sequence[Any], names: Sequence[str]) -> None:
    """Raise if a tensor is a wrapper around others, such as a DTensor."""
    for tensor, name in zip(tensors, names, strict=True):
        if hasattr(type(tensor), "__tensor_flatten__") and not getattr(tensor, "is_nested", False):
            raise refused_wrapper(tensor, name)


def refused_wrapper(tensor: Any, name: str) -> InvalidProblemError:
    """The exception about a wrapper around other tensors."""
    kind = type(tensor).__name__
    local = ", such as x.to_local()" if hasattr(tensor, "to_local") else ""
    return InvalidProblemError(
        f"{name} is a {kind}, a wrapper around other tensors whose elements cannot be moved one by one: check "
        f"the function of plain tensors{local}, and make the {kind} inside the function"
    )


def tensors_like(result: Any, others: Sequence[Any]) -> list[Any]:
    """The tensors in a function's result. Raises if they differ from others in number, shape or dtype."""
    outputs = tensors_in(result)
    if _signature(outputs) != _signature(others):
        raise _outputs_changed(_signature(outputs), _signature(others))
    return outputs


Signature = list[tuple[torch.Size, torch.dtype]]
"""Shape and dtype of each output."""


def _signature(outputs: Sequence[Any]) -> Signature:
    return [(output.size(), output.dtype) for output in outputs]


def _outputs_changed(outputs: Signature, expected_outputs: Signature) -> OutputsChangedError:
    """Names the first attribute in which outputs next to the point differ from those at the point."""
    attribute, index = "number", 0
    before: object = len(expected_outputs)
    after: object = len(outputs)
    for i, (found, expected) in enumerate(zip(outputs, expected_outputs, strict=False)):
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
    """The place of tensor number `index` in a template."""

    index: int


class ArgumentTree:
    """The distinct tensors of nested values, in order, with a name for each."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.names: list[str] = []
        self.notes: list[str] = []
        self._numbers: dict[int, int] = {}

    def template(self, value: Any, name: str) -> Any:
        """The value with a slot in place of every tensor.

        In place of a container with tensors, and of another object that holds tensors, it has a `Container` of
        templates.
        """
        if isinstance(value, Tensor):
            if id(value) not in self._numbers:
                self._numbers[id(value)] = len(self.tensors)
                self.tensors.append(value)
                self.names.append(name)
            elif value.is_floating_point() or value.is_complex():
                first = self.names[self._numbers[id(value)]]
                self.notes.append(f"{name} is the same tensor as {first}: they are compared as one input, {first}")
            return Slot(self._numbers[id(value)])
        container = opened(value)
        if container is None:
            if not holds_tensors(value):
                return value
            self.notes.append(f"{closed_object(name, value)} were held constant")
            return Container(("",), (value,), _copied)
        labelled = zip(container.labels, container.items, strict=True)
        templates = [self.template(item, name + label) for label, item in labelled]
        unchanged = all(one is other for one, other in zip(templates, container.items, strict=True))
        return value if unchanged else replace(container, items=templates)


def fill(template: Any, tensors: Sequence[Any]) -> Any:
    """The template with tensors in its slots."""
    if isinstance(template, Slot):
        return tensors[template.index]
    if isinstance(template, Container):
        return template.rebuilt([fill(inner, tensors) for inner in template.items])
    return template


def _copied(items: Sequence[Any]) -> Any:
    """A copy of the only item, an object that holds tensors; the object where these are results of other operators."""
    try:
        return copy.deepcopy(items[0])
    except Exception:
        return items[0]


def unfilled(template: Any) -> list[Any]:
    """The values in a template beside its slots for tensors."""
    if isinstance(template, Container):
        return [thing for inner in template.items for thing in unfilled(inner)]
    return [] if isinstance(template, Slot) else [template]


def tensors_of(value: Any) -> list[Tensor]:
    """The distinct tensors in a nested value, in order."""
    found: dict[int, Tensor] = {}
    entered: dict[int, Any] = {}  # with the containers: the number of one that is freed may come again
    ahead = [value]
    while ahead:
        item = ahead.pop()
        if isinstance(item, Tensor):
            found.setdefault(id(item), item)
        elif id(item) not in entered:
            entered[id(item)] = item
            ahead.extend(reversed(_items(item)))
    return list(found.values())


def _items(value: Any) -> Sequence[Any]:
    """The items of a container; none of another value."""
    if type(value) in (tuple, list):
        return value  # type: ignore[no-any-return]
    if type(value) is dict:
        return list(value.values())
    container = opened(value)
    return () if container is None else container.items


def require_acyclic(value: Any, name: str) -> None:
    """Raise if a nested value contains itself."""
    finished: set[int] = set()

    def enter(inner: Any, above: frozenset[int]) -> None:
        if id(inner) in above:
            raise InvalidProblemError(f"{name} contains itself: pass containers without cycles")
        items = _items(inner)
        if items and id(inner) not in finished:
            for item in items:
                enter(item, above | {id(inner)})
            finished.add(id(inner))

    try:
        enter(value, frozenset())
    except RecursionError:
        raise InvalidProblemError(f"{name} is nested too deeply: pass containers of fewer levels") from None


def nested_tensors(value: Any) -> list[Tensor]:
    """The distinct tensors in an argument, in order. Raises if it contains itself."""
    require_acyclic(value, "an argument")
    return tensors_of(value)


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
