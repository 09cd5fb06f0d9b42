"""Where a loss in half precision passes from one number to the next, its value before rounding is known.

Tests `core/residual_sampling.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gradvet.core.residual_sampling import at_boundary, shift_by_a_spacing
from tests.core.contexts import context_of
from tests.functions import with_vjp

HALF = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
WHOLE = slice(0, 240)


def loss(x: Tensor) -> Tensor:
    return torch.nn.functional.softplus(x.float()).mean().to(x.dtype)


def loss_with(factor: float) -> Callable[[Tensor], Tensor]:
    def vjp(v: Tensor, x: Tensor) -> Tensor:
        return (factor * v.float() * torch.sigmoid(x.float()) / x.numel()).to(x.dtype)

    return with_vjp(loss, vjp)


def inputs(dtype: torch.dtype) -> Tensor:
    return torch.randn(240, generator=torch.Generator().manual_seed(0)).to(dtype).requires_grad_()


@HALF
@pytest.mark.parametrize("factor", [1.0, 0.1, -20.0])
def test_value_at_a_boundary_is_known_to_a_small_part_of_a_spacing(dtype: torch.dtype, factor: float) -> None:
    x = inputs(dtype)
    context = context_of(loss_with(factor), x)
    shift = shift_by_a_spacing(context, WHOLE)
    assert shift is not None
    spacing, displaced = torch.finfo(dtype).eps, []
    for _ in range(20):
        found = at_boundary(context.problem, torch.zeros(240, dtype=torch.float64), shift)
        exact = torch.nn.functional.softplus(x.detach().double() + found.displacement).mean()
        assert abs(float(found.values[0]) - float(exact)) < 0.06 * spacing
        displaced.append(float(found.displacement @ shift / (shift @ shift)))
    assert -1.2 < min(displaced) < 0.0 < max(displaced) < 1.2


@HALF
def test_several_outputs_and_constant_ones_have_no_boundaries(dtype: torch.dtype) -> None:
    assert shift_by_a_spacing(context_of(lambda x: (2.0 * x.float()).to(x.dtype), inputs(dtype)), WHOLE) is None
    constant = with_vjp(lambda x: 0.0 * x.sum() + 3.0, lambda v, x: v * torch.ones_like(x))
    assert shift_by_a_spacing(context_of(constant, inputs(dtype)), WHOLE) is None
    zero = with_vjp(lambda x: 0.0 * x.sum(), lambda v, x: v * torch.ones_like(x))
    assert shift_by_a_spacing(context_of(zero, inputs(dtype)), WHOLE) is None
