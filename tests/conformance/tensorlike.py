"""An object that is no tensor, acts as one through `__torch_function__`, and records what is asked of it.

It has no attribute of a tensor on its own: every name that a checker looks up goes through `__getattr__`, and every
torch function through `__torch_function__`. Indexing, arithmetic and truth go straight to the tensor: they are part of
what it means to stand for one. What is computed from a tensor-like is a tensor-like with a record of its own.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map


class TensorLike:
    """Stands for `tensor` and keeps the `names` of the attributes and functions that were used on it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.__dict__.update(tensor=tensor, names=set())

    def __getattr__(self, name: str) -> Any:
        self.names.add(name)
        value = getattr(self.tensor, name)
        return _on_tensors(value) if callable(value) else _wrapped(value)

    def __setattr__(self, name: str, value: Any) -> None:
        self.names.add(name)
        setattr(self.tensor, name, _unwrapped(value))

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        for leaf in tree_leaves((args, kwargs)):
            if isinstance(leaf, cls):
                leaf.names.add(_name(func))
        return _on_tensors(func)(*args, **(kwargs or {}))


def _name(func: Callable[..., Any]) -> str:
    """A method of Tensor is its bare name; `torch.autograd.grad` keeps its module."""
    module = getattr(func, "__module__", None)
    return f"{module}.{func.__name__}" if module else func.__name__


def _wrapped(tree: Any) -> Any:
    return tree_map(lambda leaf: TensorLike(leaf) if isinstance(leaf, torch.Tensor) else leaf, tree)


def _unwrapped(tree: Any) -> Any:
    return tree_map(lambda leaf: leaf.tensor if isinstance(leaf, TensorLike) else leaf, tree)


def _on_tensors(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` applied to the tensors behind its arguments; its result stands for a tensor again."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return _wrapped(function(*_unwrapped(args), **_unwrapped(kwargs)))

    return call


for _operator in ("add", "sub", "mul", "truediv", "neg", "getitem", "setitem", "eq", "lt", "le", "gt", "ge"):
    setattr(TensorLike, f"__{_operator}__", _on_tensors(getattr(operator, _operator)))
for _conversion in (bool, int, float, len):
    setattr(TensorLike, f"__{_conversion.__name__}__", _on_tensors(_conversion))
