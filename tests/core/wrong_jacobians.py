"""Functions with a known Jacobian whose derivative is wrong by a known matrix, and ways to be wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradvet.core.context import Context
from gradvet.frontends.torch.binding import drop_in_binding
from gradvet.frontends.torch.problem import TorchProblem
from gradvet.options import Options, Tolerance

TOLERANCE = Tolerance()


class Matrix(torch.autograd.Function):
    """x ↦ A x, with B in place of A as the derivative in both modes."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, A: Tensor, B: Tensor) -> Tensor:
        return A @ x

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[2])
        ctx.save_for_forward(inputs[2])

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None, None]:
        return ctx.saved_tensors[0].mH @ cotangent, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> Tensor:
        product: Tensor = ctx.saved_tensors[0] @ tangent
        return product


def linear(A: Tensor, error: Tensor) -> Callable[[Tensor], Tensor]:
    """x ↦ A x whose derivative is A + error."""
    B = A + error
    return lambda x: Matrix.apply(x, A, B)


def curved(A: Tensor, error: Tensor) -> Callable[[Tensor], Tensor]:
    """x ↦ A sin(x) whose derivative is A diag(cos x) + error."""

    def function(x: Tensor) -> Tensor:
        return A @ x.sin() + Matrix.apply(x, torch.zeros_like(A), error)

    return function


def numbers(shape: Sequence[int], seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Normally distributed numbers."""
    return torch.randn(tuple(shape), dtype=dtype, generator=torch.Generator().manual_seed(seed))


def context_at(
    function: Callable[..., Any],
    *points: Tensor,
    seed: int = 0,
    miss: float = 1e-9,
    tolerance: tuple[float, float] = (TOLERANCE.absolute, TOLERANCE.relative),
    nondeterminism: float = 0.0,
) -> Context:
    """A function at points that require grad, ready to be checked."""
    problem = TorchProblem(drop_in_binding(function, [point.requires_grad_() for point in points]), seed)
    held_to = Tolerance(*tolerance)
    return Context.of(problem, Options(seed=seed, miss=miss, tolerance=held_to, nondeterminism=nondeterminism))


def allowed(J: Tensor) -> Tensor:
    """By how much each entry of the derivative may be off."""
    return TOLERANCE.absolute + TOLERANCE.relative * J.abs()


def scaled(pattern: Tensor, J: Tensor, factor: float) -> Tensor:
    """The pattern as an error whose worst entry is `factor` times what is allowed there."""
    return pattern * (factor / (pattern.abs() / allowed(J)).max())


@dataclass(frozen=True, slots=True)
class Draw:
    """Random choices for a fault of a Jacobian."""

    J: Tensor
    generator: torch.Generator

    @property
    def none(self) -> Tensor:
        return torch.zeros_like(self.J)

    def index(self, axis: int) -> int:
        return int(torch.randint(self.J.shape[axis], (), generator=self.generator))

    def two(self, axis: int) -> list[int]:
        """Two different indices; the same one twice if there is only one."""
        order = torch.randperm(self.J.shape[axis], generator=self.generator).tolist()
        return [order[0], order[-1]]

    def randn(self, *shape: int) -> Tensor:
        return torch.randn(*shape, dtype=self.J.dtype, generator=self.generator)


def single(draw: Draw) -> Tensor:
    error = draw.none
    error[draw.index(0), draw.index(1)] = 1.0
    return error


def pair_in_a_row(draw: Draw) -> Tensor:
    error, i, (j, k) = draw.none, draw.index(0), draw.two(1)
    error[i, j], error[i, k] = 1.0, -1.0
    return error


def pair_in_a_column(draw: Draw) -> Tensor:
    error, (i, k), j = draw.none, draw.two(0), draw.index(1)
    error[i, j], error[k, j] = 1.0, -1.0
    return error


def pair_on_a_diagonal(draw: Draw) -> Tensor:
    error, (i, k), (j, p) = draw.none, draw.two(0), draw.two(1)
    error[i, j], error[k, p] = 1.0, -1.0
    return error


def rectangle(draw: Draw) -> Tensor:
    """(e_i - e_k)(e_j - e_p)ᵀ cancels in every direction and cotangent with equal entries."""
    error, (i, k), (j, p) = draw.none, draw.two(0), draw.two(1)
    error[i, j], error[k, p] = 1.0, 1.0
    error[i, p], error[k, j] = -1.0, -1.0
    return error


def swapped(draw: Draw) -> Tensor:
    """Two entries of the Jacobian exchanged."""
    error, J, (i, k), (j, p) = draw.none, draw.J, draw.two(0), draw.two(1)
    error[i, j], error[k, p] = J[k, p] - J[i, j], J[i, j] - J[k, p]
    return error


def transposed_block(draw: Draw) -> Tensor:
    """A square block in a corner transposed."""
    error, size = draw.none, min(draw.J.shape)
    block = draw.J[:size, :size]
    error[:size, :size] = block.T - block
    return error


def rank_one(draw: Draw) -> Tensor:
    m, n = draw.J.shape
    return draw.randn(m, 1) @ draw.randn(1, n)


def whole_row(draw: Draw) -> Tensor:
    error = draw.none
    error[draw.index(0)] = draw.randn(draw.J.shape[1])
    return error


def whole_column(draw: Draw) -> Tensor:
    error = draw.none
    error[:, draw.index(1)] = draw.randn(draw.J.shape[0])
    return error


def tail(draw: Draw) -> Tensor:
    """The last block of inputs."""
    error, first = draw.none, (draw.J.shape[1] + 1) // 2
    error[:, first:] = draw.randn(*error[:, first:].shape)
    return error


FAULTS: tuple[Callable[[Draw], Tensor], ...] = (
    single,
    pair_in_a_row,
    pair_in_a_column,
    pair_on_a_diagonal,
    rectangle,
    swapped,
    transposed_block,
    rank_one,
    whole_row,
    whole_column,
    tail,
)


def planted(fault: Callable[[Draw], Tensor], J: Tensor, factor: float, seed: int) -> Tensor:
    """A fault whose worst entry is `factor` times what is allowed there; a lone entry where it cancels itself."""
    draw = Draw(J, torch.Generator().manual_seed(seed))
    pattern = fault(draw)
    return scaled(pattern if bool(pattern.abs().max() > 1e-3) else single(draw), J, factor)
