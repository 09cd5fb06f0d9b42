"""One call and one backward pass at some point: enough to see that all numbers there are finite."""

from __future__ import annotations

import torch
from torch import Tensor

from gradvet.core.problem import Cost
from gradvet.frontends.torch.binding import Binding
from gradvet.frontends.torch.problem import differentiable, tensors_in


def is_finite(binding: Binding, most: float, cost: Cost) -> bool:
    """Whether no value and no entry of a gradient is infinite, not a number or, of values, larger than `most`.

    False where that cannot be said so quickly, whatever the reason: then it is for others to find out.
    """
    cost.forwards, cost.pulls = cost.forwards + 1, cost.pulls + 1
    sources = [binding.arguments[place] for place in binding.checked]
    try:
        live = [output for output in tensors_in(binding.function(*binding.arguments)) if differentiable(output)]
        if not live or not all(0.0 <= _size(output) <= most for output in live):
            return False
        found = torch.autograd.grad(live, sources, [torch.ones_like(output) for output in live], allow_unused=True)
        return all(_size(gradient) < torch.inf for gradient in found if gradient is not None)
    except Exception:
        return False


def _size(tensor: Tensor) -> float:
    """The largest size of a number; not a number where one of them is not; infinite where there are none."""
    if tensor.layout is not torch.strided or not tensor.numel():
        return torch.inf
    return float(tensor.detach().abs().max())
