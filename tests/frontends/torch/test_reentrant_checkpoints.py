"""Derivatives of functions with reentrant checkpoints, which allow `backward()` alone."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import gradvet
from gradvet.core.results import Verdict
from gradvet.frontends.torch.derivatives import gradients
from tests.functions import with_vjp


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_reentrant_checkpoints_are_differentiated_through_backward() -> None:
    layer = torch.nn.Linear(4, 4, dtype=torch.float64)
    layer.weight.grad = kept = torch.full_like(layer.weight, 3.0)
    x = numbers(2, 4).requires_grad_()
    x.grad = own = torch.ones_like(x)

    def function(y: Tensor) -> Tensor:
        found = checkpoint(lambda z: torch.tanh(layer(z)), y, use_reentrant=True)
        assert isinstance(found, Tensor)
        return found

    report = gradvet.check(function, (x,), seed=20)
    assert report.verdict is Verdict.PASS
    assert layer.weight.grad is kept
    assert bool((kept == 3.0).all())
    assert x.grad is own
    assert bool((own == 1.0).all())
    assert layer.bias.grad is None


def test_reentrant_checkpoints_of_inner_tensors() -> None:
    x = numbers(5).requires_grad_()
    y = 2.0 * x
    z = checkpoint(torch.sin, y, use_reentrant=True)
    (found,) = gradients([z], [y], [torch.ones(5, dtype=torch.float64)])
    assert torch.equal(found, torch.cos(y))
    assert x.grad is None


def test_wrong_rules_in_reentrant_checkpoints_fail() -> None:
    wrong = with_vjp(torch.sin, lambda v, x: 1.05 * v * torch.cos(x))
    x = numbers(5).requires_grad_()
    assert gradvet.check(lambda y: checkpoint(wrong, y, use_reentrant=True), (x,), seed=20).verdict is Verdict.FAIL


def test_modules_with_reentrant_checkpoints_are_not_accused() -> None:
    class Recomputed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.LayerNorm(3))

        def forward(self, x: Tensor) -> Tensor:
            found = checkpoint(self.layers, x, use_reentrant=True)
            assert isinstance(found, Tensor)
            return found

    for dtype in (torch.float64, torch.float32):
        x = numbers(2, 4).to(dtype).requires_grad_()
        assert gradvet.check(Recomputed().to(dtype), (x,), seed=20).verdict is Verdict.PASS


def test_captured_inputs_of_a_reentrant_checkpoint_pass() -> None:
    """Torch gives them no gradient, and warns, if none of the checkpoint's own inputs requires grad."""

    def function(x: Tensor, weight: Tensor) -> Tensor:
        found = checkpoint(lambda y: torch.tanh(y @ weight), x, use_reentrant=True)
        assert isinstance(found, Tensor)
        return found

    report = gradvet.check(function, (numbers(2, 4).requires_grad_(), numbers(4, 3).requires_grad_()), seed=20)
    assert report.verdict is Verdict.PASS
    assert "reentrant checkpoint" in report.text(verbose=True)
