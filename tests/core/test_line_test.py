"""The screen of a generated point, the screen along one direction, and how much each input adds to a slope."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from gradvet.core.context import Context
from gradvet.core.decision import Decision, Reason
from gradvet.core.line_test import (
    decide_line,
    enter_resolution,
    screen_agrees,
    screen_point,
    sweep_line,
    typical_contributions,
)
from gradvet.core.localise import leaf_verdicts
from gradvet.core.modes import FORWARD, REVERSE, Mode
from gradvet.core.results import Verdict
from gradvet.core.slope_test import SlopeTest
from tests.core.contexts import Elementwise, context_of, point
from tests.functions import with_derivative

MODES = pytest.mark.parametrize("mode", [REVERSE, FORWARD], ids=lambda mode: mode.name)


def generated(function: Elementwise, *numbers: float, immaterial_slope: float = 0.0) -> Context:
    """The context of a generated point."""
    return replace(context_of(function, point(*numbers)), is_generated=True, immaterial_slope=immaterial_slope)


def settled(function: Elementwise, slope: float, mode: Mode, at: float = 0.0) -> bool:
    """Whether the screen of a generated point accepts this slope."""
    return screen_point(generated(with_derivative(function, lambda x: torch.full_like(x, slope)), at), mode)


@MODES
@pytest.mark.parametrize(
    ("slope", "agrees"), [(2.0, True), (2.0001, True), (2.001, False), (1.999, False), (0.0, False)]
)
def test_slope_at_a_generated_point_must_agree_to_a_ten_thousandth(mode: Mode, slope: float, agrees: bool) -> None:
    assert settled(lambda x: 2.0 * x, slope, mode, 1.0) is agrees


@MODES
@pytest.mark.parametrize(
    ("slope", "agrees"), [(1.0, True), (-1.0, True), (0.3, True), (1.00005, True), (1.01, False), (-1.01, False)]
)
def test_any_value_between_the_slopes_of_a_kink_agrees(mode: Mode, slope: float, agrees: bool) -> None:
    assert settled(torch.abs, slope, mode) is agrees


def test_nonfinite_derivative_is_not_settled() -> None:
    assert not settled(torch.sin, math.nan, REVERSE)
    assert not settled(torch.sin, math.inf, REVERSE)


def test_curvature_is_not_a_kink() -> None:
    assert settled(lambda x: torch.exp(8.0 * x), 8.0, REVERSE)
    assert not settled(lambda x: torch.exp(8.0 * x), 8.1, REVERSE)


def beside_a_kink(slopes: tuple[float, float, float]) -> bool:
    """|x|, |2x| and sin x at zero, with these derivatives."""

    def function(x: Tensor) -> Tensor:
        return torch.stack([x[0].abs(), (2.0 * x[1]).abs(), torch.sin(x[2])])

    claimed = torch.tensor(slopes, dtype=torch.float64)
    return screen_point(generated(with_derivative(function, lambda x: claimed), 0.0, 0.0, 0.0), REVERSE)


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
def test_outputs_with_and_without_a_kink_are_each_compared_with_their_slopes(
    slopes: tuple[float, float, float], agrees: bool
) -> None:
    assert beside_a_kink(slopes) is agrees


def test_errors_below_the_immaterial_slope_are_allowed() -> None:
    wrong = with_derivative(torch.sin, torch.zeros_like)
    assert not screen_point(generated(wrong, 0.0), REVERSE)
    assert screen_point(generated(wrong, 0.0, immaterial_slope=10.0), REVERSE)


def test_roundoff_of_a_large_value_is_allowed_for() -> None:
    def large(x: Tensor) -> Tensor:
        return 1e9 + x

    assert settled(large, 1.0, REVERSE, 1.0)
    assert settled(large, 1.02, REVERSE, 1.0)
    assert not settled(large, 2.0, REVERSE, 1.0)


def vector(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def test_contribution_is_the_rms_of_the_nonzero_products_and_inputs_that_do_not_move_have_none() -> None:
    context = context_of(lambda x, y, z: x.sum() + y + z, point(1.0, 1.0, 1.0), point(1.0), point(1.0))
    w, u = vector(3.0, 4.0, 9.0, 2.0, 5.0), vector(1.0, 1.0, 0.0, 0.0, -2.0)
    expected = {"input 0": pytest.approx(math.sqrt(25.0 / 2.0)), "input 2": 10.0}
    assert typical_contributions(context.problem, w, u) == expected
    assert typical_contributions(context.problem, 0.0 * w, u) == {"input 0": 0.0, "input 2": 0.0}


def opened(function: Elementwise, *numbers: float, mode: Mode = REVERSE) -> Context:
    """A context whose ledger is open for this mode."""
    return SlopeTest(context_of(function, point(*numbers)), mode).context


def resolution(context: Context, mode: Mode = REVERSE) -> float:
    return context.record.resolution("input 0", mode.name, context.precision)


@MODES
@pytest.mark.parametrize(("error", "agrees"), [(0.0, True), (5e-7, True), (5e-6, False), (-5e-6, False)])
def test_slope_at_the_given_point_must_agree_to_a_millionth(mode: Mode, error: float, agrees: bool) -> None:
    context = opened(
        with_derivative(lambda x: 2.0 * x, lambda x: torch.full_like(x, 2.0 + 2.0 * error)), 1.0, mode=mode
    )
    assert screen_agrees(context, mode, context.first, context.cotangents) is agrees
    assert (resolution(context, mode) < math.inf) is agrees


def test_screen_enters_the_resolution_of_a_typical_entry() -> None:
    context = opened(lambda x: 2.0 * x, 1.0)
    assert screen_agrees(context, REVERSE, context.first, context.cotangents)
    assert 1e-6 <= resolution(context) < 1.1e-6


def test_resolution_is_entered_for_inputs_with_a_contribution() -> None:
    context = SlopeTest(context_of(lambda x, y: x + y, point(1.0), point(1.0)), REVERSE).context
    enter_resolution(context, REVERSE, {"input 0": 2.0, "input 1": 0.0}, 1e-3)
    rows = {row.input: row.resolution for row in context.record.rows()}
    assert rows == {"input 0": 5e-4, "input 1": None}


def decided(function: Elementwise, slope: float, at: float) -> tuple[Decision, float]:
    """The decision by a step sweep, and the resolution that was entered."""
    context = opened(with_derivative(function, lambda x: torch.full_like(x, slope)), at)
    u, cotangent = context.first.u, context.cotangents[0]
    (fit,) = sweep_line(context, REVERSE, u, [cotangent])
    return decide_line(context, REVERSE, u, cotangent, fit), resolution(context)


def test_sweep_decides_and_enters_agreement_alone() -> None:
    right, entered = decided(lambda x: 2.0 * x, 2.0, 1.0)
    assert (right.verdict, right.reason) == (Verdict.PASS, Reason.AGREES)
    assert entered < 1e-9
    wrong, entered = decided(lambda x: 2.0 * x, 2.1, 1.0)
    assert (wrong.verdict, wrong.reason) == (Verdict.FAIL, Reason.DISAGREES)
    assert entered == math.inf


def test_derivative_of_zero_is_compared_with_the_rise_of_the_function() -> None:
    parabola, entered = decided(lambda x: 1.0 + x**2, 0.0, 0.0)
    assert parabola.verdict is Verdict.PASS
    assert entered < 1e-6
    line, entered = decided(lambda x: 1.0 + x, 0.0, 0.0)
    assert (line.verdict, line.reason) == (Verdict.FAIL, Reason.DISAGREES)
    assert entered == math.inf


def test_derivative_of_zero_of_a_constant_is_compared_with_its_size() -> None:
    decision, entered = decided(lambda x: 3.0 + 0.0 * x, 0.0, 1.0)
    assert decision.verdict is Verdict.PASS
    assert entered < 1e-6


@MODES
def test_inputs_alone_are_swept_only_where_one_difference_disagrees(mode: Mode) -> None:
    def counted(factor: float) -> tuple[dict[str, Verdict], int]:
        wrong = with_derivative(torch.sin, lambda x: factor * x.cos())
        function = lambda a, b, c: a.exp() * b + wrong(c)  # noqa: E731
        context = context_of(function, point(0.3, 0.8), point(1.1, -0.4), point(0.7, 0.2))
        for leaf in context.problem.domain.leaves:
            context.record.open(leaf.name, mode.name, context.precision, 2, 0.01)
        before = context.problem.cost.forwards
        return leaf_verdicts(context, mode), context.problem.cost.forwards - before

    right, few = counted(1.0)
    assert set(right.values()) == {Verdict.PASS}
    found, more = counted(1.1)
    failed = {name for name, verdict in found.items() if verdict is Verdict.FAIL}
    assert failed == {"input 2", "output"}
    assert few < 3 * 10 < more
