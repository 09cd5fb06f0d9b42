"""The same RMS norm with a common mistake: backward treats the norm r as a constant."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from right import RMSNorm


class HastyRMSNorm(RMSNorm):
    """The forward of RMSNorm; the gradient of x lacks the term that goes through r."""

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor]:
        x, weight, r = ctx.saved_tensors
        dx = r * grad_output * weight
        dweight = (grad_output * x * r).sum_to_size(weight.shape)
        return dx, dweight
