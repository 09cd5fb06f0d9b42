"""Random inputs of given shapes, random vectors, and refusals of unusable inputs."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from gradvet.core.frontend import Request
from gradvet.core.probe_plans import SPREAD
from gradvet.core.problem import Distribution
from gradvet.errors import InvalidProblemError, first_line
from gradvet.frontends.torch import private
from gradvet.frontends.torch.arguments import (
    ArgumentTree,
    refuse_wrappers,
    refused_wrapper,
    require_acyclic,
)
from gradvet.frontends.torch.layouts.dense import WORKING_DTYPE, is_freed, overlaps, storage_bytes
from gradvet.frontends.torch.layouts.sparse import is_sparse, stored_indices, stored_numbers


def random_inputs(
    shapes: Sequence[Sequence[int]],
    dtype: str = "float64",
    below: Sequence[int | None] = (),
    device: str = "cpu",
    domain: tuple[float, float] | None = None,
) -> tuple[Tensor, ...]:
    """One random tensor per shape, of a dtype that has derivatives, or of integers where `below` has a bound.

    With `domain`, all numbers that have derivatives are inside that interval.
    """
    kind = differentiable_dtype(dtype)
    bounds = below or [None] * len(shapes)
    return tuple(
        _numbers(tuple(shape), kind, domain).to(device)
        if bound is None
        else torch.randint(bound, tuple(shape), device="cpu").to(device)
        for shape, bound in zip(shapes, bounds, strict=True)
    )


def _numbers(shape: tuple[int, ...], kind: torch.dtype, domain: tuple[float, float] | None) -> Tensor:
    """Normal numbers; inside an interval, equally distributed ones, or the distances of normal ones from its end."""
    normal = torch.randn(shape, dtype=kind, device="cpu")
    if domain is None or kind.is_complex:
        return normal
    low, high = domain
    if math.isfinite(low) and math.isfinite(high):
        return low + (high - low) * torch.rand(shape, dtype=kind, device="cpu")
    return low + normal.abs() if math.isfinite(low) else high - normal.abs() if math.isfinite(high) else normal


MAX_SHARED_DRAW = 512
"""Numbers up to which many vectors are drawn in one call."""

MAX_DOUBLE_DRAW = 4096
"""Numbers up to which two vectors are drawn in one call."""

BLOCK_NUMBERS = 32_768
"""Longer vectors are made in blocks of this many numbers, which fit into the caches."""

DRAWS_BY_DISTRIBUTION: dict[Distribution, tuple[int, float, Tensor | None]] = {
    Distribution.UNIFORM: (8, SPREAD, None),
    Distribution.OFF_ZERO: (8, SPREAD, torch.tensor(0.25, dtype=WORKING_DTYPE, device="cpu")),
    Distribution.NEAR_UNIT: (16, 1.0, torch.tensor(0.5, dtype=WORKING_DTYPE, device="cpu")),
}
"""Short vectors that are drawn in one call, half the length of the interval from which numbers are drawn evenly, and by
how much they are then moved away from zero."""


NO_NUMBERS = torch.empty(0, device="cpu")


def draw(distribution: Distribution, size: int, generator: torch.Generator, scale: float = 1.0) -> Tensor:
    """The next `size` numbers of a generator, multiplied by the scale."""
    numbers = torch.empty(size, dtype=WORKING_DTYPE, device=generator.device)
    _, width, gap = DRAWS_BY_DISTRIBUTION[distribution]
    for block in numbers.split(BLOCK_NUMBERS) if numbers.is_cpu else [numbers]:
        block.uniform_(-width, width, generator=generator)
        if gap is not None:
            block.add_(torch.copysign(gap, block))
        if scale != 1.0:
            block.mul_(scale)
    return numbers


class Sampler:
    """The random numbers of one problem, drawn ahead so that short vectors cost few calls of torch."""

    def __init__(self, home: torch.device, seed: int) -> None:
        self._home, self._seed = home, seed
        self._reservoir, self._unused = NO_NUMBERS, 0
        self._distribution = Distribution.UNIFORM

    @cached_property
    def _generator(self) -> torch.Generator:
        return torch.Generator(self._home).manual_seed(self._seed)

    def take(self, size: int, distribution: Distribution, scale: float = 1.0) -> Tensor:
        """A fresh vector, multiplied by the scale."""
        if size > MAX_DOUBLE_DRAW:
            return draw(distribution, size, self._generator, scale)
        if self._unused < size or self._distribution is not distribution:
            times = DRAWS_BY_DISTRIBUTION[distribution][0] if size <= MAX_SHARED_DRAW else 2
            self._distribution, self._unused = distribution, times * size
            self._reservoir = draw(distribution, self._unused, self._generator)
        self._unused -= size
        taken = self._reservoir[self._unused : self._unused + size]
        return taken if scale == 1.0 else taken * scale


def converted(value: Any, dtype: str, device: str = "cpu") -> Any:
    """A module with its parameters and buffers in a dtype and on a device; anything else as it is."""
    return value.to(device, differentiable_dtype(dtype)) if isinstance(value, nn.Module) else value


def require_known(dtype: str, device: str) -> None:
    """Raise `InvalidProblemError` unless torch has a dtype and a device of these names."""
    differentiable_dtype(dtype)
    try:
        torch.device(device)
    except RuntimeError:
        raise InvalidProblemError(f"torch knows no device {device!r}: use cpu, cuda, cuda:1 or mps") from None


def differentiable_dtype(name: str) -> torch.dtype:
    """The dtype of that name, which must be one that has derivatives."""
    kind = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(kind, torch.dtype) or not (kind.is_floating_point or kind.is_complex):
        raise InvalidProblemError(
            f"a floating-point or complex dtype was expected, found {name!r}: use float64, float32, bfloat16, "
            "float16, complex128 or complex64"
        )
    return kind


MACHINE_BYTES = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
"""The memory of this machine."""


def has_values(tensor: Tensor) -> bool:
    """Whether the numbers of a tensor can be read and written: it has memory and is no inference tensor."""
    return not (tensor.is_meta or tensor.is_inference() or is_lazy(tensor) or is_freed(tensor))


def require_state(model: nn.Module) -> None:
    """Raise if parameters or buffers of a model have no values yet, or parameters are wrappers such as DTensors."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        require_values(tensor, name)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and type(parameter).__torch_dispatch__ is not Tensor.__torch_dispatch__:
            raise refused_wrapper(parameter, name)


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
    if type(tensor) not in private.PLAIN_TYPES and not _is_comparable(tensor):
        raise InvalidProblemError(
            f"{name} is a {type(tensor).__name__}, whose values torch does not compare: pass a plain tensor, and "
            "convert it in the function"
        )
    if is_sparse(tensor):
        _require_valid_indices(tensor, name)
    elif is_freed(tensor):
        raise InvalidProblemError(
            f"the memory of {name} was freed, or belongs to a transform such as vmap: its storage has "
            f"{storage_bytes(tensor)} bytes. Pass a tensor with values"
        )
    elif tensor.nbytes > MACHINE_BYTES and tensor.nbytes > storage_bytes(tensor):
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
    parts: list[Any] = [*stored_indices(tensor), stored_numbers(tensor), tensor.shape]
    try:
        if tensor.layout is torch.sparse_coo:
            torch.sparse_coo_tensor(*parts, device=tensor.device, check_invariants=True)
        else:
            torch.sparse_compressed_tensor(*parts, layout=tensor.layout, device=tensor.device, check_invariants=True)
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
    if overlaps(tensor):
        raise InvalidProblemError(
            f"elements of an input of shape {tuple(tensor.shape)} share memory, so that none can change alone: pass "
            "input.contiguous()"
        )
