"""Other step lengths: their order, and where they end."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from gradvet.core import refinement, thresholds
from gradvet.core.context import Context
from tests.core.contexts import context_of, point


def refined(context: Context) -> Context:
    finer = refinement.refined(context)
    assert finer is not None
    return finer


def steep(x: Tensor) -> Tensor:
    """A slope of 1e12 at zero, within steps of 1e-12."""
    return functional.normalize(x, dim=0) + torch.ones_like(x)


def test_refinement_goes_from_own_sizes_to_one_to_much_less_and_then_ends() -> None:
    context = context_of(lambda x: torch.sin(x) + 200.0, point(100.0, 1e-3))
    own = refined(context)
    assert own.lengths.tolist() == [100.0, 1e-3]
    one = refined(own)
    assert one.lengths.tolist() == [1.0, 1e-3]
    assert not one.scaling.is_narrow
    narrow = refined(one)
    assert narrow.scaling.is_narrow
    assert narrow.lengths.tolist() == [thresholds.NARROW_FACTOR, 1e-3 * thresholds.NARROW_FACTOR]
    assert refinement.refined(narrow) is None


def test_step_lengths_of_coarse_formats_do_not_become_narrow() -> None:
    last = refined(refined(context_of(torch.sin, point(100.0, 1e-3, dtype=torch.float32))))
    assert refinement.refined(last) is None
    assert not last.scaling.is_narrow


def test_steep_derivative_gives_small_step_lengths_once() -> None:
    context = context_of(steep, point(0.0, 0.0))
    finer = refined(context)
    assert finer.scaling.is_steep
    assert max(finer.lengths.tolist()) < 1e-9
    assert refined(finer).scaling.is_narrow


def test_step_lengths_by_the_derivative_are_those_of_zeros_below_double_precision() -> None:
    function = lambda x: 1e-3 * torch.sin(1e4 * x)  # noqa: E731
    assert refinement.by_derivative(context_of(function, point(1.0, 2.0, dtype=torch.float32))) is None
    at_zero = refinement.by_derivative(context_of(steep, point(0.0, 0.0, dtype=torch.float32)))
    assert at_zero is not None
    assert max(at_zero.lengths.tolist()) < 1e-9


def test_other_lengths_begin_with_wider_ones_and_leave_out_the_narrow_ones() -> None:
    found = list(refinement.other_lengths(context_of(lambda x: torch.sin(x) + 5.0, point(1e-6, 2e-6))))
    assert found[0].lengths.tolist() == [1.0, 1.0]
    assert not any(other.scaling.is_narrow for other in found)
