"""Slopes, kinks and roundoff of each output along a few directions in half precision (`core/residual_sampling.py`)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gradvet.core.modes import REVERSE
from gradvet.core.residual_sampling import OutputProbes
from tests.core.contexts import context_of, point
from tests.functions import with_derivative

BF16 = torch.bfloat16


def probes_of(function: Callable[[Tensor], Tensor], *numbers: float) -> OutputProbes:
    context = context_of(function, point(*numbers, dtype=BF16))
    found = OutputProbes.along(context, slice(0, len(numbers)))
    assert found is not None
    return found


def test_outputs_with_a_kink_are_told_from_smooth_ones() -> None:
    assert probes_of(torch.relu, 0.0, 1.0, 0.0, -2.0).bent.tolist() == [True, False, True, False]


def test_roundoff_of_values_that_cancel_is_that_of_the_terms() -> None:
    plain, cancelled = probes_of(torch.sin, 0.3, 0.4), probes_of(lambda x: torch.sqrt(1 + x) - 1, 0.3, 0.4)
    assert float(plain.noise.max()) < 2.0**-7
    assert float(cancelled.noise.min()) >= 2.0**-7


@pytest.mark.parametrize(("slope", "between"), [(0.0, True), (0.5, True), (1.0, True), (2.0, False), (-1.0, False)])
def test_derivative_at_a_kink_must_lie_between_the_one_sided_slopes(slope: float, between: bool) -> None:
    function = with_derivative(torch.relu, lambda x: torch.where(x == 0, slope, (x > 0).to(x.dtype)))
    context = context_of(function, point(*[0.0] * 24, *[1.0] * 8, dtype=BF16))
    found = OutputProbes.along(context, slice(0, 32))
    assert found is not None
    assert found.lie_between(context, REVERSE) is between
