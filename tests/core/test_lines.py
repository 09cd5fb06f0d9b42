"""The walks and their steps."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch

from gradvet.core.finite_differences import NEAR, Prediction, few_steps_for, near, steps_for
from tests.core.trials import point, trial_of

FORMATS = [torch.finfo(dtype).eps for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16)]


def test_finer_formats_have_more_steps_and_narrower_ones() -> None:
    ladders = [steps_for(eps) for eps in FORMATS]
    for finer, coarser in pairwise(ladders):
        assert len(finer) > len(coarser)
        assert finer[0] < coarser[0]
        assert finer[-1] < coarser[-1]


@pytest.mark.parametrize("epsilon", FORMATS)
def test_every_step_is_half_the_one_before(eps: float) -> None:
    steps = steps_for(eps)
    assert all(small == large / 2.0 for large, small in pairwise(steps))


@pytest.mark.parametrize("epsilon", FORMATS)
def test_few_steps_are_the_middle_of_a_long_ladder_and_all_of_a_short_one(eps: float) -> None:
    steps, few = steps_for(eps), few_steps_for(eps)
    left_out = (len(steps) - len(few)) // 2
    assert few == steps[left_out : len(steps) - left_out]
    assert len(few) == (len(steps) if len(steps) <= 12 else len(steps) - 2 * (len(steps) // 4))


def test_near_walk_of_a_cubic_gives_its_slopes_and_bends_at_both_steps() -> None:
    x = 2.0
    problem = trial_of(lambda x: x**3, point(x)).problem
    u = torch.tensor([0.5], dtype=torch.float64)
    difference = near(problem, u, step := 2.0**-8)
    h = step * 0.5
    assert float(difference.odd[0]) == pytest.approx((3 * x**2 * h + h**3) / step)
    assert float(difference.even[0]) == pytest.approx(3 * x * h**2 / step)
    assert float(difference.far[1][0]) == pytest.approx(3 * x * (2 * h) ** 2 / (2 * step))
    assert float(difference.slope[0]) == float(difference.odd[0])
    assert float(difference.extrapolated().slope[0]) == pytest.approx(3 * x**2 * 0.5, rel=1e-12)
    assert float(difference.displacement[0]) == 0.5


def test_near_walk_goes_twice_as_far_only_when_asked_and_once() -> None:
    problem = trial_of(torch.sin, point(1.0, 2.0)).problem
    before = problem.cost.forwards
    difference = near(problem, torch.tensor([0.5, 0.5], dtype=torch.float64))
    assert problem.cost.forwards == before + 2
    difference.extrapolated()
    assert problem.cost.forwards == before + 4
    assert difference.extrapolated().far is difference.far
    assert problem.cost.forwards == before + 4


def test_near_walk_is_as_near_as_float64_allows() -> None:
    difference = trial_of(torch.sin, point(1.0)).first
    assert abs(float(difference.even[0])) == pytest.approx(
        abs(float(torch.sin(torch.tensor(1.0)))) / 2.0 * NEAR * float(difference.u[0]) ** 2, rel=1e-3
    )


def test_near_walk_of_a_coarse_format_takes_the_cube_root_of_its_roundoff() -> None:
    difference = trial_of(torch.sin, point(1.0, dtype=torch.float32)).first
    step = float(torch.finfo(torch.float32).eps) ** (1.0 / 3.0)
    bend = float(torch.sin(torch.tensor(1.0))) / 2.0 * step * float(difference.u[0]) ** 2
    assert abs(float(difference.even[0])) == pytest.approx(bend, rel=0.2)


def test_coarser_formats_need_a_wider_stair_to_call_it_the_functions_own() -> None:
    prediction = Prediction(torch.ones(1, dtype=torch.float64), lambda displacement, t: 0.0)
    widths = []
    for dtype in (torch.float64, torch.float32, torch.float16):
        context = trial_of(torch.sin, point(1.0, dtype=dtype))
        widths.append(context.sweep_steps(context.joint_direction(), [prediction])[0].flat)
    assert widths[0] < widths[1] < widths[2] == math.inf
