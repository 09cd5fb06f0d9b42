"""Second derivatives must be symmetric up to roundoff; a first derivative without a derivative of its own is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

import gradvet
from gradvet.core.results import Verdict
from tests.functions import with_vjp


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


rotation = with_vjp(lambda x: (x**2).sum() / 2, lambda dy, x: dy * (x + 1e-3 * x.roll(1)))
"""A gradient that is not the gradient of any function: its Jacobian is not symmetric."""


def test_gradient_of_nothing_is_not_symmetric() -> None:
    assert symmetry(rotation, torch.randn(5, dtype=torch.float64)) is Verdict.FAIL


def test_second_derivative_that_is_not_finite_is_not_called_symmetric() -> None:
    lost = with_vjp(lambda x: (x**2).sum() / 2, lambda dy, x: dy * x * torch.full_like(x, torch.nan))
    assert symmetry(lost, torch.randn(5, dtype=torch.float64)) is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
def test_symmetry_is_measured_by_the_size_of_the_second_derivative(scale: float) -> None:
    def mixed(x: Tensor) -> Tensor:
        return scale * torch.sin(x[:, None] * x[None, :]).sum() / (1.0 + x.square().sum())

    x = torch.randn(6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert symmetry(mixed, x) is Verdict.PASS
    assert symmetry(lambda x: scale * rotation(x), x) is Verdict.FAIL


def alone(derivative: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Σ 3x + x², whose gradient is `derivative(x)` for every cotangent and has no graph."""
    return with_vjp(lambda x: (3.0 * x + x**2).sum(), lambda v, x: derivative(x.detach()))


@pytest.mark.parametrize(
    ("derivative", "silent"),
    [(lambda x: 3.0 + 2.0 * x, True), (lambda x: torch.full_like(x, 3.0), False), (lambda x: 3.0 + 1e-5 * x, False)],
)
def test_first_derivative_that_varies_must_have_a_derivative(derivative: Any, silent: bool) -> None:
    x = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
    report = gradvet.check(alone(derivative), x, order=2, seed=1, checks=["reverse-over-reverse"])
    assert any("silently zero" in finding.headline for finding in report.findings) is silent


class Once(torch.autograd.Function):
    """y = x², with a backward that has no derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return 2 * ctx.saved_tensors[0] * dy


def test_second_derivative_that_raises_leaves_the_ledger_of_the_first() -> None:
    x = torch.linspace(0.5, 2.0, 4, dtype=torch.float64)
    rows = [(row.input, row.mode, row.compared) for row in gradvet.check(Once, x, order=2, modes=["reverse"]).ledger]
    assert rows[:1] == [("input 0", "reverse", 4)]


def test_headline_names_the_second_derivative() -> None:
    class Detached(Once):
        @staticmethod
        def backward(ctx: Any, dy: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return 2 * x.detach() * dy + 0.0 * x * dy

    report = gradvet.check(Detached, torch.linspace(0.5, 2.0, 4, dtype=torch.float64), order=2, modes=["reverse"])
    headlines = [finding.headline for finding in report.failures]
    assert any(one.startswith("the second derivative (reverse-over-reverse) disagrees") for one in headlines)


def sine_whose_third_derivative_is(factor: float) -> Callable[[Tensor], Tensor]:
    """The sine; each rule differentiates by the next one, and the last has a factor."""
    last = with_vjp(torch.sin, lambda dy, x: dy * x.cos() * factor)
    second = with_vjp(torch.cos, lambda dy, x: -dy * last(x))
    return with_vjp(torch.sin, lambda dy, x: dy * second(x))


@pytest.mark.parametrize("order", [3, 4])
def test_derivatives_of_higher_order_of_smooth_functions_pass(order: int) -> None:
    x = torch.linspace(0.2, 1.3, 4, dtype=torch.float64)
    for func in (torch.sin, torch.nn.functional.gelu, lambda x: x**2, sine_whose_third_derivative_is(1.0)):
        report = gradvet.check(func, x, order=order, seed=1)
        assert report.verdict is Verdict.PASS
        orders = [finding.facts["order"] for finding in report.findings if finding.check == "higher-order"]
        assert orders == list(range(3, order + 1))
        assert f"given, order {order}" in {row.precision for row in report.ledger}


def test_wrong_third_derivative_is_found_at_order_three_alone() -> None:
    x = torch.linspace(0.2, 1.3, 4, dtype=torch.float64)
    wrong = sine_whose_third_derivative_is(1.1)
    assert gradvet.check(wrong, x, order=2, seed=1).passed
    (finding,) = gradvet.check(wrong, x, order=4, seed=1).failures
    assert (finding.check, finding.facts["order"]) == ("higher-order", 3)
    assert finding.headline.startswith("the derivative of order 3 disagrees with finite differences")
    assert "The ratio is 1.1 everywhere" in finding.advice


def test_higher_orders_are_left_out_where_the_second_derivative_is_wrong() -> None:
    wrong = with_vjp(torch.sin, lambda dy, x: dy * x.detach().cos())
    report = gradvet.check(wrong, torch.linspace(0.2, 1.3, 4, dtype=torch.float64), order=3, seed=1)
    assert "reverse-over-reverse" in {finding.check for finding in report.failures}
    assert [finding.verdict for finding in report.findings if finding.check == "higher-order"] == [Verdict.SKIPPED]


def test_notes_about_second_derivatives_say_so() -> None:
    notes = gradvet.check(lambda x: 3.0 * x, torch.ones(3, dtype=torch.float64), order=2, seed=1).notes
    assert notes == ("second order: no output changes with input 0 by more than roundoff, and its gradient is zero",)
