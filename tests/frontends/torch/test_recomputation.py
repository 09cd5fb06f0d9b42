"""Recomputation gives the gradient of a plain call, and calls the function again in the backward pass."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gradvet.frontends.torch.derivatives import call_recomputing
from tests.core.wrong_jacobians import numbers


def function(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w).sin() * (x @ w).exp()


def gradients(y: Tensor, *sources: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(y.sum(), sources, retain_graph=True))


def test_gradient_is_that_of_a_plain_call_and_of_torch_utils_checkpoint() -> None:
    x, w = numbers((4, 3), 0).requires_grad_(), numbers((3, 2), 1).requires_grad_()
    found = call_recomputing(function, (x, w))
    for other in (function(x, w), checkpoint(function, x, w, use_reentrant=False)):
        assert torch.equal(found, other)
        for _ in range(2):  # the graph is kept
            assert all(map(torch.equal, gradients(found, x, w), gradients(other, x, w)))


def test_graph_keeps_no_values_and_backward_calls_the_function_once_more() -> None:
    factors = [2.0, 5.0]

    def scaled(x: Tensor) -> Tensor:
        return x * torch.full_like(x, factors.pop(0))

    x = numbers((3,), 0).requires_grad_()
    y = call_recomputing(scaled, (x,))
    assert len(factors) == 1
    assert torch.equal(gradients(y, x)[0], torch.full_like(x, 5.0))


def test_function_inside_which_gradients_are_taken_is_recomputed() -> None:
    def slope(x: Tensor) -> Tensor:
        with torch.enable_grad():
            inner = x.pow(3).sum()
            return torch.autograd.grad(inner, x, create_graph=True)[0]

    x = numbers((3,), 0).requires_grad_()
    assert torch.allclose(gradients(call_recomputing(slope, (x,)), x)[0], 6.0 * x.detach())


def test_second_call_that_saves_other_tensors_is_refused() -> None:
    lengths = [1, 2]

    def repeated(x: Tensor) -> Tensor:
        return torch.cat([x.sin()] * lengths.pop(0)).exp()

    x = numbers((3,), 0).requires_grad_()
    y = call_recomputing(repeated, (x,))
    with pytest.raises(RuntimeError, match=r"torch\.utils\.checkpoint refuses the function"):
        gradients(y, x)
