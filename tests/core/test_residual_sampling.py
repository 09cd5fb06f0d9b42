"""Residuals of one step: those of a right derivative are small, those of a wrong one are its error."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gradvet.core.finite_differences import Cotangent
from gradvet.core.modes import REVERSE
from gradvet.core.residual_sampling import ResidualSampling, input_direction
from gradvet.core.vectors import rms
from tests.core.contexts import context_of
from tests.functions import with_vjp

STEP = 0.25


def energy(x: Tensor) -> Tensor:
    """Odd differences of a quadratic function have no error but rounding, and its even ones are curvature alone."""
    return (1.0 + x.float().square().mean()).to(x.dtype)


def energy_with(factor: float) -> Callable[[Tensor], Tensor]:
    return with_vjp(energy, lambda v, x: (factor * v.float() * 2.0 * x.float() / x.numel()).to(x.dtype))


@pytest.mark.parametrize("is_shifted", [False, True])
@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_residuals_of_a_single_output_are_sharper_than_its_spacing(factor: float, is_shifted: bool) -> None:
    x = torch.randn(300, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16).requires_grad_()
    context = context_of(energy_with(factor), x)
    sampling = ResidualSampling(context, REVERSE, slice(0, 300), is_shifted)
    cotangent = context.cotangent(torch.ones(1, dtype=torch.float64))
    cotangents = Cotangent(cotangent.v[None], cotangent.vjp[None])
    start, errors, bends = sampling.start(), [], []
    for _ in range(20):
        u = input_direction(context, slice(0, 300))
        residual, realised, bend, centre = sampling.moved(cotangents, u, STEP, start)
        errors.append(residual - (1.0 / factor - 1.0) * realised)
        # The rest of the curvature is what the wrong derivative predicts for the mean displacement.
        curvature = STEP * float(u @ u) / 300
        bends.append(bend[1:] - curvature - (1.0 / factor - 1.0) * centre)
    spacing = torch.finfo(torch.bfloat16).eps * float(energy(x.detach()))
    assert rms(torch.stack(errors)) < 0.1 * spacing / STEP
    assert rms(torch.stack(bends)) < 0.3 * spacing / STEP
