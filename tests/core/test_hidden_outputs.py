"""Outputs that roundoff hides beside others (`core/refinement.py`): compared apart, or not compared."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gradvet.core.modes import REVERSE
from gradvet.core.refinement import HIDDEN, hides_gradient
from gradvet.core.results import Verdict
from gradvet.core.slope_test import SlopeTest
from tests.core.contexts import context_of
from tests.functions import with_vjp


def inputs(dtype: torch.dtype) -> Tensor:
    return torch.tensor([0.7, -1.2, 0.4, 2.1, -0.3], dtype=dtype, requires_grad=True)


def beside_a_sine(offset: float, factor: float) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """A sine, and an identity behind an offset whose gradient has a factor."""
    return with_vjp(lambda x: (torch.sin(x), offset + x), lambda v, w, x: v * torch.cos(x) + factor * w)


@pytest.mark.parametrize(("dtype", "offset"), [(torch.float64, 1e10), (torch.float32, 1e2)], ids=str)
@pytest.mark.parametrize("factor", [0.0, 1.0, 1.1])
def test_hidden_output_is_compared_over_wider_steps(dtype: torch.dtype, offset: float, factor: float) -> None:
    context = context_of(beside_a_sine(offset, factor), inputs(dtype))
    assert SlopeTest(context, REVERSE).run().verdict is (Verdict.PASS if factor == 1.0 else Verdict.FAIL)


@pytest.mark.parametrize("factor", [0.0, 1.0, 3.0])
def test_output_that_no_step_shows_is_not_compared(factor: float) -> None:
    context = context_of(beside_a_sine(1e15, factor), inputs(torch.float64))
    assert SlopeTest(context, REVERSE).run().verdict is Verdict.INCONCLUSIVE
    (row,) = context.record.rows()
    assert not row.is_complete
    assert row.reasons == (HIDDEN.format(5, 10),)


def test_input_without_a_derivative_there_stays_compared() -> None:
    context = context_of(lambda x, y: (torch.sin(x), 1e15 + y), inputs(torch.float64), inputs(torch.float64))
    assert SlopeTest(context, REVERSE).run().verdict is Verdict.INCONCLUSIVE
    assert [row.is_complete for row in context.record.rows()] == [True, False]


def test_outputs_of_moderate_size_cost_no_sweep() -> None:
    context = context_of(lambda x: (torch.sin(x), 100.0 + x), inputs(torch.float64))
    assert SlopeTest(context, REVERSE).run().verdict is Verdict.PASS
    assert context.problem.cost.forwards < 12


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_constant_and_saturated_outputs_are_not_hidden_in_half_precision(dtype: torch.dtype) -> None:
    def hides(function: Callable[[Tensor], object]) -> bool:
        context = context_of(function, inputs(dtype))
        return hides_gradient(context, REVERSE, context.first.u)

    assert not hides(lambda x: (torch.sin(x), 4000.0 + 0.0 * x))
    assert not hides(lambda x: torch.cat([torch.sin(x), torch.tanh(40.0 * x)]))
    assert hides(lambda x: (torch.sin(x), 4000.0 + x))
    assert hides(lambda x: (torch.sin(x), 4000.0 + x.detach() + 0.0 * x))


def test_outputs_of_equal_roundoff_are_not_hidden_beside_each_other() -> None:
    context = context_of(lambda x: 1e14 + x, inputs(torch.float64), resolution=1e-9)
    assert SlopeTest(context, REVERSE).run().verdict is Verdict.INCONCLUSIVE
    (row,) = context.record.rows()
    assert row.reasons == ()
