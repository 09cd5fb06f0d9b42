"""What the residuals of many directions show: factors, dense errors and columns beside noise."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from gradvet.core.residuals import Residuals, Slopes
from gradvet.core.vectors import rms

DIRECTIONS, COTANGENTS, SHAPE, STEPS = 32, 12, (8, 10), 5


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def residuals(error: Tensor | float, noise: float, kink: float = 0.0) -> Residuals:
    """Residuals of a gradient whose entries are wrong by this part of them; noise grows as steps shrink."""
    size = math.prod(SHAPE)
    u, w = normal(DIRECTIONS, size, seed=1), normal(COTANGENTS, size, seed=2)
    wrong = w * (error * torch.ones(SHAPE, dtype=torch.float64)).reshape(-1) @ u.T
    predicted = (w @ u.T).T
    scale = noise * rms(predicted)
    at = [wrong.T + scale * 2**s * normal(DIRECTIONS, COTANGENTS, seed=10 + s) for s in range(STEPS)]
    evens = [scale * 2**s * normal(DIRECTIONS, 2 * COTANGENTS, seed=20 + s) for s in range(STEPS)]
    evens = [even + kink * torch.cat([predicted, predicted.abs()], 1) for even in evens]
    return Residuals(
        at,
        evens,
        [rms(even[:, :COTANGENTS]) for even in evens],
        [predicted] * STEPS,
        [0.0 * predicted] * STEPS,
        predicted,
        u,
        w,
        0,
    )


def test_common_factor_and_its_error_bar() -> None:
    right, wrong = residuals(0.0, 0.05).factor(), residuals(0.03, 0.05).factor()
    assert abs(right[0].value) <= right[0].error < 0.03
    assert abs(wrong[0].value - 0.03) <= wrong[0].error
    assert not right[1]


def test_dense_error_is_told_from_noise_of_its_size() -> None:
    sign = torch.sign(normal(*SHAPE, seed=3))
    for part in (0.0, 0.2):
        found = residuals(part * sign, 0.02)
        dense, explained = found.dense()
        assert (dense > explained) is bool(part)
        assert dense <= max(explained, 1.3 * part * found.size)


def test_curvature_of_wide_steps_is_no_dense_error() -> None:
    found = residuals(0.0, 0.001)
    bent = normal(DIRECTIONS, COTANGENTS, seed=4) * found.size
    curved = replace(found, at=[r + part * bent for r, part in zip(found.at, (0.9, 0.5, 0.3, 0.3, 0.0), strict=True)])
    dense, _ = curved.dense()
    assert dense < 0.05 * found.size


def test_kinks_explain_a_factor_of_their_size() -> None:
    assert residuals(0.0, 0.02).kink_factor() < 0.02
    assert 0.1 < residuals(0.0, 0.02, kink=0.1).kink_factor() < 0.15


def test_doubled_entry_is_the_worst_column() -> None:
    doubled = torch.zeros(SHAPE)
    doubled[2, 3] = 1.0
    index, _, worst, noise = residuals(doubled, 0.01).slopes((0,)).worst_column()
    assert index == 23
    assert worst > noise


def test_slopes_without_any_prediction_have_no_factor() -> None:
    zeros = torch.zeros(4, 2, dtype=torch.float64)
    slopes = Slopes(
        (0,), zeros, zeros, zeros, torch.ones(4, 3, dtype=torch.float64), torch.zeros(2, 3, dtype=torch.float64)
    )
    assert slopes.factor.error == math.inf
