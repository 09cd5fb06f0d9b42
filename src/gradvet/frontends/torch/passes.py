"""Backward passes, in which an exception says something about the derivative: the user's, or torch's own."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import has_torch_function

from gradvet.errors import DerivativeError, UnsupportedError
from gradvet.frontends.torch.support import is_unsupported_error

STOCK = re.compile(r"\w+Backward\d+|torch::autograd::\w+|CopyBackwards|CopySlices")
"""Names of the nodes that torch itself puts into a graph."""

MISUSE = ("inplace operation", "second time")
"""What torch's own nodes say of a graph that the function spoiled."""


PYTHONS = (AttributeError, NameError, ZeroDivisionError)
"""What torch's own nodes never raise, but hooks do."""


_ENGINE = torch.autograd.Variable._execution_engine
"""What `torch.autograd.grad` calls in the end."""


def classify_backward_error(live: Sequence[Any], error: Exception, *, spoilable: bool = True) -> None:
    """What a pass raises is the derivative's doing, unless torch says, or its operators show, that there is none.

    `spoilable` says whether the graph was recorded by the user's code, which may have spoiled it. Where nobody is to
    blame, nothing is raised.
    """
    if isinstance(error, (torch.OutOfMemoryError, DerivativeError, UnsupportedError)) or is_unsupported_error(error):
        return
    words = str(error).strip().splitlines() or [""]
    spoiled = spoilable and any(saying in str(error) for saying in MISUSE)
    if not spoiled and not isinstance(error, PYTHONS) and not has_custom_rules(live):
        raise UnsupportedError(f"{type(error).__name__}: {words[0]}") from error
    text = f"the backward pass raises {type(error).__name__}: {words[0][:300]}"
    raise DerivativeError(text) from error


def has_custom_rules(live: Sequence[Any]) -> bool:
    """Whether the graph of these outputs holds derivatives that are not torch's."""
    return stock_kinds(live) is None


def stock_kinds(live: Sequence[Any]) -> set[str] | None:
    """The kinds of nodes in the graph of these outputs; None if it holds derivatives that are not torch's."""
    kinds: set[str] = set()
    for node in nodes_behind(live):
        if (kind := node.name()) not in kinds:
            # A Python Function's node is called after its class, and ends in Backward without a number.
            if not is_builtin(kind):
                return None
            kinds.add(kind)
    return kinds


@functools.lru_cache(maxsize=1024)
def is_builtin(name: str) -> bool:
    """Whether a node of this name is torch's own."""
    return STOCK.fullmatch(name) is not None


def nodes_behind(live: Sequence[Any]) -> Iterator[Any]:
    """Every node of the graph of these outputs, once."""
    seen = {output.grad_fn for output in live} - {None}
    waiting = list(seen)
    seen.add(None)
    while waiting:
        node = waiting.pop()
        yield node
        for following, _ in node.next_functions:
            if following not in seen:
                seen.add(following)
                waiting.append(following)


def gradients(live: Sequence[Any], sources: Sequence[Any], cotangents: Sequence[Tensor]) -> Sequence[Any]:
    """The gradient of every source, None where there is none; the graph stays."""
    try:
        return swift_gradients(tuple(live), tuple(sources), tuple(cotangents))
    except Exception as error:
        classify_backward_error(live, error)
        raise


def accumulate(live: Sequence[Any], cotangents: Sequence[Tensor]) -> None:
    """Add the gradients to the `.grad` of the leaves; the graph stays."""
    try:
        torch.autograd.backward(live, cotangents, retain_graph=True)
    except Exception as error:
        classify_backward_error(live, error)
        raise


def swift_gradients(
    live: tuple[Any, ...], sources: tuple[Any, ...], cotangents: tuple[Tensor, ...], *, ordinary: bool = False
) -> Sequence[Any]:
    """`torch.autograd.grad`, where possible without its checks of arguments that are right by construction.

    `ordinary` says that all are known to be tensors of torch's own kind.
    """
    if not ordinary and (has_torch_function(live) or has_torch_function(sources)):
        return torch.autograd.grad(live, sources, cotangents, retain_graph=True, allow_unused=True)
    found: Sequence[Any] = _ENGINE.run_backward(live, cotangents, True, False, sources, True, accumulate_grad=False)
    return found
