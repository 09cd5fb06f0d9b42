"""Half precision without a reference: right derivatives pass, wrong ones never do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gradvet.core.modes import REVERSE
from gradvet.core.results import Verdict
from gradvet.core.slope_test import SlopeTest
from tests.core.contexts import context_of
from tests.functions import with_vjp

HALF = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)

Spoil = Callable[[Tensor], Tensor]


def swish(x: Tensor) -> Tensor:
    return (x.float() * torch.sigmoid(x.float())).to(x.dtype)


def swish_with(spoil: Spoil) -> Callable[[Tensor], Tensor]:
    def vjp(v: Tensor, x: Tensor) -> Tensor:
        s = torch.sigmoid(x.float())
        return spoil(v.float() * s * (1 + x.float() * (1 - s))).to(x.dtype)

    return with_vjp(swish, vjp)


def inputs(dtype: torch.dtype, size: int = 120) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(size, generator=generator).to(dtype).requires_grad_()


def one_entry(factor: float) -> Spoil:
    def spoil(gradient: Tensor) -> Tensor:
        factors = torch.ones_like(gradient)
        factors[int(inputs(torch.bfloat16).abs().argmax())] = factor
        return factors * gradient

    return spoil


@HALF
def test_right_derivative_passes_with_the_resolution_asked_for(dtype: torch.dtype) -> None:
    context = context_of(swish_with(lambda g: g), inputs(dtype))
    assert SlopeTest(context, REVERSE).run().verdict is Verdict.PASS
    (row,) = context.record.ledger.rows()
    assert row.is_complete


@HALF
@pytest.mark.parametrize("factor", [-1.0, 0.0, 0.5, 0.8, 1.5])
def test_wrong_factor_fails(dtype: torch.dtype, factor: float) -> None:
    context = context_of(swish_with(lambda g: factor * g), inputs(dtype))
    assert SlopeTest(context, REVERSE).run().verdict is Verdict.FAIL


@HALF
@pytest.mark.parametrize(
    "spoil", [lambda g: 1.05 * g, one_entry(0.0), one_entry(2.0)], ids=["scale", "lost", "doubled"]
)
def test_small_or_single_error_never_passes(dtype: torch.dtype, spoil: Spoil) -> None:
    context = context_of(swish_with(spoil), inputs(dtype))
    assert SlopeTest(context, REVERSE).run().verdict is not Verdict.PASS


@HALF
def test_zeros_at_a_kink_do_not_fail(dtype: torch.dtype) -> None:
    with torch.no_grad():
        x = inputs(dtype) * (torch.arange(120) % 3 != 0)
    assert SlopeTest(context_of(torch.relu, x.requires_grad_()), REVERSE).run().verdict is Verdict.PASS


@HALF
def test_median_of_ties_is_not_accused(dtype: torch.dtype) -> None:
    with torch.no_grad():
        x = (2.0 * inputs(dtype, 42).reshape(6, 7)).round() / 2.0
    context = context_of(lambda x: x.median(-1).values, x.requires_grad_())
    assert SlopeTest(context, REVERSE).run().verdict is not Verdict.FAIL


@HALF
def test_saturated_output_does_not_fail(dtype: torch.dtype) -> None:
    x = torch.tensor([8.25, -9.5, 7.0], dtype=dtype, requires_grad=True)
    context = context_of(lambda x: torch.erf(x.float()).to(x.dtype), x)
    assert SlopeTest(context, REVERSE).run().verdict is not Verdict.FAIL


@HALF
def test_gradient_lost_behind_an_offset_does_not_pass(dtype: torch.dtype) -> None:
    lost = with_vjp(lambda x: 4000.0 + x, lambda v, x: torch.zeros_like(x))
    context = context_of(lost, inputs(dtype, 12))
    assert SlopeTest(context, REVERSE).run().verdict is not Verdict.PASS


@HALF
def test_gradient_of_roundoff_does_not_fail(dtype: torch.dtype) -> None:
    def cancelled(x: Tensor) -> Tensor:
        return (x.float().softmax(-1) @ torch.ones(7)).to(x.dtype)

    def vjp(v: Tensor, x: Tensor) -> Tensor:
        return (v * torch.sin(1e4 * x.float())).to(x.dtype) * torch.finfo(x.dtype).eps

    context = context_of(with_vjp(cancelled, vjp), inputs(dtype, 7))
    assert SlopeTest(context, REVERSE).run().verdict is not Verdict.FAIL
