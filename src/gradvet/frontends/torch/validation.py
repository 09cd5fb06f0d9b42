"""Inputs that cannot be checked: each is refused with one sentence before the function is called."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from gradvet.errors import InvalidProblemError
from gradvet.frontends.torch import private
from gradvet.frontends.torch.arguments import ArgumentTree
from gradvet.frontends.torch.layouts.strided import separate


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


def _items(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, (list, tuple)):
        return list(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name) for field in dataclasses.fields(value)]
    return []


def has_values(tensor: Tensor) -> bool:
    """Whether the numbers of a tensor can be read and written: it has memory and is no inference tensor."""
    if tensor.is_meta or tensor.is_inference() or is_lazy(tensor):
        return False
    return tensor.layout is not torch.strided or not is_freed(tensor)


def is_freed(tensor: Tensor) -> bool:
    """Whether the memory of a strided tensor was freed or made smaller: reading its elements crashes the process."""
    if not tensor.numel() or tensor.is_nested or hasattr(type(tensor), "__tensor_flatten__"):
        return False
    available = tensor.untyped_storage().nbytes()
    if tensor.nbytes == available:
        return False
    reach = sum(step * (length - 1) for step, length in zip(tensor.stride(), tensor.size(), strict=True))
    needed = (tensor.storage_offset() + reach + 1) * tensor.itemsize
    return needed > available


def nested_tensors(value: Any) -> list[Tensor]:
    """The distinct tensors in a nested value."""
    require_acyclic(value, "an argument")
    tree = ArgumentTree()
    tree.template(value, "")
    return tree.tensors


def require_values(tensor: Tensor, name: str) -> None:
    """Raise if the numbers of a tensor cannot be read: some of torch's operators crash the process then."""
    if is_lazy(tensor):
        raise InvalidProblemError(f"{name} is not initialised yet: call the lazy module once before the check")
    if tensor.is_meta or private.is_fake(tensor):
        kind = "a meta tensor" if tensor.is_meta else "a fake tensor"
        raise InvalidProblemError(f"{name} is {kind}, which has a shape but no values: pass a tensor with values")
    if tensor.is_nested:
        raise InvalidProblemError(
            f"{name} is a nested tensor, whose elements have no common shape: pass its parts as a list, and nest them "
            "in the function"
        )
    if tensor.layout is torch.strided and is_freed(tensor):
        raise InvalidProblemError(
            f"the memory of {name} was freed: its storage has {tensor.untyped_storage().nbytes()} bytes. Pass a tensor "
            "with values"
        )


def require_precision(tensor: Tensor, name: str) -> None:
    """Raise if a checked tensor has a format in which torch does not add."""
    if tensor.dtype.itemsize == 1:
        raise InvalidProblemError(
            f"{name} has dtype {str(tensor.dtype).removeprefix('torch.')}, in which torch has no arithmetic: pass "
            "float32, and convert it in the function"
        )


def require_separate(tensor: Tensor) -> None:
    """Raise if elements of a tensor share memory: its Jacobian would not have its shape."""
    if tensor.layout is torch.strided and not separate(tensor.size(), tensor.stride()):
        raise InvalidProblemError(
            f"elements of an input of shape {tuple(tensor.shape)} share memory, so that none can change alone: pass "
            "input.contiguous()"
        )
