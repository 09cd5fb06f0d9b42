"""What the kernels of `benchmarks.emulated_kernels` have in common.

A kernel is a pair of passes in plain torch that hide their operators, as compiled kernels do. It rounds where a kernel
on a GPU would: inputs and results are in the dtype given, sums and products in a wider one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.kernel_cases import Draw, Entry, Inputs
from tests.kernels.emulated import opaque_function

Passes = tuple[Callable[..., Any], Callable[..., Any]]


@dataclass(frozen=True)
class Emulated:
    """A kernel by the fault inside it, the same function in plain torch, and its inputs."""

    passes: Callable[[str], Passes]
    """The forward and backward pass; an empty name is the right kernel."""
    faults: tuple[str, ...]
    eager: Callable[..., Any]
    build: Callable[[Draw], Inputs]

    def entries(self, name: str) -> Iterator[Entry]:
        for fault in ("", *self.faults):
            title = f"WRONG {name}: {fault}" if fault else name
            yield Entry(title, opaque_function(*self.passes(fault)), self.eager, self.build)


def follow(x: Tensor) -> Tensor:
    """In float32, or in float64 if it is given in that."""
    return x if x.dtype is torch.float64 else x.float()


def refuse(x: Tensor) -> Tensor:
    """In float32. A kernel that does not know float64 raises."""
    if x.dtype is torch.float64:
        raise KeyError(torch.float64)
    return x.float()


def cast(x: Tensor) -> Tensor:
    """In float32, whatever it is given in."""
    return x.float()


def half_only(x: Tensor) -> Tensor:
    """In float32. A kernel that knows half precision alone raises for anything else."""
    if x.dtype not in (torch.bfloat16, torch.float16):
        raise KeyError(x.dtype)
    return x.float()


def tiles(length: int, size: int) -> list[slice]:
    return [slice(start, min(length, start + size)) for start in range(0, length, size)]


def product(a: Tensor, b: Tensor, tile: int = 16) -> Tensor:
    """a @ b, summed over tiles of the inner dimension in the dtype that the tiles have."""
    total = a.new_zeros(*a.shape[:-1], b.shape[-1])
    for part in tiles(a.shape[-1], tile):
        total += a[..., part] @ b[..., part, :]
    return total


def differentiated(function: Callable[..., Any], inputs: tuple[Tensor, ...], grads: tuple[Tensor, ...]) -> Any:
    """The gradients of a function that is computed again in the dtype of these inputs."""
    with torch.enable_grad():
        sources = [x.detach().requires_grad_() for x in inputs]
        outputs = function(*sources)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        return torch.autograd.grad(outputs, sources, [g.to(y.dtype) for g, y in zip(grads, outputs, strict=True)])
