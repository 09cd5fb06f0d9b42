"""Derivatives that are not finite, beside slopes that are or are not."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gradvet.core.judgement import Reason
from gradvet.core.missing import without_derivative, without_tangent
from gradvet.core.modes import FORWARD, REVERSE
from gradvet.core.outcome import Outcome
from gradvet.core.results import Verdict
from tests.core.trials import Elementwise, point, trial_of, written


def nowhere(x: Tensor) -> Tensor:
    return torch.full_like(x, math.nan)


def found(function: Elementwise) -> Outcome:
    trial = trial_of(written(function, nowhere), point(0.0, 0.0))
    return without_derivative(trial, REVERSE, torch.tensor([False, True]))


def test_derivative_that_is_missing_where_the_function_has_a_slope_fails_and_is_named() -> None:
    outcome = found(lambda x: 3.0 * x)
    assert (outcome.verdict, outcome.reason) == (Verdict.FAIL, Reason.NOT_FINITE)
    assert outcome.entry is not None
    assert (str(outcome.entry.input), outcome.entry.column) == ("input 0 [1]", 1)
    assert abs(outcome.entry.numerical) == 3.0


def test_derivative_that_is_missing_where_the_slope_is_too_leaves_doubt() -> None:
    for function in (lambda x: x.abs().sqrt(), lambda x: torch.sign(x)):
        outcome = found(function)
        assert (outcome.verdict, outcome.reason) == (Verdict.INCONCLUSIVE, Reason.NOT_FINITE)


def test_mode_that_has_the_derivative_is_not_blamed_for_the_other() -> None:
    trial = trial_of(lambda x: 3.0 * x, point(0.0, 0.0))
    outcome = without_derivative(trial, FORWARD, torch.tensor([False, True]))
    assert (outcome.verdict, outcome.reason) == (Verdict.PASS, Reason.NOT_FINITE)


def test_tangent_that_is_missing_fails_with_the_slope_of_its_output() -> None:
    def second(x: Tensor) -> Tensor:
        return torch.tensor([2.0, math.nan], dtype=x.dtype)

    outcome = without_tangent(trial_of(written(lambda x: 2.0 * x, second), point(1.0, 1.0)), FORWARD)
    assert outcome is not None
    assert outcome.verdict is Verdict.FAIL
    assert outcome.entry is not None
    assert str(outcome.entry.output) == "output [1]"
    assert 0.4 <= abs(outcome.entry.numerical) <= 4.0


def test_tangents_that_are_there_and_modes_without_tangents_have_nothing_missing() -> None:
    trial = trial_of(lambda x: 2.0 * x, point(1.0))
    assert without_tangent(trial, FORWARD) is None
    assert without_tangent(trial_of(written(torch.sin, nowhere), point(1.0)), REVERSE) is None
