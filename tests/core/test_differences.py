"""Differences of a function: of the right order, with error bars that cover, along what was really walked."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gradvet.core.finite_differences import CENTRAL, EXTRAPOLATED, SKEWED, Stencil, column

from .planted import context, numbers


def error_along(stencil: Stencil, step: float) -> float:
    """How far a stencil is from the derivative of exp at one."""
    problem = context(torch.exp, torch.ones(1, dtype=torch.float64)).problem
    move = problem.move(torch.full((1,), step, dtype=torch.float64))
    return abs(float(stencil.along(problem, move)) / float(move.vector) - torch.e)


@pytest.mark.parametrize(("stencil", "order"), [(CENTRAL, 2), (SKEWED, 3), (EXTRAPOLATED, 4)])
def test_error_falls_with_the_order_of_the_stencil(stencil: Stencil, order: int) -> None:
    assert error_along(stencil, 0.02) == pytest.approx(2.0**order * error_along(stencil, 0.01), rel=0.05)


@pytest.mark.parametrize("stencil", [CENTRAL, SKEWED, EXTRAPOLATED])
def test_stencil_is_right_for_lines_and_constants(stencil: Stencil) -> None:
    assert sum(stencil.weights) == pytest.approx(0.0, abs=1e-15)
    assert sum(s * weight for s, weight in zip(stencil.scales, stencil.weights, strict=True)) == pytest.approx(1.0)


@pytest.mark.parametrize(("stencil", "calls"), [(CENTRAL, 2), (SKEWED, 3), (EXTRAPOLATED, 4)])
def test_value_at_the_point_is_not_evaluated_again(stencil: Stencil, calls: int) -> None:
    problem = context(torch.exp, numbers((3,), 0)).problem
    stencil.along(problem, problem.move(torch.full((3,), 1e-3, dtype=torch.float64)))
    assert problem.cost.forwards == 1 + calls


@pytest.mark.parametrize("stencil", [CENTRAL, SKEWED, EXTRAPOLATED])
def test_output_that_is_a_view_of_the_input_is_read_before_the_input_is_back(stencil: Stencil) -> None:
    problem = context(lambda x: x.view(3), numbers((3, 1), 0)).problem
    move = problem.move(torch.full((3,), 1e-3, dtype=torch.float64))
    assert torch.allclose(stencil.along(problem, move), move.vector, rtol=1e-9, atol=0.0)


def test_difference_is_along_the_displacement_that_rounding_left() -> None:
    # Next to 10, float32 moves in steps of 9.5e-7.
    problem = context(lambda x: 3.0 * x.double(), torch.full((2,), 10.0)).problem
    move = problem.move(torch.tensor([1e-6, 2.4e-6], dtype=torch.float64))
    assert not torch.allclose(move.vector, torch.tensor([1e-6, 2.4e-6], dtype=torch.float64), rtol=1e-2)
    assert torch.allclose(CENTRAL.along(problem, move), 3.0 * move.vector, rtol=1e-12, atol=0.0)


def test_difference_covers_silent_outputs_after_the_others() -> None:
    problem = context(lambda x: (x.detach() * 5.0, x * 2.0), numbers((3,), 0)).problem
    move = problem.move(torch.full((3,), 1e-3, dtype=torch.float64))
    found = CENTRAL.along(problem, move) / 1e-3
    assert torch.allclose(found, torch.tensor([2.0] * 3 + [5.0] * 3, dtype=torch.float64))


@pytest.mark.parametrize("step", [1e-2, 1e-4, 1e-6, 1e-9])
def test_error_bar_of_a_column_covers_its_error(step: float) -> None:
    def function(x: Tensor) -> Tensor:
        return torch.stack([x[0].exp() * x[1], x[0] ** 3, (7.0 * x[0]).sin(), x[1]])

    x = numbers((2,), 5)
    J = torch.autograd.functional.jacobian(function, x)
    found = column(context(function, x.clone()).problem, 0, step)
    assert bool(torch.all((found.value - J[:, 0]).abs() <= 3.0 * found.error + 1e-15))
    assert bool(torch.all(found.error[:3] < 0.1))


def test_inputs_are_back_in_place_after_a_difference() -> None:
    x = numbers((4,), 1)
    before = x.clone()
    problem = context(torch.sin, x).problem
    EXTRAPOLATED.along(problem, problem.move(torch.full((4,), 0.1, dtype=torch.float64)))
    assert torch.equal(x.detach(), before)


def test_error_bar_of_a_column_covers_a_step_that_rounding_changes() -> None:
    # Next to 10, float32 moves in steps of 9.5e-7.
    problem = context(lambda x: 30.0 * x.double(), torch.full((1,), 10.0)).problem
    found = column(problem, 0, 1.4e-6)
    off = abs(float(found.value[0]) - 30.0)
    assert 5.0 < off <= 1.01 * float(found.error[0])
