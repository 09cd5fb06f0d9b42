"""The gradient in low precision against the one in double precision, as findings."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from gradvet.checks.precision import precision_against
from gradvet.core.results import Finding, Verdict
from tests.core.trials import Elementwise, point, trial_of, written

NUMBERS = (0.3, 0.7, 1.1)


def compared(low: Elementwise, function: Elementwise = torch.sin, derivative: Elementwise = torch.cos) -> Finding:
    """Where the gradient in float32 has `low` as a factor of its last entry."""

    def gradient(x: Tensor) -> Tensor:
        right = derivative(x)
        return torch.cat([right[:-1], low(right[-1:])]) if x.dtype is torch.float32 else right

    single, double = (
        trial_of(written(function, gradient), point(*NUMBERS, dtype=dtype)) for dtype in (torch.float32, torch.float64)
    )
    (finding,) = precision_against(double)(single)
    return finding


@pytest.mark.parametrize(
    ("factor", "verdict"),
    [
        (1.0, Verdict.PASS),
        (1.0 + 2e-7, Verdict.PASS),
        (1.0 + 1e-4, Verdict.INCONCLUSIVE),
        (1.0 - 1e-4, Verdict.INCONCLUSIVE),
        (1.01, Verdict.FAIL),
        (0.0, Verdict.FAIL),
        (math.nan, Verdict.FAIL),
    ],
)
def test_gradient_is_wrong_in_low_precision_if_no_roundoff_explains_it(factor: float, verdict: Verdict) -> None:
    finding = compared(lambda gradient: factor * gradient)
    assert finding.verdict is verdict
    assert (finding.facts["ratio"] > 1.0) is (verdict is not Verdict.PASS)
    if verdict is Verdict.FAIL:
        assert str(finding.mismatches[0].input) == "input 0 [2]"


def test_gradient_that_overflows_as_it_must_is_not_wrong() -> None:
    def steep(x: Tensor) -> Tensor:
        return torch.full_like(x, 1e300) if x.dtype is torch.float64 else torch.full_like(x, math.inf)

    assert compared(lambda gradient: gradient, derivative=steep).verdict is Verdict.PASS


def test_gradient_that_is_infinite_in_both_precisions_is_not_wrong() -> None:
    finding = compared(lambda gradient: gradient, derivative=lambda x: torch.full_like(x, math.inf))
    assert finding.verdict is Verdict.PASS


@pytest.mark.parametrize(("roundoffs", "verdict"), [(2.0, Verdict.PASS), (8.0, Verdict.INCONCLUSIVE)])
@pytest.mark.parametrize("slope", [3e-3, 3.0, 3e3])
def test_gradient_that_responds_to_nothing_may_be_off_by_a_few_roundoffs_of_itself(
    slope: float, roundoffs: float, verdict: Verdict
) -> None:
    def vanishing(x: Tensor) -> Tensor:
        return slope * (x - torch.tensor(NUMBERS, dtype=x.dtype))

    def constant(x: Tensor) -> Tensor:
        return torch.full_like(x, slope)

    factor = 1.0 + roundoffs * torch.finfo(torch.float32).eps
    assert compared(lambda gradient: factor * gradient, vanishing, constant).verdict is verdict


def test_values_that_overflow_leave_doubt() -> None:
    finding = compared(lambda gradient: gradient, function=lambda x: torch.exp(200.0 * x))
    assert finding.verdict is Verdict.INCONCLUSIVE
    assert "overflow" in finding.headline


def test_gradient_that_responds_to_the_last_digit_of_its_inputs_may_be_off_by_its_response() -> None:
    def fast(x: Tensor) -> Tensor:
        return torch.sin(1000.0 * x)

    def slope(x: Tensor) -> Tensor:
        return 1000.0 * torch.cos(1000.0 * x)

    assert compared(lambda gradient: gradient + 0.05, fast, slope).verdict is Verdict.PASS
    assert compared(lambda gradient: gradient + 100.0, fast, slope).verdict is Verdict.FAIL
