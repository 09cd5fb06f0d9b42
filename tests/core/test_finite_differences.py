"""Differences of a function: along the rounded displacement, of the right order, with error bars that cover."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from gradvet.core import thresholds
from gradvet.core.finite_differences import (
    CENTRAL,
    EXTRAPOLATED,
    SKEWED,
    Cotangent,
    DirectionalDifference,
    Stencil,
    entry_error,
    few_steps_for,
    steps_for,
)
from tests.core.contexts import context_of, point

from .wrong_jacobians import context_at, numbers

FORMATS = [torch.finfo(dtype).eps for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16)]


def test_finer_formats_have_more_steps_and_narrower_ones() -> None:
    sweeps = [steps_for(eps) for eps in FORMATS]
    for finer, coarser in pairwise(sweeps):
        assert len(finer) > len(coarser)
        assert finer[0] < coarser[0]
        assert finer[-1] < coarser[-1]


@pytest.mark.parametrize("eps", FORMATS)
def test_every_step_is_half_the_one_before(eps: float) -> None:
    steps = steps_for(eps)
    assert all(small == large / 2.0 for large, small in pairwise(steps))


@pytest.mark.parametrize("eps", FORMATS)
def test_few_steps_are_the_middle_of_a_long_sweep_and_all_of_a_short_one(eps: float) -> None:
    steps, few = steps_for(eps), few_steps_for(eps)
    left_out = (len(steps) - len(few)) // 2
    assert few == steps[left_out : len(steps) - left_out]
    assert len(few) == (len(steps) if len(steps) <= 12 else len(steps) - 2 * (len(steps) // 4))


def test_directional_difference_of_a_cubic_gives_odd_and_even_parts_at_both_steps() -> None:
    x = 2.0
    problem = context_of(lambda x: x**3, point(x)).problem
    u = torch.tensor([0.5], dtype=torch.float64)
    difference = DirectionalDifference.along(problem, u, step := 2.0**-8)
    h = step * 0.5
    assert float(difference.odd[0]) == pytest.approx((3 * x**2 * h + h**3) / step)
    assert float(difference.even[0]) == pytest.approx(3 * x * h**2 / step)
    assert float(difference.at_twice_the_step.even[0]) == pytest.approx(3 * x * (2 * h) ** 2 / (2 * step))
    assert float(difference.at_twice_the_step.odd[0]) == pytest.approx((3 * x**2 * 2 * h + (2 * h) ** 3) / (2 * step))
    assert float(difference.extrapolated[0]) == pytest.approx(3 * x**2 * 0.5, rel=1e-12)
    assert float(difference.displacement[0]) == 0.5


def test_directional_difference_evaluates_at_twice_the_step_only_on_demand_and_once() -> None:
    problem = context_of(torch.sin, point(1.0, 2.0)).problem
    before = problem.cost.forwards
    u = torch.tensor([0.5, 0.5], dtype=torch.float64)
    difference = DirectionalDifference.along(problem, u, thresholds.SCREEN_STEP)
    assert problem.cost.forwards == before + 2
    extrapolated = difference.extrapolated
    assert problem.cost.forwards == before + 4
    assert difference.extrapolated is extrapolated
    assert difference.at_twice_the_step is difference.at_twice_the_step
    assert problem.cost.forwards == before + 4


def test_first_difference_of_float64_uses_the_screen_step() -> None:
    difference = context_of(torch.sin, point(1.0)).first
    assert abs(float(difference.even[0])) == pytest.approx(
        abs(float(torch.sin(torch.tensor(1.0)))) / 2.0 * thresholds.SCREEN_STEP * float(difference.u[0]) ** 2, rel=1e-3
    )


def test_first_difference_of_a_coarse_format_uses_the_cube_root_of_its_spacing() -> None:
    difference = context_of(torch.sin, point(1.0, dtype=torch.float32)).first
    step = float(torch.finfo(torch.float32).eps) ** (1.0 / 3.0)
    bend = float(torch.sin(torch.tensor(1.0))) / 2.0 * step * float(difference.u[0]) ** 2
    assert abs(float(difference.even[0])) == pytest.approx(bend, rel=0.2)


def test_coarser_formats_need_wider_steps_to_call_a_function_constant() -> None:
    cotangent = Cotangent(*2 * [torch.ones(1, dtype=torch.float64)])
    widths = []
    for dtype in (torch.float64, torch.float32, torch.float16):
        context = context_of(torch.sin, point(1.0, dtype=dtype))
        widths.append(context.sweep_steps(context.joint_direction(), [cotangent], lambda *_: 0.0)[0].constant_step)
    assert widths[0] < widths[1] < widths[2] == math.inf


def error_along(stencil: Stencil, step: float) -> float:
    """How far a stencil is from the derivative of exp at one."""
    problem = context_at(torch.exp, torch.ones(1, dtype=torch.float64)).problem
    perturbation = problem.perturbation(torch.full((1,), step, dtype=torch.float64))
    return abs(float(problem.weighted(perturbation, *stencil)) / float(perturbation.vector) - torch.e)


@pytest.mark.parametrize(("stencil", "order"), [(CENTRAL, 2), (SKEWED, 3), (EXTRAPOLATED, 4)])
def test_error_falls_with_the_order_of_the_stencil(stencil: Stencil, order: int) -> None:
    assert error_along(stencil, 0.02) == pytest.approx(2.0**order * error_along(stencil, 0.01), rel=0.05)


@pytest.mark.parametrize("stencil", [CENTRAL, SKEWED, EXTRAPOLATED])
def test_stencil_is_right_for_lines_and_constants(stencil: Stencil) -> None:
    scales, weights = stencil
    assert sum(weights) == pytest.approx(0.0, abs=1e-15)
    assert sum(s * weight for s, weight in zip(scales, weights, strict=True)) == pytest.approx(1.0)


@pytest.mark.parametrize(("stencil", "calls"), [(CENTRAL, 2), (SKEWED, 3), (EXTRAPOLATED, 4)])
def test_value_at_the_point_is_not_evaluated_again(stencil: Stencil, calls: int) -> None:
    problem = context_at(torch.exp, numbers((3,), 0)).problem
    problem.weighted(problem.perturbation(torch.full((3,), 1e-3, dtype=torch.float64)), *stencil)
    assert problem.cost.forwards == 1 + calls


@pytest.mark.parametrize("stencil", [CENTRAL, SKEWED, EXTRAPOLATED])
def test_output_that_is_a_view_of_the_input_is_read_before_the_input_is_back(stencil: Stencil) -> None:
    problem = context_at(lambda x: x.view(3), numbers((3, 1), 0)).problem
    perturbation = problem.perturbation(torch.full((3,), 1e-3, dtype=torch.float64))
    assert torch.allclose(problem.weighted(perturbation, *stencil), perturbation.vector, rtol=1e-9, atol=0.0)


def test_difference_is_along_the_displacement_that_rounding_left() -> None:
    # Next to 10, float32 moves in steps of 9.5e-7.
    problem = context_at(lambda x: 3.0 * x.double(), torch.full((2,), 10.0)).problem
    perturbation = problem.perturbation(torch.tensor([1e-6, 2.4e-6], dtype=torch.float64))
    assert not torch.allclose(perturbation.vector, torch.tensor([1e-6, 2.4e-6], dtype=torch.float64), rtol=1e-2)
    assert torch.allclose(problem.weighted(perturbation, *CENTRAL), 3.0 * perturbation.vector, rtol=1e-12, atol=0.0)


def test_difference_covers_silent_outputs_after_the_others() -> None:
    problem = context_at(lambda x: (x.detach() * 5.0, x * 2.0), numbers((3,), 0)).problem
    perturbation = problem.perturbation(torch.full((3,), 1e-3, dtype=torch.float64))
    found = problem.weighted(perturbation, *CENTRAL) / 1e-3
    assert torch.allclose(found, torch.tensor([2.0] * 3 + [5.0] * 3, dtype=torch.float64))


@pytest.mark.parametrize("step", [1e-2, 1e-4, 1e-6, 1e-9])
def test_error_bar_of_an_entry_covers_its_error(step: float) -> None:
    def function(x: Tensor) -> Tensor:
        return torch.stack([x[0].exp() * x[1], x[0] ** 3, (7.0 * x[0]).sin(), x[1]])

    x = numbers((2,), 5)
    J = torch.autograd.functional.jacobian(function, x)
    problem = context_at(function, x.clone()).problem
    slopes = problem.weighted(problem.perturbation(torch.tensor([step, 0.0], dtype=torch.float64)), *CENTRAL) / step
    for row, slope in enumerate(slopes.tolist()):
        error = entry_error(problem, (row, 0), step, slope)
        assert abs(slope - float(J[row, 0])) <= 3.0 * error + 1e-15
        assert row == 3 or error < 0.1


def test_inputs_are_back_in_place_after_a_difference() -> None:
    x = numbers((4,), 1)
    before = x.clone()
    problem = context_at(torch.sin, x).problem
    problem.weighted(problem.perturbation(torch.full((4,), 0.1, dtype=torch.float64)), *EXTRAPOLATED)
    assert torch.equal(x.detach(), before)


def test_error_bar_of_an_entry_covers_a_step_that_rounding_changes() -> None:
    # Next to 10, float32 moves in steps of 9.5e-7.
    problem = context_at(lambda x: 30.0 * x.double(), torch.full((1,), 10.0)).problem
    slope = (
        float(problem.weighted(problem.perturbation(torch.full((1,), 1.4e-6, dtype=torch.float64)), *CENTRAL)[0])
        / 1.4e-6
    )
    assert 5.0 < abs(slope - 30.0) <= 1.01 * entry_error(problem, (0, 0), 1.4e-6, slope)
