"""When two gradients that should be the same are the same."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gradvet.core.context import Context
from gradvet.core.gradient_match import gradient_mismatch, smoothed_noise
from tests.core.contexts import context_of, point
from tests.functions import with_derivative


def gap(context: Context, *factors: float) -> str | None:
    """Between the gradient and itself times these factors."""
    v, expected = context.random_vjp
    return gradient_mismatch(context, v, expected * torch.tensor(factors, dtype=torch.float64), expected)


def straight() -> Context:
    return context_of(lambda x: 3.0 * x, point(1.0, 1.0, 1.0))


@pytest.mark.parametrize("factor", [1.0, 1.0 + 2e-7, 1.0 - 2e-7])
def test_gradients_may_differ_by_a_millionth_of_the_largest_entry(factor: float) -> None:
    assert gap(straight(), factor, 1.0, 1.0) is None


@pytest.mark.parametrize("factor", [1.0 + 1e-5, 1.0 - 1e-5, 0.0, -1.0, math.nan, math.inf])
def test_entry_that_differs_more_is_named_with_both_values(factor: float) -> None:
    context = straight()
    expected = float(context.random_vjp[1][1])
    assert gap(context, 1.0, factor, 1.0) == f"at input 0 [1]: {factor * expected:.10g} instead of {expected:.10g}"


def test_worst_of_several_entries_is_named() -> None:
    found = gap(straight(), 1.01, 1.0, 1.5)
    assert found is not None
    assert found.startswith("at input 0 [2]: ")


def test_where_the_reference_is_not_finite_nothing_is_held_to_it() -> None:
    context = straight()
    v, expected = context.random_vjp
    lost = torch.tensor([math.nan, math.inf, float(expected[2])], dtype=torch.float64)
    assert gradient_mismatch(context, v, expected, lost) is None


def test_every_input_is_held_to_its_own_size() -> None:
    context = context_of(lambda x, y: x + 1e-6 * y, point(1.0), point(1.0))
    assert gap(context, 1.0, 1.0 + 1e-7) is None
    found = gap(context, 1.0, 1.001)
    assert found is not None
    assert found.startswith("at input 1 [0]: ")


def test_roundoff_of_the_input_that_matters_most_is_forgiven_to_all() -> None:
    faint = context_of(lambda x, y: x + 1e-10 * y, point(1.0), point(1.0))
    assert gap(faint, 1.0, 1.001) is None
    assert gap(faint, 1.0, 1.2) is not None


def test_gradient_that_changes_with_the_last_digit_of_the_inputs_may_differ_by_what_it_changes() -> None:
    def fast(x: Tensor) -> Tensor:
        return torch.sin(1e9 * x)

    context = context_of(fast, point(1.0, 1.0, 1.0))
    assert gap(context, 1.0 + 3e-6, 1.0, 1.0) is None
    assert gap(context, 1.0 + 1e-2, 1.0, 1.0) is not None


@pytest.mark.parametrize("factor", [1.5, 0.5])
def test_entry_that_differs_is_found_beside_one_that_is_not_finite(factor: float) -> None:
    context = straight()
    v, expected = context.random_vjp
    lost = expected * torch.tensor([math.inf, 1.0, 1.0], dtype=torch.float64)
    found = gradient_mismatch(context, v, expected * torch.tensor([1.0, 1.0, factor], dtype=torch.float64), lost)
    assert found is not None
    assert found.startswith("at input 0 [2]: ")


def test_noise_is_smoothed_by_the_median_of_the_leaf_and_of_neighbours() -> None:
    """Two of a hundred rows are noisier, as those of the tokens of a text; single estimates are zero by chance."""
    noise = torch.ones(100, 64, dtype=torch.float64)
    noise[40:42] = 1000.0
    noise[7, 3] = noise[40, 5] = noise[41, 63] = 0.0
    context = context_of(lambda x: 3.0 * x, torch.zeros(100, 64, dtype=torch.float64))
    smoothed = smoothed_noise(noise.flatten(), context.problem.domain).view(100, 64)
    assert smoothed[7, 3] == 1.0
    assert smoothed[40, 5] == smoothed[41, 63] == 1000.0
    assert smoothed[39].max() == 1.0


def test_rules_of_the_framework_that_overflow_in_one_layout_do_not_fail() -> None:
    """A rule of one's own that does fails, and so does every rule in float64."""

    def lost(function: Callable[[Tensor], Tensor], dtype: torch.dtype) -> str | None:
        context = context_of(function, point(0.3, -1.2, 0.7, dtype=dtype))
        return gap(context, 1.0, math.nan, 1.0)

    custom = with_derivative(torch.sin, torch.cos)
    assert lost(torch.sin, torch.float16) is None
    assert lost(custom, torch.float16) is not None
    assert lost(torch.sin, torch.float64) is not None
