"""Functions with one planted property each: a right one, or one whose derivative is wrong in a known way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from tests.functions import with_rules, with_vjp

Change = Callable[[Tensor], Any]


class PlantedError(Exception):
    """What a function under test raises on purpose: no checker can mistake it for its own."""


def product(x: Tensor, y: Tensor) -> Tensor:
    """Right, and its derivative with respect to either argument depends on the other one."""
    return x * y.sin()


def with_gradient_hook(change: Change, function: Callable[[Tensor], Any] = torch.Tensor.clone) -> Callable[..., Any]:
    """`function` with a hook that changes the gradient of its first argument; an undefined one stays undefined."""

    def change_if_defined(gradient: Tensor | None) -> Any:
        return None if gradient is None else change(gradient)

    def changed(x: Tensor, *rest: Any) -> Any:
        y = x.clone()
        if y.requires_grad:
            y.register_hook(change_if_defined)
        return function(y, *rest)

    return changed


def with_offset_gradient(function: Callable[[Tensor], Any] = torch.Tensor.clone) -> Callable[..., Any]:
    """`function`, with 0.01 added to its gradient for every cotangent."""
    return with_gradient_hook(lambda gradient: gradient + 1e-2, function)


def with_unbatchable_backward(function: Callable[[Tensor], Any] = torch.Tensor.clone) -> Callable[..., Any]:
    """`function` with a right backward that turns the gradient into Python numbers, which vmap cannot follow."""
    return with_gradient_hook(lambda gradient: torch.tensor(gradient.tolist(), dtype=gradient.dtype), function)


def with_jittering_backward(size: float) -> Callable[[Tensor], Tensor]:
    """The sine with a backward that is multiplied by 1 + `size` * noise: two runs differ."""

    jitter = with_vjp(torch.clone, lambda v, x: v * (1 + size * torch.rand_like(v)))
    return lambda x: jitter(x).sin()


def identity_with(
    backward: Change, jvp: Change = torch.Tensor.clone, forward: Change = torch.Tensor.clone
) -> Callable[..., Any]:
    """A copy of the argument, by a custom Function with the given formulas."""
    return with_rules(forward, lambda v, x: backward(v), lambda u, x: jvp(u))


def with_scaled_tangent(x: Tensor) -> Tensor:
    """The identity, right in reverse mode; its tangent comes out 1.1 times too large."""
    return identity_with(torch.Tensor.clone, jvp=lambda tangent: 1.1 * tangent)(x)  # type: ignore[no-any-return]


def linear(matrix: Tensor, matrix_of_backward: Tensor) -> Callable[[Tensor], Tensor]:
    """x to `matrix` @ x, whose backward uses another matrix: every entry of the Jacobian can be made wrong at will."""
    return with_vjp(lambda x: matrix @ x, lambda v, x: matrix_of_backward.t() @ v)


def with_batched_derivative_scaled(factor: float) -> Callable[[Tensor], Tensor]:
    """The identity; under vmap, and only there, its gradient and its tangent are multiplied by `factor`."""

    def scale(derivative: Tensor) -> Tensor:
        return derivative * factor if _is_batched(derivative) else derivative.clone()

    return identity_with(scale, jvp=scale)


def _is_batched(tensor: Tensor) -> bool:
    """A tensor inside of vmap stands for many and has no memory of its own."""
    try:
        tensor.data_ptr()
    except RuntimeError:
        return True
    return False


def with_broken_backward(x: Tensor) -> Tensor:
    """The identity, right in forward mode; its backward raises."""
    return identity_with(_raise)(x)  # type: ignore[no-any-return]


def _raise(gradient: Tensor) -> Tensor:
    raise PlantedError("backward is broken")


def square_without_second_derivative(x: Tensor) -> Tensor:
    """The square with a right backward, which is detached from the graph: its own derivative comes out as zero."""
    return with_vjp(torch.square, lambda v, x: 2 * x.detach() * v)(x)  # type: ignore[no-any-return]


def square_differentiable_once(x: Tensor) -> Tensor:
    """The square with a right backward that is declared not to be differentiable."""
    return _OnceSquare.apply(x)  # type: ignore[no-any-return, no-untyped-call]


class _OnceSquare(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * gradient  # type: ignore[no-any-return]
