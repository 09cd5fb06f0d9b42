"""The zero cotangent, as findings."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradvet.checks import zero_cotangent
from gradvet.core.experiment import Experiment
from gradvet.core.results import Finding, Verdict
from gradvet.frontends.torch.problem import TorchProblem
from gradvet.options import Options
from tests.core.planted import numbers


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


def found(function: Any, *, masked: bool = False) -> list[Finding]:
    problem = TorchProblem(function, [numbers((4,), 0).requires_grad_()], seed=0)
    return list(zero_cotangent(Experiment(problem, Options(seed=0, masked=masked))))


def test_derivative_that_is_proportional_to_its_cotangent_passes() -> None:
    for function in (torch.sin, lambda x: (x.sin(), x.sum()), lambda x: x[:1] * 0.0):
        assert found(function) == [Finding("zero cotangent", Verdict.PASS, "a zero cotangent gives a zero gradient")]


def test_smallest_constant_in_a_derivative_fails() -> None:
    for amount in (1e-2, 1e-12):
        (finding,) = found(lambda x, amount=amount: Additive.apply(x, amount))
        assert (finding.check, finding.verdict) == ("zero cotangent", Verdict.FAIL)
        assert finding.facts == {"largest": amount}
        assert finding.headline == f"a zero cotangent gives a gradient of size {amount:.3g}"


def test_masked_semantics_allow_for_roundoff() -> None:
    assert [finding.verdict for finding in found(lambda x: Additive.apply(x, 1e-9), masked=True)] == [Verdict.PASS]
    assert [finding.verdict for finding in found(lambda x: Additive.apply(x, 1e-7), masked=True)] == [Verdict.FAIL]


def test_derivative_that_is_not_a_number_at_a_zero_cotangent_fails() -> None:
    (finding,) = found(Normalised.apply)
    assert finding.verdict is Verdict.FAIL


def test_function_without_derivative_is_not_asked() -> None:
    assert found(torch.Tensor.detach) == []
