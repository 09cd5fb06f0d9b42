"""The same RMS norm with a mistake that is easy to make: backward takes the norm r for a constant."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from right import RMSNorm


class HastyRMSNorm(RMSNorm):
    """The forward of RMSNorm; the gradient of x lacks the term that goes through r."""

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        x, weight, r = ctx.saved_tensors
        dx = r * dy * weight
        dweight = (dy * x * r).sum_to_size(weight.shape)
        return dx, dweight
