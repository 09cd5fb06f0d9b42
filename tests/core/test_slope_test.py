"""The test of one mode: its directions, its ledger, its cost, and derivatives that are not finite.

Also tests `core/modes.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import gradvet
from gradvet.core import slope_test
from gradvet.core.context import Context
from gradvet.core.decision import Decision, Reason
from gradvet.core.line_test import split_kinks
from gradvet.core.localise import nonfinite_derivative, nonfinite_tangent
from gradvet.core.modes import FORWARD, REVERSE, Mode
from gradvet.core.results import Verdict
from gradvet.core.slope_test import SlopeTest
from tests.core.contexts import Elementwise, context_of, point
from tests.functions import with_derivative, with_jvp, with_rules, with_vjp
from tests.gallery.mutants import scaled

MODES = pytest.mark.parametrize("mode", [REVERSE, FORWARD], ids=lambda mode: mode.name)


@MODES
def test_screen_settles_a_smooth_function(mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    def sweep_steps(*_: Any, **__: Any) -> None:
        raise AssertionError("no sweep was needed")

    monkeypatch.setattr(Context, "sweep_steps", sweep_steps)
    decision = SlopeTest(context_of(torch.sin, point(0.3, 1.0, 2.0)), mode).run()
    assert (decision.verdict, decision.reason) == (Verdict.PASS, Reason.AGREES)


@MODES
@pytest.mark.parametrize("size", [1.0, 1e-6, 1e-9])
def test_error_of_an_input_of_small_influence_is_found(mode: Mode, size: float) -> None:
    inner = with_derivative(lambda y: size * y, lambda y: torch.full_like(y, 1.1 * size))
    decision = SlopeTest(context_of(lambda x, y: x + inner(y), point(0.3, 1.0), point(0.7, 0.2)), mode).run()
    assert decision.verdict is Verdict.FAIL
    assert decision.entry is not None
    assert decision.entry.input.name == "input 1"


@MODES
@pytest.mark.parametrize(
    ("slope", "verdict", "reason"),
    [
        (0.0, Verdict.PASS, Reason.AGREES),
        (1e-17, Verdict.INCONCLUSIVE, Reason.PRECISION),
        (1e-11, Verdict.PASS, Reason.AGREES),
        (1e-12, Verdict.INCONCLUSIVE, Reason.PRECISION),
    ],
)
def test_derivative_of_zero_passes_and_one_that_roundoff_hides_is_inconclusive(
    mode: Mode, slope: float, verdict: Verdict, reason: Reason
) -> None:
    inner = with_derivative(lambda y: slope * y, lambda y: torch.full_like(y, slope))
    context = context_of(lambda x, y: x + inner(y), point(1.0), point(1.0))
    decision, _ = slope_test.decide_slopes(context, mode)
    assert (decision.verdict, decision.reason) == (verdict, reason)
    complete = {row.input: row.is_complete for row in context.record.rows()}
    assert complete == {"input 0": True, "input 1": verdict is Verdict.PASS}


@MODES
def test_faint_input_of_its_own_output_does_not_pass(mode: Mode) -> None:
    wrong = with_derivative(torch.sin, lambda y: -torch.cos(y))
    single = torch.float32
    inputs = point(19608.9, 4339.3, -7688.6, dtype=single), point(0.4, -0.2, 1.9, dtype=single)
    context = context_of(lambda x, y: (2 * x, 1 + 1e-7 * wrong(y)), *inputs)
    slope_test.decide_slopes(context, mode)
    complete = {row.input: row.is_complete for row in context.record.rows()}
    assert complete == {"input 0": True, "input 1": False}


@MODES
def test_every_input_has_a_complete_row_in_the_ledger_of_the_mode(mode: Mode) -> None:
    context = context_of(lambda x, y: torch.sin(x) + 1e-3 * y, point(0.3, 1.0), point(0.7, 0.2))
    assert slope_test.decide_slopes(context, mode)[0].verdict is Verdict.PASS
    rows = list(context.record.rows())
    assert [(row.input, row.mode, row.precision) for row in rows] == [
        ("input 0", mode.name, "given"),
        ("input 1", mode.name, "given"),
    ]
    assert all(row.is_complete for row in rows)


def test_columns_without_a_finite_derivative_are_left_out_of_the_ledger() -> None:
    def root(x: Tensor) -> Tensor:
        return x.abs().sqrt()

    context = context_of(root, point(0.0, 1.0, 4.0))
    decision, _ = slope_test.decide_slopes(context, REVERSE)
    assert (decision.verdict, decision.reason) == (Verdict.INCONCLUSIVE, Reason.NOT_FINITE)
    (row,) = context.record.rows()
    assert (row.elements, row.compared, row.reasons) == (3, 2, ("the derivative is not finite",))
    assert row.resolution is not None
    assert row.resolution <= row.asked
    assert not row.is_complete


def test_inputs_that_a_spent_budget_leaves_open_are_left_out_of_the_ledger() -> None:
    context = context_of(lambda x, y: (x - 1.0).abs() + y, point(1.0), point(1.0, 2.0))
    spent = replace(context, deadline=0.0)
    assert slope_test.decide_slopes(spent, REVERSE)[0].verdict is Verdict.INCONCLUSIVE
    rows = [(row.input, row.compared, row.reasons) for row in spent.record.rows()]
    assert rows == [("input 0", 0, ("the time budget was spent",)), ("input 1", 0, ("the time budget was spent",))]


def without_forward() -> Context:
    return context_of(with_vjp(torch.sin, lambda v, x: v * torch.cos(x)), point(0.3, 1.0))


def without_reverse() -> Context:
    context = context_of(with_jvp(torch.sin, lambda u, x: u * torch.cos(x)), point(0.3, 1.0))
    return replace(context, has_reverse=False)


@pytest.mark.parametrize(("context", "mode"), [(without_forward(), FORWARD), (without_reverse(), REVERSE)])
def test_mode_that_the_function_does_not_have_raises_and_enters_nothing_in_the_ledger(
    context: Context, mode: Mode
) -> None:
    with pytest.raises((NotImplementedError, RuntimeError)):
        slope_test.decide_slopes(context, mode)
    assert list(context.record.rows()) == []


def test_comparison_that_raises_is_withdrawn_from_the_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: SlopeTest) -> Decision:
        raise ZeroDivisionError

    monkeypatch.setattr(SlopeTest, "run", interrupted)
    context = context_of(torch.sin, point(0.3, 1.0))
    with pytest.raises(ZeroDivisionError):
        slope_test.decide_slopes(context, REVERSE)
    assert list(context.record.rows()) == []


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("slope", "verdict"), [(2.0, Verdict.PASS), (2.5, Verdict.FAIL)])
def test_edge_of_the_domain_is_tested_from_inside(slope: float, verdict: Verdict, seed: int) -> None:
    def inside(x: Tensor) -> Tensor:
        return torch.where(x < 0.0, torch.full_like(x, float("nan")), 2.0 * x + x**2)

    context = context_of(with_derivative(inside, lambda x: torch.full_like(x, slope)), point(0.0), seed=seed)
    assert SlopeTest(context, REVERSE).run().verdict is verdict


@pytest.mark.parametrize("mode", [REVERSE, FORWARD])
@pytest.mark.parametrize("distance", [1e-9, 1e-11, 1e-13])
def test_steep_output_at_an_edge_is_compared_at_steps_by_its_own_slope(mode: Mode, distance: float) -> None:
    for seed in range(3):
        context = context_of(torch.asin, point(1.0 - distance, 0.3, 0.5), seed=seed)
        assert SlopeTest(context, mode).run().verdict is Verdict.PASS


def test_wrong_output_at_an_edge_fails() -> None:
    scaled = with_derivative(torch.asin, lambda x: 1.02 / torch.sqrt(1.0 - x * x))
    assert SlopeTest(context_of(scaled, point(1.0 - 1e-11, 0.3, 0.5)), REVERSE).run().verdict is Verdict.FAIL


def test_slope_that_is_bounded_at_an_edge_fails() -> None:
    bounded = with_derivative(torch.asin, lambda x: 1.0 / torch.sqrt((1.0 - x * x).clamp(min=1e-6)))
    assert SlopeTest(context_of(bounded, point(1.0 - 1e-8, 0.3, 0.5)), REVERSE).run().verdict is Verdict.FAIL


def test_rounding_of_a_step_is_accounted_for_in_forward_mode() -> None:
    context = context_of(torch.sin, point(1.0))
    u, step = context.joint_direction(), 2.0**-50
    displacement = context.problem.evaluate_at(step * u).displacement
    rounded = float(displacement[0]) / float(step * u[0])
    change = float(FORWARD.change(context, context.cotangents[0], u, displacement, step))
    claimed = change / (step * float(context.cotangents[0].vjp @ u))
    assert abs(rounded - 1.0) > 1e-3
    assert claimed == pytest.approx(rounded, rel=1e-9)


def far_root(x: Tensor) -> Tensor:
    """A square that is rounded to millionths, because it passes numbers of size 1e10."""
    return torch.sqrt((x * x + 1e10) - 1e10 + 1e-3)


@pytest.mark.parametrize("seed", range(4))
def test_roundoff_of_large_numbers_inside_is_no_error(seed: int) -> None:
    context = context_of(far_root, point(-0.8115, -0.8848, -0.0070, -1.77), seed=seed)
    assert SlopeTest(context, REVERSE).run().verdict is not Verdict.FAIL


@pytest.mark.parametrize("seed", range(4))
def test_errors_beyond_the_roundoff_of_large_numbers_inside_fail(seed: int) -> None:
    wrong = with_derivative(far_root, lambda x: 0.9 * x / far_root(x))
    context = context_of(wrong, point(-0.8115, -0.8848, -0.7, -1.77), seed=seed)
    assert SlopeTest(context, REVERSE).run().verdict is Verdict.FAIL


def test_derivative_inside_a_dead_zone_fails() -> None:
    dead = with_derivative(torch.nn.functional.softshrink, torch.ones_like)
    assert SlopeTest(context_of(dead, point(0.01, 1.3, -2.1)), REVERSE).run().verdict is Verdict.FAIL


def test_one_sided_differences_are_noted_at_an_edge_of_the_domain_only() -> None:
    function = with_derivative(lambda x: 2.0 * x + x**2, lambda x: 2.0 + 2.0 * x)
    inside, edge = point(0.3, dtype=torch.float32), point(0.0)
    middle = context_of(function, inside, resolution=0.2)
    end = context_of(lambda x: torch.where(x < 0.0, torch.full_like(x, float("nan")), function(x)), edge)
    for context in (middle, end):
        assert SlopeTest(context, REVERSE).run().verdict is Verdict.PASS
    assert middle.record.notes == []
    assert end.record.notes == ["only one side of the point is inside the function's domain: one-sided differences"]


def test_function_that_is_defined_nowhere_around_is_inconclusive() -> None:
    def alone(x: Tensor) -> Tensor:
        return torch.where(x == 1.0, x, torch.full_like(x, float("nan")))

    decision = SlopeTest(context_of(with_derivative(alone, torch.ones_like), point(1.0)), REVERSE).run()
    assert (decision.verdict, decision.reason) == (Verdict.INCONCLUSIVE, Reason.DOMAIN)


@MODES
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("factor", "verdict"), [(1.0, Verdict.PASS), (1.5, Verdict.FAIL), (0.5, Verdict.FAIL)])
def test_coarse_formats_are_decided_by_the_sweep(
    mode: Mode, dtype: torch.dtype, factor: float, verdict: Verdict
) -> None:
    function = with_derivative(torch.sin, lambda x: factor * torch.cos(x))
    context = context_of(function, point(0.3, 0.5, 0.7, dtype=dtype), resolution=0.2)
    assert SlopeTest(context, mode).run().verdict is verdict


def test_rows_with_a_kink_are_signed_so_that_their_kinks_add_up() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.stack([x[0].abs(), -3.0 * x[0].abs(), torch.sin(x[1])])

    context = context_of(function, point(0.0, 1.0))
    cotangent, difference = context.cotangents[0], context.first
    bent, rest = split_kinks(context, cotangent, difference, torch.tensor([True, True, False]))
    first, second, third = cotangent.v.abs().tolist()
    assert bent.v.tolist() == pytest.approx([first, -second, 0.0])
    assert rest.v.tolist() == [0.0, 0.0, float(cotangent.v[2])]
    assert third > 0.0


def test_spent_budget_is_inconclusive() -> None:
    context = replace(context_of(lambda x: (x - 2.0).abs(), point(1.0, 2.0)), deadline=0.0)
    decision = SlopeTest(context, REVERSE).run()
    assert (decision.verdict, decision.reason) == (Verdict.INCONCLUSIVE, Reason.BUDGET)


@pytest.mark.parametrize("seed", range(6))
def test_error_beside_a_kink_is_found_along_every_direction(seed: int) -> None:
    def claimed(x: Tensor) -> Tensor:
        return torch.tensor([0.0, 1.1], dtype=x.dtype)

    context = context_of(with_derivative(torch.abs, claimed), point(0.0, 1.0), seed=seed)
    decision = SlopeTest(context, REVERSE).run()
    assert decision.verdict is Verdict.FAIL
    assert decision.entry is not None
    assert decision.entry.column == 1


@MODES
@pytest.mark.parametrize("function", [torch.relu, torch.abs, lambda x: x.clamp(max=0.0)], ids=["relu", "abs", "clamp"])
def test_single_element_at_a_kink_passes(mode: Mode, function: Callable[[Tensor], Tensor]) -> None:
    context = context_of(function, point(0.0))
    assert SlopeTest(context, mode).run().verdict is Verdict.PASS
    assert all(row.is_complete for row in context.record.rows())
    wrong = context_of(with_derivative(function, lambda x: torch.full_like(x, 1.5)), point(0.0))
    assert SlopeTest(wrong, mode).run().verdict is Verdict.FAIL


@MODES
@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize(("slope", "verdict"), [(2.0, Verdict.PASS), (2.2, Verdict.FAIL)])
def test_elements_beside_a_kink_are_tested_along_both_signs_of_a_direction(
    mode: Mode, sign: float, slope: float, verdict: Verdict
) -> None:
    straight = with_derivative(lambda x: 2.0 * x, lambda x: torch.full_like(x, slope))
    context = context_of(lambda x: x[:1].abs() + straight(x[1:]), point(0.0, 1.0))
    difference = context.difference(sign * context.first.u.abs())
    decision = SlopeTest(context, mode).along(difference, context.cotangents[:1])
    assert decision.verdict is verdict


def tilted(size: float, factor: float) -> Callable[[Tensor], Tensor]:
    """`size` times the sine, with a right backward pass and a tangent that is off by a factor in one entry."""

    def jvp(u: Tensor, y: Tensor) -> Tensor:
        tangent = u * size * torch.cos(y)
        return torch.cat([factor * tangent[:1], tangent[1:]])

    return with_rules(lambda y: size * torch.sin(y), lambda v, y: v * size * torch.cos(y), jvp)


@pytest.mark.parametrize("factor", [1.0, 1.0 + 1e-8])
def test_second_direction_is_tested_in_forward_mode_too(factor: float) -> None:
    context = context_of(tilted(1.0, factor), point(0.3, 1.0, 2.0))
    assert [SlopeTest(context, mode).run().verdict for mode in (REVERSE, FORWARD)] == [Verdict.PASS] * 2
    assert context.problem.cost.jvps == 2


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("size", [1.0, 1e-3, 1e-6])
def test_tangent_that_is_wrong_in_an_input_of_small_influence_is_found_beside_a_right_gradient(
    size: float, seed: int
) -> None:
    inner = tilted(size, 1.1)
    context = context_of(lambda x, y: x + inner(y), point(0.3, 1.0), point(0.7, 0.2), seed=seed)
    assert [SlopeTest(context, mode).run().verdict for mode in (REVERSE, FORWARD)] == [Verdict.PASS, Verdict.FAIL]


def nowhere(x: Tensor) -> Tensor:
    return torch.full_like(x, math.nan)


def found(function: Elementwise) -> Decision:
    context = context_of(with_derivative(function, nowhere), point(0.0, 0.0))
    return nonfinite_derivative(context, REVERSE, torch.tensor([False, True]))


def test_nonfinite_derivative_where_the_function_has_a_slope_fails_and_is_named() -> None:
    decision = found(lambda x: 3.0 * x)
    assert (decision.verdict, decision.reason) == (Verdict.FAIL, Reason.NOT_FINITE)
    assert decision.entry is not None
    assert (str(decision.entry.input), decision.entry.column) == ("input 0 [1]", 1)
    assert abs(decision.entry.numerical) == 3.0


def test_nonfinite_derivative_where_the_function_has_no_slope_is_inconclusive() -> None:
    for function in (lambda x: x.abs().sqrt(), lambda x: torch.sign(x)):
        decision = found(function)
        assert (decision.verdict, decision.reason) == (Verdict.INCONCLUSIVE, Reason.NOT_FINITE)


def test_mode_with_a_finite_derivative_is_not_failed_for_the_other() -> None:
    context = context_of(lambda x: 3.0 * x, point(0.0, 0.0))
    decision = nonfinite_derivative(context, FORWARD, torch.tensor([False, True]))
    assert (decision.verdict, decision.reason) == (Verdict.PASS, Reason.NOT_FINITE)


def test_nonfinite_tangent_fails_with_the_slope_of_its_output() -> None:
    def second(x: Tensor) -> Tensor:
        return torch.tensor([2.0, math.nan], dtype=x.dtype)

    context = context_of(with_derivative(lambda x: 2.0 * x, second), point(1.0, 1.0))
    decision = nonfinite_tangent(context, FORWARD)
    assert decision is not None
    assert decision.verdict is Verdict.FAIL
    assert decision.entry is not None
    assert str(decision.entry.output) == "output [1]"
    assert 0.4 <= abs(decision.entry.numerical) <= 4.0


def test_finite_tangents_and_modes_without_tangents_have_nothing_missing() -> None:
    context = context_of(lambda x: 2.0 * x, point(1.0))
    assert nonfinite_tangent(context, FORWARD) is None
    assert nonfinite_tangent(context_of(with_derivative(torch.sin, nowhere), point(1.0)), REVERSE) is None


def padded_network(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Two rows of data and two of padding, weights, biases of zero, weights of the output."""
    generator = torch.Generator().manual_seed(seed)
    x, w, v = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((2, 5), (5, 8), (8, 2)))
    return torch.cat([x, 0 * x]), 0.4 * w, torch.zeros(8, dtype=torch.float64), 0.4 * v


def network(x: Tensor, w: Tensor, b: Tensor, v: Tensor) -> Tensor:
    return torch.relu(x @ w + b) @ v


@pytest.mark.parametrize("seed", [3, 18, 21, 23])
def test_biases_of_zero_behind_padded_rows_pass(seed: int) -> None:
    report = gradvet.check(network, padded_network(seed), seed=seed, points=None)
    assert report.verdict is Verdict.PASS, report


@pytest.mark.parametrize("seed", [15, 18, 27])
def test_factor_of_biases_of_zero_behind_padded_rows_never_passes(seed: int) -> None:
    report = gradvet.check(scaled(network, 1.02, slot=2), padded_network(seed), seed=seed, points=None)
    assert report.verdict is not Verdict.PASS, report
