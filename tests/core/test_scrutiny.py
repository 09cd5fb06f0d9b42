"""The scrutiny of one mode: what it spends, and what it does not let pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from gradvet.core.context import Context
from gradvet.core.decision import Reason
from gradvet.core.modes import FORWARD, REVERSE, Mode
from gradvet.core.results import Verdict
from gradvet.core.slope_test import SlopeTest, _split
from tests.core.trials import point, trial_of, written

MODES = pytest.mark.parametrize("mode", [REVERSE, FORWARD], ids=lambda mode: mode.name)


@MODES
def test_smooth_function_is_judged_by_near_walks_alone(mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    def sweep_steps(*_: Any, **__: Any) -> None:
        raise AssertionError("no ladder was needed")

    monkeypatch.setattr(Context, "sweep_steps", sweep_steps)
    decision = SlopeTest(trial_of(torch.sin, point(0.3, 1.0, 2.0)), mode).decision()
    assert (decision.verdict, decision.reason) == (Verdict.PASS, Reason.AGREES)


@MODES
def test_function_that_curves_within_the_step_is_extrapolated_before_any_ladder(
    mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sweep_steps(*_: Any, **__: Any) -> None:
        raise AssertionError("no ladder was needed")

    monkeypatch.setattr(Context, "sweep_steps", sweep_steps)
    # The truncation of a central difference is (h ω)² / 6 of the slope: 2e-5 here, and 1e-9 once extrapolated.
    context = trial_of(lambda x: torch.sin(2e3 * x), point(0.3, 1.0, 2.0))
    decision = SlopeTest(context, mode).decision()
    assert (decision.verdict, decision.reason) == (Verdict.PASS, Reason.AGREES)
    assert "far" in context.first.answers


@MODES
@pytest.mark.parametrize("size", [1.0, 1e-6, 1e-9])
def test_error_of_an_input_of_small_influence_is_found(mode: Mode, size: float) -> None:
    inner = written(lambda y: size * y, lambda y: torch.full_like(y, 1.1 * size))
    decision = SlopeTest(trial_of(lambda x, y: x + inner(y), point(0.3, 1.0), point(0.7, 0.2)), mode).decision()
    assert decision.verdict is Verdict.FAIL
    assert decision.entry is not None
    assert decision.entry.input.name == "input 1"


def test_input_whose_influence_is_below_roundoff_is_said_to_be() -> None:
    inner = written(lambda y: 1e-17 * y, lambda y: torch.full_like(y, 1e-17))
    context = trial_of(lambda x, y: x + inner(y), point(1.0), point(1.0))
    assert SlopeTest(context, REVERSE).decision().verdict is Verdict.PASS
    assert context.record.faint == {"input 1"}
    assert context.record.notes == ["what input 1 does to the outputs is below the outputs' roundoff"]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("slope", "verdict"), [(2.0, Verdict.PASS), (2.5, Verdict.FAIL)])
def test_edge_of_the_domain_is_judged_from_inside(slope: float, verdict: Verdict, seed: int) -> None:
    def inside(x: Tensor) -> Tensor:
        return torch.where(x < 0.0, torch.full_like(x, float("nan")), 2.0 * x + x**2)

    context = trial_of(written(inside, lambda x: torch.full_like(x, slope)), point(0.0), seed=seed)
    assert SlopeTest(context, REVERSE).decision().verdict is verdict


def test_only_at_an_edge_of_the_domain_differences_are_said_to_be_one_sided() -> None:
    function = written(lambda x: 2.0 * x + x**2, lambda x: 2.0 + 2.0 * x)
    inside, edge = point(0.3, dtype=torch.float32), point(0.0)
    middle = trial_of(function, inside, power=0.2)
    end = trial_of(lambda x: torch.where(x < 0.0, torch.full_like(x, float("nan")), function(x)), edge)
    for context in (middle, end):
        assert SlopeTest(context, REVERSE).decision().verdict is Verdict.PASS
    assert middle.record.notes == []
    assert end.record.notes == ["only one side of the point is inside the function's domain: one-sided differences"]


def test_function_that_is_defined_nowhere_around_leaves_doubt() -> None:
    def alone(x: Tensor) -> Tensor:
        return torch.where(x == 1.0, x, torch.full_like(x, float("nan")))

    decision = SlopeTest(trial_of(written(alone, torch.ones_like), point(1.0)), REVERSE).decision()
    assert (decision.verdict, decision.reason) == (Verdict.INCONCLUSIVE, Reason.DOMAIN)


@MODES
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("factor", "verdict"), [(1.0, Verdict.PASS), (1.5, Verdict.FAIL), (0.5, Verdict.FAIL)])
def test_coarse_formats_are_judged_by_the_ladder(
    mode: Mode, dtype: torch.dtype, factor: float, verdict: Verdict
) -> None:
    function = written(torch.sin, lambda x: factor * torch.cos(x))
    context = trial_of(function, point(0.3, 0.5, 0.7, dtype=dtype), power=0.2)
    assert SlopeTest(context, mode).decision().verdict is verdict


def test_rows_with_a_kink_are_looked_at_so_that_their_kinks_add_up() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.stack([x[0].abs(), -3.0 * x[0].abs(), torch.sin(x[1])])

    context = trial_of(function, point(0.0, 1.0))
    cotangent, difference = context.cotangents[0], context.first
    bent, rest = _split(context, cotangent, difference, torch.tensor([True, True, False]))
    first, second, third = cotangent.v.abs().tolist()
    assert bent.v.tolist() == pytest.approx([first, -second, 0.0])
    assert rest.v.tolist() == [0.0, 0.0, float(cotangent.v[2])]
    assert third > 0.0


def test_trial_whose_time_is_spent_leaves_doubt() -> None:
    context = trial_of(lambda x: (x - 2.0).abs(), point(1.0, 2.0))
    context.deadline = 0.0
    decision = SlopeTest(context, REVERSE).decision()
    assert (decision.verdict, decision.reason) == (Verdict.INCONCLUSIVE, Reason.BUDGET)


@pytest.mark.parametrize("seed", range(6))
def test_error_beside_a_kink_is_found_whichever_way_the_line_leads(seed: int) -> None:
    def claimed(x: Tensor) -> Tensor:
        return torch.tensor([0.0, 1.1], dtype=x.dtype)

    context = trial_of(written(torch.abs, claimed), point(0.0, 1.0), seed=seed)
    decision = SlopeTest(context, REVERSE).decision()
    assert decision.verdict is Verdict.FAIL
    assert decision.entry is not None
    assert decision.entry.column == 1


@MODES
@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize(("slope", "verdict"), [(2.0, Verdict.PASS), (2.2, Verdict.FAIL)])
def test_what_is_beside_a_kink_is_judged_whichever_way_it_is_walked(
    mode: Mode, sign: float, slope: float, verdict: Verdict
) -> None:
    straight = written(lambda x: 2.0 * x, lambda x: torch.full_like(x, slope))
    context = trial_of(lambda x: x[:1].abs() + straight(x[1:]), point(0.0, 1.0))
    decision = SlopeTest(context, mode)._beside_kinks(sign * context.first.u.abs(), context.cotangents[0])
    assert decision.verdict is verdict


def tilted(size: float, factor: float) -> Callable[[Tensor], Tensor]:
    """`size` times the sine, with a right backward pass and a tangent that is off by a factor in one entry."""

    class Tilted(torch.autograd.Function):
        @staticmethod
        def forward(y: Tensor) -> Tensor:
            return size * torch.sin(y)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(*inputs)

        @staticmethod
        def backward(ctx: Any, *v: Tensor) -> Tensor:
            return v[0] * size * torch.cos(ctx.saved_tensors[0])

        @staticmethod
        def jvp(ctx: Any, *u: Tensor) -> Tensor:
            tangent = u[0] * size * torch.cos(ctx.saved_tensors[0])
            return torch.cat([factor * tangent[:1], tangent[1:]])

    return lambda y: Tilted.apply(y)  # type: ignore[no-untyped-call,no-any-return]


@pytest.mark.parametrize(("factor", "pushes"), [(1.0, 1), (1.0 + 1e-8, 2)])
def test_forward_mode_is_walked_once_where_it_is_reverse_mode_to_roundoff(factor: float, pushes: int) -> None:
    context = trial_of(tilted(1.0, factor), point(0.3, 1.0, 2.0))
    assert [SlopeTest(context, mode).decision().verdict for mode in (REVERSE, FORWARD)] == [Verdict.PASS] * 2
    assert context.problem.cost.pushes == probe_jvps


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("size", [1.0, 1e-3, 1e-6])
def test_tangent_that_is_wrong_in_an_input_of_small_influence_is_found_beside_a_right_gradient(
    size: float, seed: int
) -> None:
    inner = tilted(size, 1.1)
    context = trial_of(lambda x, y: x + inner(y), point(0.3, 1.0), point(0.7, 0.2), seed=seed)
    assert [SlopeTest(context, mode).decision().verdict for mode in (REVERSE, FORWARD)] == [Verdict.PASS, Verdict.FAIL]
