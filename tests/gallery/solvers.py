"""A linear system with a symmetric matrix, and its solution by conjugate gradients."""

from __future__ import annotations

import torch
from torch import Tensor

MATRIX = torch.randn(30, 30, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
STIFFNESS = MATRIX @ MATRIX.mT / 30 + torch.eye(30, dtype=torch.float64)


def conjugate_gradients(b: Tensor, tolerance: float) -> Tensor:
    """Stopped at the relative residual `tolerance`. The same iteration solves the adjoint system."""
    x = torch.zeros_like(b)
    residual = direction = b
    while residual.norm() > tolerance * b.norm():
        image = STIFFNESS @ direction
        step = (residual @ residual) / (direction @ image)
        x, previous, residual = x + step * direction, residual, residual - step * image
        direction = residual + (residual @ residual) / (previous @ previous) * direction
    return x


def solution(b: Tensor) -> Tensor:
    return torch.linalg.solve(STIFFNESS, b)
