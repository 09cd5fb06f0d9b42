"""The short look: quiet where the derivative is the slope, or between the slopes of a kink."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from gradvet.core.line_test import screen_point
from gradvet.core.modes import FORWARD, REVERSE, Mode
from tests.core.trials import Elementwise, point, trial_of, written

MODES = pytest.mark.parametrize("mode", [REVERSE, FORWARD], ids=lambda mode: mode.name)


def quiet(function: Elementwise, slope: float, mode: Mode, at: float = 0.0) -> bool:
    return screen_point(trial_of(written(function, lambda x: torch.full_like(x, slope)), point(at)), mode)


@MODES
@pytest.mark.parametrize(
    ("slope", "agrees"), [(2.0, True), (2.0001, True), (2.001, False), (1.999, False), (0.0, False)]
)
def test_slope_is_right_to_a_ten_thousandth(mode: Mode, slope: float, agrees: bool) -> None:
    assert quiet(lambda x: 2.0 * x, slope, mode, 1.0) is agrees


@MODES
@pytest.mark.parametrize(
    ("slope", "agrees"), [(1.0, True), (-1.0, True), (0.3, True), (1.00005, True), (1.01, False), (-1.01, False)]
)
def test_between_the_slopes_of_a_kink_any_value_is_right(mode: Mode, slope: float, agrees: bool) -> None:
    assert quiet(torch.abs, slope, mode) is agrees


def test_derivative_that_is_not_finite_is_not_quiet() -> None:
    assert not quiet(torch.sin, math.nan, REVERSE)
    assert not quiet(torch.sin, math.inf, REVERSE)


def test_what_curves_is_no_kink() -> None:
    assert quiet(lambda x: torch.exp(8.0 * x), 8.0, REVERSE)
    assert not quiet(lambda x: torch.exp(8.0 * x), 8.1, REVERSE)


def beside_a_kink(slopes: tuple[float, float, float]) -> bool:
    """|x|, |2x| and sin x at zero, with these derivatives."""

    def function(x: Tensor) -> Tensor:
        return torch.stack([x[0].abs(), (2.0 * x[1]).abs(), torch.sin(x[2])])

    claimed = torch.tensor(slopes, dtype=torch.float64)
    return screen_point(trial_of(written(function, lambda x: claimed), point(0.0, 0.0, 0.0)), REVERSE)


@pytest.mark.parametrize(
    ("slopes", "agrees"),
    [
        ((0.0, 0.0, 1.0), True),
        ((1.0, -2.0, 1.0), True),
        ((1.2, 0.0, 1.0), False),
        ((0.0, 2.2, 1.0), False),
        ((0.0, 0.0, 1.1), False),
        ((0.0, 0.0, 0.0), False),
    ],
)
def test_outputs_with_a_kink_and_without_are_each_held_to_their_slopes(
    slopes: tuple[float, float, float], agrees: bool
) -> None:
    assert beside_a_kink(slopes) is agrees


def test_slopes_that_are_nothing_beside_those_elsewhere_are_not_held_to_anything() -> None:
    context = trial_of(written(torch.sin, torch.zeros_like), point(0.0))
    assert not screen_point(context, REVERSE)
    context.immaterial = 10.0
    assert screen_point(context, REVERSE)


def test_roundoff_of_a_large_value_is_allowed_for() -> None:
    def large(x: Tensor) -> Tensor:
        return 1e9 + x

    assert quiet(large, 1.0, REVERSE, 1.0)
    assert quiet(large, 1.02, REVERSE, 1.0)
    assert not quiet(large, 2.0, REVERSE, 1.0)
