"""Reverse and forward mode against differences, as findings."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor

import gradvet
from gradvet.checks.jacobian import (
    BUILTIN_RULES,
    KINK,
    MISS_RATIO,
    forward,
    reverse,
)
from gradvet.core.probe_plans import Plan, miss_probability
from gradvet.core.results import Verdict
from gradvet.core.runner import CheckFunction
from tests.core.contexts import context_of, point
from tests.functions import with_derivative, with_rules, with_vjp


@pytest.mark.parametrize("check", [reverse, forward])
def test_nothing_to_compare_with_error_bars_is_inconclusive(check: CheckFunction) -> None:
    nothing, some = point(), point(1.0, 2.0)
    for context in (context_of(torch.sin, nothing), context_of(lambda x: x[:0], some)):
        (finding,) = check(context)
        assert (finding.verdict, finding.headline) == (Verdict.INCONCLUSIVE, "there is no entry to compare")
        assert list(context.record.rows()) == []


wrong = with_derivative(torch.sin, lambda x: 1.1 * torch.cos(x))


@pytest.mark.parametrize(("check", "mode"), [(reverse, "reverse"), (forward, "forward")])
def test_headline_counts_entries_where_there_are_several(check: object, mode: str) -> None:
    (one,) = check(context_of(wrong, point(1.0)))  # type: ignore[operator]
    start = f"{mode} mode disagrees with finite differences"
    assert re.fullmatch(rf"{start}; the largest error is [\d.]+ \(10 % of the entry\)", one.headline)
    (several,) = check(context_of(wrong, point(1.0, 2.0)))  # type: ignore[operator]
    assert several.headline.startswith(f"{start} in all 2 nonzero entries that were compared; the largest")
    assert several.advice


@pytest.mark.parametrize(("outputs", "cotangents"), [(1, None), (2, 2), (3, 2)])
def test_miss_probability_is_that_of_the_probes(outputs: int, cotangents: int | None) -> None:
    (finding,) = reverse(context_of(torch.sin, point(*range(1, outputs + 1))))
    assert finding.verdict is Verdict.PASS
    assert finding.facts["miss"] == miss_probability(MISS_RATIO, Plan(2, cotangents), spread=1.0)


def test_mismatch_has_an_allowance_of_one_and_a_half_error_bars() -> None:
    (finding,) = reverse(context_of(wrong, point(1.0)))
    (mismatch,) = finding.mismatches
    assert mismatch.derivative == pytest.approx(1.1 * mismatch.numerical)
    assert mismatch.allowed == pytest.approx(1.5 * mismatch.error)


swapped = with_vjp(lambda a, b: a * b.sin(), lambda dy, a, b: (dy * a * b.cos(), dy * b.sin()))


class HalfWrong(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return a * b.sin()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        return dy * b.sin(), 0.5 * dy * a * b.cos()


def test_swapped_gradients_are_named() -> None:
    inputs = point(0.3, -1.2, 2.0), point(1.0, 0.5, -0.7)
    (failure,) = gradvet.check(swapped, inputs, checks=("reverse",)).failures
    assert failure.advice.startswith("The gradients of input 0 and input 1 are swapped")
    (failure,) = gradvet.check(HalfWrong, inputs, checks=("reverse",)).failures
    assert "swapped" not in failure.advice


wrong_at_kink = with_vjp(torch.abs, lambda dy, x: dy * torch.where(x == 0, 2.0, x.sign()))


def test_wrong_value_at_a_kink_is_not_compared_with_a_slope() -> None:
    (failure,) = gradvet.check(wrong_at_kink, point(1.0, 0.0, -2.0), checks=("reverse",)).failures
    assert failure.advice == KINK


def test_function_without_rules_of_its_own_gets_advice_about_detach() -> None:
    (failure,) = gradvet.check(lambda x: x.sin() * x.detach(), point(0.5, 1.0), checks=("reverse",)).failures
    assert failure.advice.endswith(BUILTIN_RULES)
    (failure,) = gradvet.check(HalfWrong, (point(0.5, 1.0), point(2.0, 0.1)), checks=("reverse",)).failures
    assert BUILTIN_RULES not in failure.advice


def test_worst_entries_come_first() -> None:
    (failure,) = gradvet.check(HalfWrong, (point(0.3, 9.0, 2.0), point(1.0, 0.5, -0.7)), checks=("reverse",)).failures
    sizes = [abs(entry.derivative - entry.numerical) for entry in failure.mismatches]
    assert sizes == sorted(sizes, reverse=True)
    assert str(failure.mismatches[0].input) == "input 1 [1]"


def test_code_of_a_failure_is_the_derivative_that_is_wrong() -> None:
    report = gradvet.check(lambda a, b: HalfWrong.apply(a.exp(), b), (point(0.5, 1.0), point(2.0, 0.1)))
    assert report.source is not None
    assert "0.5 * dy" in report.source.code
    layer = torch.nn.Linear(2, 3).double()
    layer.register_full_backward_hook(lambda module, given, found: (2.0 * given[0],))
    assert gradvet.check(layer, point(0.5, 1.0), blame=False).source is None
    blamed = gradvet.check(layer, point(0.5, 1.0)).source
    assert blamed is not None
    assert "register_full_backward_hook" in blamed.code


def test_roundoff_inside_is_named_as_the_reason() -> None:
    report = gradvet.check(lambda x: 1 + torch.erf(x), torch.tensor([-5.5], dtype=torch.float64), seed=1)
    (finding,) = (finding for finding in report.findings if finding.check == "reverse")
    assert finding.verdict is Verdict.INCONCLUSIVE
    assert "roundoff of larger numbers inside" in finding.headline
    assert "kinks" not in finding.advice


def test_entropy_at_zero_has_a_vertical_tangent() -> None:
    """Its slope grows by the same amount with every halved step. Torch's derivative there is infinite or NaN."""
    for entropy in (torch.special.entr, lambda p: -torch.special.xlogy(p, p)):
        report = gradvet.check(entropy, torch.tensor([0.0, 0.1, 2.0], dtype=torch.float64), seed=1)
        assert report.verdict is Verdict.INCONCLUSIVE, report


def test_tangent_that_is_not_finite_fails_and_is_named_by_its_output() -> None:
    def tangent(factor: float) -> Any:
        factors = torch.tensor([1.0, factor, 1.0], dtype=torch.float64)
        return with_rules(lambda x: x**2, lambda v, x: 2.0 * x * v, lambda u, x: 2.0 * x * u * factors)

    (right,), (found,) = (forward(context_of(tangent(factor), point(1.0, 2.0, 3.0))) for factor in (1.0, torch.nan))
    assert (right.verdict, found.verdict) == (Verdict.PASS, Verdict.FAIL)
    assert "is not finite at output [1], where the function has a slope" in found.headline
