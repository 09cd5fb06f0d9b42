"""Derivatives in low precision against those of the wider version, as findings."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import gradvet
from gradvet.checks.precision import OVERFLOWS, precision_against
from gradvet.core import thresholds
from gradvet.core.context import Context
from gradvet.core.gradient_match import explained_factor
from gradvet.core.ledger import FLOAT64
from gradvet.core.results import Finding, Verdict
from gradvet.reports.ledger_table import ledger_lines
from tests.core.contexts import Elementwise, context_of
from tests.functions import with_derivative, with_rules, with_vjp

LOW = (torch.float32, torch.bfloat16, torch.float16)
LOW_PRECISIONS = pytest.mark.parametrize("dtype", LOW, ids=str)
SIZES = pytest.mark.parametrize("shape", [(3,), (8, 16)], ids=["few", "many"])
SEEDS = pytest.mark.parametrize("seed", range(1))

Shape = tuple[int, ...]


def pair(function: Elementwise, dtype: torch.dtype, shape: Shape = (3,), seed: int = 0) -> tuple[Context, Context]:
    """The function in low precision, and its wider version at the same numbers."""
    given = torch.linspace(0.3, 1.1, math.prod(shape)).reshape(shape).to(dtype)
    low, high = (context_of(function, x.requires_grad_(), seed=seed) for x in (given, given.double()))
    return low, replace(high, precision=FLOAT64)


def compared(function: Elementwise, dtype: torch.dtype, shape: Shape = (3,), seed: int = 0) -> tuple[Finding, Finding]:
    """The findings about reverse and forward mode."""
    low, high = pair(function, dtype, shape, seed)
    reverse, forward = precision_against(high)(low)
    assert (reverse.facts["mode"], forward.facts["mode"]) == ("reverse", "forward")
    assert reverse.facts["epsilon"] == forward.facts["epsilon"] == torch.finfo(dtype).eps
    return reverse, forward


def changed_below_double(
    change: Elementwise, f: Elementwise = torch.sin, slope: Elementwise = torch.cos
) -> Elementwise:
    """`f` with the derivative `slope` in float64, and with `change(slope)` below it."""
    return with_derivative(f, lambda x: slope(x) if x.dtype is torch.float64 else change(slope(x)))


def scaled(factor: float) -> Elementwise:
    return changed_below_double(lambda slope: factor * slope)


def without_last(slope: Tensor) -> Tensor:
    """The derivative without its last row."""
    return torch.cat([slope[:-1], 0.0 * slope[-1:]])


def last_scaled(factor: float) -> Elementwise:
    return changed_below_double(lambda slope: torch.cat([slope[:-1], factor * slope[-1:]]))


@SEEDS
@SIZES
@LOW_PRECISIONS
@pytest.mark.parametrize(
    "function", [torch.sin, torch.exp, scaled(1.0), lambda x: torch.sin(x) - torch.sin(x.detach())]
)
def test_right_derivative_passes(function: Elementwise, dtype: torch.dtype, shape: Shape, seed: int) -> None:
    for finding in compared(function, dtype, shape, seed):
        assert finding.verdict is Verdict.PASS
        assert finding.facts["ratio"] <= thresholds.PRECISION_DOUBT
        assert finding.mismatches == ()


@SEEDS
@SIZES
@LOW_PRECISIONS
def test_factor_of_nine_tenths_fails_by_the_common_scale(dtype: torch.dtype, shape: Shape, seed: int) -> None:
    for finding in compared(scaled(0.9), dtype, shape, seed):
        assert finding.verdict is Verdict.FAIL
        assert finding.facts["scale"] == pytest.approx(-0.1, abs=2.0 * torch.finfo(dtype).eps)
        assert "times the one in float64" in finding.headline


@SEEDS
@SIZES
@pytest.mark.parametrize("factor", [0.97, 1.03])
def test_factor_of_a_few_roundoffs_in_bfloat16_never_passes(factor: float, shape: Shape, seed: int) -> None:
    for finding in compared(scaled(factor), torch.bfloat16, shape, seed):
        assert finding.verdict is not Verdict.PASS
        assert abs(finding.facts["scale"]) > explained_factor(torch.finfo(torch.bfloat16).eps)


@SEEDS
@pytest.mark.parametrize("factor", [0.99, 1.01, 0.97])
def test_factor_of_a_hundredth_in_float32_fails(factor: float, seed: int) -> None:
    assert [finding.verdict for finding in compared(scaled(factor), torch.float32, (3,), seed)] == [Verdict.FAIL] * 2


@SEEDS
@LOW_PRECISIONS
def test_lost_row_fails_and_an_entry_of_it_is_named(dtype: torch.dtype, seed: int) -> None:
    for finding in compared(changed_below_double(without_last), dtype, (8, 16), seed):
        assert finding.verdict is Verdict.FAIL
        (mismatch,) = finding.mismatches
        assert mismatch.derivative == 0.0
        leaf = "input 0" if finding.facts["mode"] == "reverse" else "output"
        assert str(mismatch.input).startswith(f"{leaf} [7, ")


@SEEDS
@pytest.mark.parametrize(
    ("factor", "verdict"),
    [
        (1.0, Verdict.PASS),
        (1.0 + 1e-4, Verdict.PASS),
        (1.0 - 2e-3, Verdict.PASS),
        (1.01, Verdict.FAIL),
        (0.0, Verdict.FAIL),
        (math.nan, Verdict.FAIL),
    ],
)
def test_entry_agrees_up_to_a_quarter_of_the_resolution_asked_for(factor: float, verdict: Verdict, seed: int) -> None:
    for finding in compared(last_scaled(factor), torch.float32, (3,), seed):
        assert finding.verdict is verdict
        assert (finding.facts["ratio"] > thresholds.PRECISION_DOUBT) is (verdict is Verdict.FAIL)
        if verdict is Verdict.FAIL:
            assert str(finding.mismatches[0].input).endswith(" [2]")


def test_gradient_that_overflows_as_it_must_is_not_wrong_and_not_compared() -> None:
    def steep(x: Tensor) -> Tensor:
        return torch.full_like(x, 1e300 if x.dtype is torch.float64 else math.inf)

    low, high = pair(with_derivative(torch.sin, steep), torch.float32)
    findings = list(precision_against(high)(low))
    assert [finding.verdict for finding in findings] == [Verdict.PASS] * 2
    assert [(row.compared, row.is_complete) for row in low.record.rows()] == [(0, False)] * 2


def test_gradient_that_is_infinite_in_both_precisions_is_not_wrong_and_not_compared() -> None:
    low, high = pair(with_derivative(torch.sin, lambda x: torch.full_like(x, math.inf)), torch.float32)
    findings = list(precision_against(high)(low))
    assert [finding.verdict for finding in findings] == [Verdict.PASS] * 2
    assert [(row.compared, row.is_complete) for row in low.record.rows()] == [(0, False)] * 2


def test_infinite_gradient_where_the_wider_version_is_small_fails() -> None:
    for finding in compared(last_scaled(math.inf), torch.float32):
        assert finding.verdict is Verdict.FAIL


def test_values_that_overflow_are_inconclusive() -> None:
    low, high = pair(lambda x: torch.exp(200.0 * x), torch.float32)
    (finding,) = precision_against(high)(low)
    assert (finding.verdict, finding.headline) == (Verdict.INCONCLUSIVE, OVERFLOWS)


def test_function_of_no_numbers_is_inconclusive() -> None:
    low, high = pair(torch.sin, torch.float32, (0,))
    (finding,) = precision_against(high)(low)
    assert finding.verdict is Verdict.INCONCLUSIVE


@SEEDS
@pytest.mark.parametrize("factor", [0.9, 1.1, 0.0, math.nan])
def test_wrong_jvp_in_float32_fails_beside_a_right_vjp(factor: float, seed: int) -> None:
    def jvp(u: Tensor, x: Tensor) -> Tensor:
        return u * torch.cos(x) * (1.0 if x.dtype is torch.float64 else factor)

    function = with_rules(torch.sin, lambda v, x: v * torch.cos(x), jvp)
    reverse, forward = compared(function, torch.float32, (8, 16), seed)
    assert (reverse.verdict, forward.verdict) == (Verdict.PASS, Verdict.FAIL)
    assert "tangent" in forward.headline


def test_gradient_that_responds_to_the_last_digit_of_its_inputs_may_be_off_by_its_response() -> None:
    def fast(x: Tensor) -> Tensor:
        return torch.sin(1000.0 * x)

    def slope(x: Tensor) -> Tensor:
        return 1000.0 * torch.cos(1000.0 * x)

    def reverse(error: float) -> Finding:
        return compared(changed_below_double(lambda found: found + error, fast, slope), torch.float32)[0]

    assert reverse(0.05).verdict is Verdict.PASS
    assert reverse(100.0).verdict is Verdict.FAIL


@LOW_PRECISIONS
def test_agreement_is_entered_in_the_ledger_of_the_given_precision(dtype: torch.dtype) -> None:
    low, high = pair(torch.sin, dtype, (8, 16))
    list(precision_against(high)(low))
    rows = list(low.record.rows())
    assert [(row.input, row.mode, row.precision, row.compared) for row in rows] == [
        ("input 0", mode, "given", 128) for mode in ("reverse", "forward")
    ]
    assert all(row.is_complete and row.asked == low.asked_resolution for row in rows)


@SEEDS
def test_batch_norm_of_two_rows_does_not_fail_in_float32(seed: int) -> None:
    x = torch.tensor([[1.078, 12.1586, 10.4401], [2.3188, 12.2538, 10.5248]], requires_grad=True)
    report = gradvet.check(lambda x: F.batch_norm(x, None, None, training=True), x, seed=seed, points=None)
    assert not report.failures, report


too_steep_in_bfloat16 = with_vjp(torch.clone, lambda v, x: 1.1 * v if v.dtype is torch.bfloat16 else v.clone())
"""The identity, whose gradient is 1.1 times too large in bfloat16 only."""


def divergence(x: Tensor, y: Tensor) -> Tensor:
    """Small differences of large terms: its roundoff in bfloat16 is a tenth of its gradient."""
    y = F.silu(y) ** 3 / 3
    return (x.softmax(-1) * (x.log_softmax(-1) - y.log_softmax(-1))).sum()


@SEEDS
def test_roundoff_that_operators_enlarge_hides_no_error(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, y = (torch.randn(64, generator=generator).bfloat16().requires_grad_() for _ in range(2))
    report = gradvet.check(divergence, (x, y), seed=seed, points=None)
    assert report.verdict is Verdict.PASS, report
    wrong = gradvet.check(lambda x, y: divergence(x, too_steep_in_bfloat16(y)), (x, y), seed=seed, points=None)
    assert wrong.verdict is not Verdict.PASS, wrong


def verdicts_in_the_ledger(function: Elementwise, *inputs: Tensor) -> dict[tuple[str, str, str], str]:
    report = gradvet.check(function, inputs, seed=1, points=None)
    assert [finding.check for finding in report.failures] == ["precision"]
    return {(line.input, line.precision, line.mode): line.verdict for line in ledger_lines(report)}


def test_ledger_says_wrong_for_the_gradient_that_is_wrong_in_low_precision() -> None:
    def vjp(v: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return v * y * (1.0 if v.dtype is torch.float64 else 0.5), v * x

    product = with_vjp(torch.mul, vjp)
    verdicts = verdicts_in_the_ledger(product, torch.randn(6), torch.randn(6))
    assert verdicts == {
        ("input 0", "given", "reverse"): "wrong",
        ("input 1", "given", "reverse"): "right",
        ("input 0", "float64", "reverse"): "right",
        ("input 1", "float64", "reverse"): "right",
    }


def test_ledger_says_right_for_no_input_of_a_tangent_that_is_wrong_in_low_precision() -> None:
    def jvp(u: Tensor, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return u * y * (1.0 if x.dtype is torch.float64 else 0.5) + w * x

    product = with_rules(torch.mul, lambda v, x, y: (v * y, v * x), jvp)
    report = gradvet.check(product, (torch.randn(6), torch.randn(6)), seed=1, checks=["forward", "precision"])
    lines = [line for line in ledger_lines(report) if line.precision == "given" and line.mode == "forward"]
    assert len(lines) == 2
    assert all(line.verdict != "right" for line in lines)


@LOW_PRECISIONS
def test_factor_of_one_half_suggests_a_branch_or_a_hook_and_a_lost_row_does_not(dtype: torch.dtype) -> None:
    for function, is_suggested in ((scaled(0.5), True), (changed_below_double(without_last), False)):
        for finding in compared(function, dtype, (8, 16)):
            assert finding.verdict is Verdict.FAIL
            assert ("a branch on the dtype" in finding.advice) is is_suggested


def test_roundoff_of_one_row_is_no_common_factor() -> None:
    """The first divisor loses 4 %, and its row has most of the gradient; that of the other rows is exact."""

    def divided(weights: Tensor) -> Tensor:
        divisors = torch.tensor([0.15, 1.0, 2.0, 1.5, 3.0, 1.0]).to(weights)
        return weights / ((divisors + 16) - 16)[:, None]

    weights = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)).half()
    kernel = with_vjp(divided, lambda dy, w: divided(dy))
    assert gradvet.check(kernel, weights, seed=0).verdict is Verdict.INCONCLUSIVE
    doubled = with_vjp(divided, lambda dy, w: divided((2 if dy.dtype is torch.float16 else 1) * dy))
    assert gradvet.check(doubled, weights, seed=0).verdict is Verdict.FAIL
