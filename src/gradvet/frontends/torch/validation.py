"""Inputs that cannot be checked: each is refused with one sentence before the function is called."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from gradvet.core.frontend import Request
from gradvet.errors import InvalidProblemError, first_line
from gradvet.frontends.torch import private
from gradvet.frontends.torch.arguments import ArgumentTree, is_freed, refuse_wrappers, storage_bytes, tensors_of
from gradvet.frontends.torch.layouts.strided import separate

MACHINE_BYTES = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
"""The memory of this machine."""

PLAIN_TYPES = (Tensor, nn.Parameter, nn.Buffer)


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


def nested_tensors(value: Any) -> list[Tensor]:
    """The distinct tensors in a nested value."""
    require_acyclic(value, "an argument")
    return tensors_of(value)


def require_state(model: nn.Module) -> None:
    """Raise if parameters or buffers of a model have no values yet, or parameters are wrappers such as DTensors."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        require_values(tensor, name)
    named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    refuse_wrappers(list(named.values()), list(named))


def require_values(tensor: Tensor, name: str) -> None:
    """Raise if the numbers of a tensor cannot be read: some of torch's operators crash the process then."""
    if is_lazy(tensor):
        raise InvalidProblemError(f"{name} is not initialised yet: call the lazy module once before the check")
    if tensor.is_meta or private.is_fake(tensor):
        kind = "a meta tensor" if tensor.is_meta else "a fake tensor"
        raise InvalidProblemError(f"{name} is {kind}, which has a shape but no values: pass a tensor with values")
    if private.is_functional(tensor):
        raise InvalidProblemError(f"{name} is a wrapper of torch's functionalisation: pass the tensor inside")
    if tensor.is_nested:
        raise InvalidProblemError(
            f"{name} is a nested tensor, whose elements have no common shape: pass its parts as a list, and nest them "
            "in the function"
        )
    if type(tensor) not in PLAIN_TYPES and not _is_comparable(tensor):
        raise InvalidProblemError(
            f"{name} is a {type(tensor).__name__}, whose values torch does not compare: pass a plain tensor, and "
            "convert it in the function"
        )
    if tensor.layout is not torch.strided:
        _require_valid_indices(tensor, name)
    elif is_freed(tensor):
        raise InvalidProblemError(
            f"the memory of {name} was freed, or belongs to a transform such as vmap: its storage has "
            f"{storage_bytes(tensor)} bytes. Pass a tensor with values"
        )
    elif tensor.nbytes > storage_bytes(tensor) and tensor.nbytes > MACHINE_BYTES:
        raise InvalidProblemError(
            f"{name} is expanded to {tensor.numel()} elements, which do not fit into the memory of this machine: pass "
            "a smaller tensor, and expand it in the function"
        )
    if tensor.is_leaf and tensor.grad is not None and tensor.grad.shape != tensor.shape:
        raise InvalidProblemError(
            f"the .grad of {name} has shape {tuple(tensor.grad.shape)} instead of {tuple(tensor.shape)}: set it to None"
        )


def _is_comparable(tensor: Tensor) -> bool:
    try:
        return tensor.layout is not torch.strided or is_freed(tensor) or torch.equal(tensor, tensor) is not None
    except Exception:
        return False


def _require_valid_indices(tensor: Tensor, name: str) -> None:
    """Raise if the indices of a sparse tensor are outside of it, which torch does not test by itself."""
    layout, device, values = tensor.layout, tensor.device, tensor.detach()
    try:
        if layout is torch.sparse_coo:
            indices, numbers = private.coo_indices(values), private.coo_values(values)
            torch.sparse_coo_tensor(indices, numbers, tensor.shape, device=device, check_invariants=True)
        elif layout in (torch.sparse_csr, torch.sparse_bsr):
            parts = values.crow_indices(), values.col_indices(), values.values()
            torch.sparse_compressed_tensor(*parts, tensor.shape, layout=layout, device=device, check_invariants=True)
        elif layout in (torch.sparse_csc, torch.sparse_bsc):
            parts = values.ccol_indices(), values.row_indices(), values.values()
            torch.sparse_compressed_tensor(*parts, tensor.shape, layout=layout, device=device, check_invariants=True)
    except RuntimeError as error:
        reason = first_line(error, 150)
        raise InvalidProblemError(
            f"{name} is a sparse tensor with wrong indices ({reason}): pass a valid one"
        ) from None


def templates_of(request: Request) -> tuple[ArgumentTree, list[Any], dict[str, Any]]:
    """The tensors of the request, and its arguments and keywords with slots in their place.

    Raises if the values of such a tensor, or of one of the module that is to be called, cannot be read.
    """
    tree = ArgumentTree()
    for number, value in enumerate(request.positional):
        require_acyclic(value, f"input {number}")
    require_acyclic(request.kwargs, "kwargs")
    templates = [tree.template(value, f"input {number}") for number, value in enumerate(request.positional)]
    keywords = {name: tree.template(value, name) for name, value in (request.kwargs or {}).items()}
    refuse_wrappers(tree.tensors, tree.names)
    for name, tensor in zip(tree.names, tree.tensors, strict=True):
        require_values(tensor, name)
    if isinstance(request.func, nn.Module):
        require_state(request.func)
    return tree, templates, keywords


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
