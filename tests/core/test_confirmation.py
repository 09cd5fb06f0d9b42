"""At generated points, a derivative is called wrong only where the slopes around allow no other interpretation."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import gradvet
from gradvet.core import slope_test
from gradvet.core.confirmation import is_confirmed
from gradvet.core.context import Context
from gradvet.core.decision import Decision, Entry, Reason
from gradvet.core.modes import REVERSE
from gradvet.core.results import Verdict
from tests.core.contexts import Elementwise, context_of, point
from tests.functions import with_derivative, with_gradients_changed, with_rules, with_vjp


def failure(context: Context, reason: Reason, row: int = 0, column: int = 0) -> Decision:
    problem = context.problem
    output, source = problem.codomain.locate(max(row, 0)), problem.domain.locate(column)
    entry = Entry(output, source, math.nan, math.nan, math.nan, Verdict.FAIL, reason, row, column)
    return Decision(Verdict.FAIL, reason, entry)


def confirmed(function: Elementwise, slope: float, reason: Reason, at: float = 0.0) -> bool:
    context = context_of(with_derivative(function, lambda x: torch.full_like(x, slope)), point(at))
    return is_confirmed(context, failure(context, reason))


def steep_kink(x: Tensor) -> Tensor:
    """Slopes 999 and 1001, and a value of one."""
    return 1.0 + 1000.0 * x + x.abs()


@pytest.mark.parametrize(("slope", "beyond"), [(1001.5, False), (998.5, False), (1005.0, True), (995.0, True)])
def test_derivative_outside_a_kink_is_confirmed_from_a_thousandth_of_its_slopes_on(slope: float, beyond: bool) -> None:
    assert confirmed(steep_kink, slope, Reason.OUTSIDE) is beyond


def rounded_kink(x: Tensor) -> Tensor:
    """A kink that is smooth on a scale of 1e-10: around zero its slope is anything between -1 and 1."""
    return 1.0 + torch.sqrt(x**2 + 1e-20)


def test_failure_is_not_confirmed_where_slopes_are_more_than_two_numbers() -> None:
    assert not confirmed(rounded_kink, 2.0, Reason.OUTSIDE)
    assert confirmed(lambda x: 1.0 + x.abs(), 2.0, Reason.OUTSIDE)


@pytest.mark.parametrize(("slope", "wrong"), [(1.0, False), (1.0005, False), (1.01, True), (0.0, True), (-1.0, True)])
def test_failure_at_a_smooth_function_is_confirmed_if_it_is_material(slope: float, wrong: bool) -> None:
    assert confirmed(lambda x: 1.0 + torch.sin(x), slope, Reason.DISAGREES) is wrong


@pytest.mark.parametrize("unit", [1e-8, 1.0, 1e8])
def test_confirmation_does_not_depend_on_the_unit_of_the_output(unit: float) -> None:
    assert confirmed(lambda x: unit * (1.0 + torch.sin(x)), 1.01 * unit, Reason.DISAGREES)
    assert not confirmed(lambda x: unit * (1.0 + torch.sin(x)), 1.0005 * unit, Reason.DISAGREES)


def test_derivative_between_the_slopes_of_a_kink_is_never_confirmed_as_wrong() -> None:
    for slope in (-1.0, 0.0, 0.5, 1.0):
        assert not confirmed(lambda x: 1.0 + x.abs(), slope, Reason.DISAGREES)
        assert not confirmed(lambda x: 1.0 + x.abs(), slope, Reason.OUTSIDE)


def test_failure_without_a_row_or_an_entry_is_never_confirmed() -> None:
    context = context_of(with_derivative(torch.sin, torch.zeros_like), point(0.5))
    assert is_confirmed(context, failure(context, Reason.DISAGREES))
    assert not is_confirmed(context, failure(context, Reason.DISAGREES, row=-1))
    assert not is_confirmed(context, failure(context, Reason.OUTSIDE, row=-1))
    assert not is_confirmed(context, Decision(Verdict.FAIL, Reason.DISAGREES))


def test_nonfinite_derivative_is_confirmed_as_wrong_where_slopes_converge() -> None:
    def nowhere(x: Tensor) -> Tensor:
        return torch.full_like(x, math.nan)

    smooth = context_of(with_derivative(lambda x: 1.0 + torch.sin(x), nowhere), point(0.0))
    bent = context_of(with_derivative(lambda x: 1.0 + x.abs(), nowhere), point(0.0))
    steep = context_of(with_derivative(lambda x: 1.0 + x.abs().sqrt(), nowhere), point(0.0))
    assert is_confirmed(smooth, failure(smooth, Reason.NOT_FINITE, row=-1))
    assert not is_confirmed(smooth, failure(smooth, Reason.NOT_FINITE, row=0))
    assert not is_confirmed(bent, failure(bent, Reason.NOT_FINITE, row=-1))
    assert not is_confirmed(steep, failure(steep, Reason.NOT_FINITE, row=-1))


def test_error_of_one_tied_element_is_confirmed_only_if_all_of_them_together_are_wrong() -> None:
    def largest(x: Tensor) -> Tensor:
        return 1.0 + x.max()

    def chosen(factor: float) -> Callable[[Tensor], Tensor]:
        """The maximum; all of the gradient goes to the first of those that are tied, `factor` times."""
        return with_vjp(largest, lambda v, x: v * torch.tensor([factor, 0.0], dtype=v.dtype))

    def found(factor: float) -> bool:
        context = context_of(chosen(factor), point(1.0, 1.0))
        return is_confirmed(context, failure(context, Reason.OUTSIDE, 0, 0))

    assert not found(1.0)
    assert found(2.0)


def test_product_of_extremes_of_ties_does_not_fail_and_a_doubled_one_does() -> None:
    def extremes(x: Tensor) -> Tensor:
        return x.max(-1).values * torch.atan(x.min(-1).values)

    doubled = with_gradients_changed(extremes, lambda gradients, _: [2.0 * gradients[0]])
    tied = point(-0.1, -0.1, -0.1)
    assert gradvet.check(extremes, tied, seed=1).verdict is not Verdict.FAIL
    assert gradvet.check(doubled, tied, seed=1).verdict is Verdict.FAIL


def test_very_certain_loss_does_not_fail() -> None:
    def loss(x: Tensor) -> Tensor:
        return torch.nn.functional.binary_cross_entropy_with_logits(x, torch.ones_like(x), reduction="none")

    lost = with_gradients_changed(loss, lambda gradients, _: [0.0 * gradients[0]])
    assert gradvet.check(loss, point(50.0, 60.0, 45.0), seed=1).verdict is not Verdict.FAIL
    assert gradvet.check(lost, point(5.0, 6.0, 4.5), seed=1).verdict is Verdict.FAIL


@pytest.mark.parametrize(("cut", "verdict"), [(False, Verdict.INCONCLUSIVE), (True, Verdict.FAIL)])
def test_derivative_that_differs_at_ties_alone_is_a_convention_of_the_framework(cut: bool, verdict: Verdict) -> None:
    """The median of multiples of one number is smooth; torch sorts three zeros in their order."""

    def sorted_multiples_of_zero(x: Tensor) -> Tensor:
        multiples = torch.sort(x[:1] * torch.tensor([1.0, 3.0, -2.0], dtype=x.dtype)).values[1:2]
        return multiples + x[1:].sum() + (0.5 * x[:1].detach() if cut else 0.0)

    context = context_of(sorted_multiples_of_zero, point(0.0, 0.0, 0.0, 0.7))
    decision, _ = slope_test.decide_slopes(context, REVERSE)
    assert decision.verdict is verdict


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_wrong_jvp_of_equal_inputs_fails(dtype: torch.dtype) -> None:
    """Reverse mode is right: forward mode is compared where no elements are equal by its own derivative."""
    halved = with_rules(torch.sin, lambda v, x: v * torch.cos(x), lambda u, x: 0.5 * u * torch.cos(x))
    report = gradvet.check(halved, torch.ones(6, dtype=dtype), seed=1, points=None)
    assert "forward" in {finding.check for finding in report.failures}


def test_kinks_that_cancel_but_for_roundoff_do_not_fail() -> None:
    def function(x: Tensor) -> Tensor:  # the first sum is 6e-17, and the second one is 0
        first, second = x[0] + x[1] - 0.3, 10 * x[0] + 10 * x[1] - 3
        return 10 * first.abs() - second.abs() + x[0] * x[1]

    def detached(x: Tensor) -> Tensor:
        return function(x.detach()) + 2 * x[0]

    x = point(0.1, 0.2)
    assert gradvet.check(function, x, seed=0, points=None).verdict is not Verdict.FAIL
    assert gradvet.check(detached, x, seed=0, points=None).verdict is Verdict.FAIL
