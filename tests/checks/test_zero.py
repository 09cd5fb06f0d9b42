"""The zero cotangent, as findings."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from gradvet import gradcheck
from gradvet.checks import zero_cotangent
from gradvet.core.context import Context
from gradvet.core.results import Finding, Verdict
from gradvet.core.runner import Check
from gradvet.frontends.torch.problem import TorchProblem
from gradvet.options import Options
from tests.core.planted import numbers

BOTH = pytest.mark.parametrize("check", [zero_cotangent])


class Additive(torch.autograd.Function):
    """x · 2, whose gradient has a constant added to it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, amount: float) -> Tensor:
        ctx.amount = amount
        return x * 2.0

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor, None]:
        return v * 2.0 + ctx.amount, None


class Normalised(torch.autograd.Function):
    """x · 2, whose derivative scales its cotangent to one and back: 0/0 where it is zero."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2.0

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> Tensor:
        largest = v.abs().max()
        return v / largest * 2.0 * largest


def found(function: Any, *, masked: bool = False, check: Check = zero_cotangent) -> list[Finding]:
    problem = TorchProblem(function, [numbers((4,), 0).requires_grad_()], seed=0)
    return list(check(Context(problem, Options(seed=0, masked=masked))))


@BOTH
def test_derivative_that_is_proportional_to_its_cotangent_passes(check: Check) -> None:
    for function in (torch.sin, lambda x: (x.sin(), x.sum()), lambda x: x[:1] * 0.0):
        assert found(function, check=check) == [
            Finding("zero cotangent", Verdict.PASS, "a zero cotangent gives a zero gradient")
        ]


@BOTH
def test_smallest_constant_in_a_derivative_fails(check: Check) -> None:
    for amount in (1e-2, 1e-12):
        (finding,) = found(lambda x, amount=amount: Additive.apply(x, amount), check=check)
        assert (finding.check, finding.verdict) == ("zero cotangent", Verdict.FAIL)
        assert finding.facts == {"largest": amount}
        assert finding.headline == f"a zero cotangent gives a gradient of size {amount:.3g}"


def test_masked_semantics_allow_for_roundoff() -> None:
    assert [finding.verdict for finding in found(lambda x: Additive.apply(x, 1e-9), masked=True)] == [Verdict.PASS]
    assert [finding.verdict for finding in found(lambda x: Additive.apply(x, 1e-7), masked=True)] == [Verdict.FAIL]


def test_derivative_that_is_not_a_number_at_a_zero_cotangent_fails() -> None:
    (finding,) = found(Normalised.apply)
    assert finding.verdict is Verdict.FAIL


@pytest.mark.filterwarnings("ignore:Backwards compatibility")
@pytest.mark.parametrize("check_undefined_grad", [True, False])
def test_derivative_that_is_not_a_number_at_zero_is_found_by_one_check_or_another(check_undefined_grad: bool) -> None:
    x = numbers((4,), 0).requires_grad_()
    assert not gradcheck(Normalised.apply, x, check_undefined_grad=check_undefined_grad, raise_exception=False)


@BOTH
def test_function_without_derivative_is_not_asked(check: Check) -> None:
    assert found(torch.Tensor.detach, check=check) == []
