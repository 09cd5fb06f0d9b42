"""Derivatives that are not finite, beside slopes that are or are not."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gradvet.core.decision import Decision, Reason
from gradvet.core.modes import FORWARD, REVERSE
from gradvet.core.results import Verdict
from gradvet.core.slope_test import without_derivative, without_tangent
from tests.core.trials import Elementwise, point, trial_of, written


def nowhere(x: Tensor) -> Tensor:
    return torch.full_like(x, math.nan)


def found(function: Elementwise) -> Decision:
    context = trial_of(written(function, nowhere), point(0.0, 0.0))
    return without_derivative(context, REVERSE, torch.tensor([False, True]))


def test_derivative_that_is_missing_where_the_function_has_a_slope_fails_and_is_named() -> None:
    decision = found(lambda x: 3.0 * x)
    assert (decision.verdict, decision.reason) == (Verdict.FAIL, Reason.NOT_FINITE)
    assert decision.entry is not None
    assert (str(decision.entry.input), decision.entry.column) == ("input 0 [1]", 1)
    assert abs(decision.entry.numerical) == 3.0


def test_derivative_that_is_missing_where_the_slope_is_too_leaves_doubt() -> None:
    for function in (lambda x: x.abs().sqrt(), lambda x: torch.sign(x)):
        decision = found(function)
        assert (decision.verdict, decision.reason) == (Verdict.INCONCLUSIVE, Reason.NOT_FINITE)


def test_mode_that_has_the_derivative_is_not_blamed_for_the_other() -> None:
    context = trial_of(lambda x: 3.0 * x, point(0.0, 0.0))
    decision = without_derivative(context, FORWARD, torch.tensor([False, True]))
    assert (decision.verdict, decision.reason) == (Verdict.PASS, Reason.NOT_FINITE)


def test_tangent_that_is_missing_fails_with_the_slope_of_its_output() -> None:
    def second(x: Tensor) -> Tensor:
        return torch.tensor([2.0, math.nan], dtype=x.dtype)

    decision = without_tangent(trial_of(written(lambda x: 2.0 * x, second), point(1.0, 1.0)), FORWARD)
    assert decision is not None
    assert decision.verdict is Verdict.FAIL
    assert decision.entry is not None
    assert str(decision.entry.output) == "output [1]"
    assert 0.4 <= abs(decision.entry.numerical) <= 4.0


def test_tangents_that_are_there_and_modes_without_tangents_have_nothing_missing() -> None:
    context = trial_of(lambda x: 2.0 * x, point(1.0))
    assert without_tangent(context, FORWARD) is None
    assert without_tangent(trial_of(written(torch.sin, nowhere), point(1.0)), REVERSE) is None
