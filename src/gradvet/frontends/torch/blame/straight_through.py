"""Piecewise constant functions with a surrogate derivative J, such as rounding, in a model.

They are found, and replaced by f(x₀) + J·(x - x₀), so that the rest of the model can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradvet.core import thresholds
from gradvet.frontends.torch.arguments import map_tensors, tensors_in
from gradvet.frontends.torch.state import TorchRandomState, preserved_rng


def is_constant_in(function: Callable[..., Any], args: Sequence[Any], positions: Sequence[int]) -> bool:
    """Whether no value changes, bit for bit, both ways if these arguments change a little. Calls the function thrice.

    A value at the edge of a stair changes one way. Each element changes by another amount: a softmax does not change if
    all elements change by the same, needed by `test_wrong_softmax_is_no_surrogate`.
    """
    results = []
    start = TorchRandomState()
    for sign in (0.0, 1.0, -1.0):
        generator = torch.Generator("cpu").manual_seed(0)
        given = list(map_tensors(lambda tensor: tensor.detach().clone(), tuple(args)))
        for tensor in tensors_in([given[position] for position in positions]):
            if (tensor.is_floating_point() or tensor.is_complex()) and tensor.numel() and sign:
                step = max(thresholds.STAIR_STEP, 8.0 * torch.finfo(tensor.dtype).eps)
                amounts = torch.rand(tensor.shape, generator=generator, device="cpu").add_(0.5).to(tensor)
                tensor.add_(amounts.mul_(sign * step * tensor.abs().amax()))
        with preserved_rng(), torch.no_grad():
            start.restore_torch()
            results.append(tensors_in(function(*given)))
    return not any(bool(((here != up) & (here != down)).any()) for here, up, down in zip(*results, strict=True))


@dataclass(frozen=True, slots=True)
class Linearised:
    """A function that is constant in some arguments, by its derivative at the arguments of the first call."""

    function: Callable[..., Any]
    positions: tuple[int, ...]
    first: tuple[Tensor, ...]
    """Those arguments in the first call."""

    @classmethod
    def of(cls, function: Callable[..., Any], args: Sequence[Any]) -> Linearised | None:
        """None if the function varies with every argument that requires grad. Calls it for each of them."""
        attached = [n for n, value in enumerate(args) if isinstance(value, Tensor) and value.requires_grad]
        positions = tuple(n for n in attached if is_constant_in(function, args, [n]))
        return cls(function, positions, tuple(args[n].detach().clone() for n in positions)) if positions else None

    def value(self, args: Sequence[Any]) -> Tensor | None:
        """f(x₀) + J·(x - x₀); None if the derivative is not linear in grad_output. Calls function and derivative."""
        given = [value.detach() if isinstance(value, Tensor) else value for value in args]
        with torch.enable_grad():
            for n, first in zip(self.positions, self.first, strict=True):
                given[n] = first.to(args[n].dtype).requires_grad_()
            sources = [given[n] for n in self.positions]
            steps = [args[n].detach() - source.detach() for n, source in zip(self.positions, sources, strict=True)]
            y: Tensor = self.function(*given)
            v = torch.zeros_like(y, requires_grad=True)
            try:
                # Jᵀv is linear in v, so its VJP with a step is J·step.
                found = torch.autograd.grad(y, sources, v, create_graph=True, allow_unused=True)
                pairs = [(g, d) for g, d in zip(found, steps, strict=True) if g is not None and g.requires_grad]
                change = torch.autograd.grad([g for g, _ in pairs], v, [d for _, d in pairs])[0] if pairs else 0.0
            except RuntimeError:
                return None
        value: Tensor = y.detach() + change
        return value
