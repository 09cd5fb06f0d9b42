"""Second derivatives are symmetric as far as roundoff allows, and a gradient of nothing is found out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import gradvet
from gradvet.core.results import Verdict


def symmetry(func: object, x: Tensor) -> Verdict:
    report = gradvet.check(func, x, order=2, checks=["symmetry"], seed=3)  # type: ignore[arg-type]
    (finding,) = [finding for finding in report.findings if finding.check == "symmetry"]
    return finding.verdict


@pytest.mark.parametrize(
    "func",
    [
        lambda x: torch.nn.functional.layer_norm(x, (2,)),  # ±1 whatever the input: all that is left is roundoff
        lambda x: torch.copysign(x, x.detach().flip(0)),
        lambda x: (x / x.sum()).sum() + x.prod(),
    ],
)
def test_second_derivative_that_cancels_down_to_roundoff_is_symmetric(func: object) -> None:
    assert symmetry(func, torch.randn(3, 2, dtype=torch.float64)) is Verdict.PASS


class Rotation(torch.autograd.Function):
    """Its gradient is a field with a curl."""

    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x)
        return (x**2).sum() / 2

    @staticmethod
    def backward(ctx, dy):  # type: ignore[no-untyped-def]
        (x,) = ctx.saved_tensors
        return dy * (x + 1e-3 * x.roll(1))


def test_gradient_of_nothing_is_not_symmetric() -> None:
    assert symmetry(Rotation.apply, torch.randn(5, dtype=torch.float64)) is Verdict.FAIL


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
def test_symmetry_is_measured_by_the_size_of_the_second_derivative(scale: float) -> None:
    def mixed(x: Tensor) -> Tensor:
        return scale * torch.sin(x[:, None] * x[None, :]).sum() / (1.0 + x.square().sum())

    x = torch.randn(6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert symmetry(mixed, x) is Verdict.PASS
    assert symmetry(lambda x: scale * Rotation.apply(x), x) is Verdict.FAIL  # type: ignore[no-untyped-call]


def alone(derivative: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Σ 3x + x², whose gradient is this whatever the cotangent, and has no gradient itself."""

    class Alone(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):  # type: ignore[no-untyped-def]
            ctx.x = x.detach()
            return (3.0 * x + x**2).sum()

        @staticmethod
        def backward(ctx, v):  # type: ignore[no-untyped-def]
            return derivative(ctx.x)

    return Alone.apply


@pytest.mark.parametrize(
    ("derivative", "silent"),
    [(lambda x: 3.0 + 2.0 * x, True), (lambda x: torch.full_like(x, 3.0), False), (lambda x: 3.0 + 1e-5 * x, False)],
)
def test_first_derivative_that_varies_must_have_a_derivative(derivative: Any, nondifferentiable: bool) -> None:
    x = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
    report = gradvet.check(alone(derivative), x, order=2, seed=1, checks=["reverse-over-reverse"])
    assert any("silently zero" in finding.headline for finding in report.findings) is nondifferentiable
