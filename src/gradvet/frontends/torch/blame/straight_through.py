"""Functions of stairs with a derivative, such as straight-through estimators of rounding: found and linearised.

Their derivative is no derivative of theirs. In a model it is taken as given: their values vary as it says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradvet.frontends.torch.arguments import tensors_in
from gradvet.frontends.torch.random_state import TorchRandomState, preserved_rng

SMALL_STEP = 2.0**-14
"""Step of an argument, relative to its largest element, within which a function of stairs is constant, and one that
rounds to a floating-point format is not. In formats that cannot hold it, it is eight roundoffs."""

MAX_CHANGED = 0.01
"""Part of the elements that such a step may change."""


def is_constant_in(function: Callable[..., Any], args: Sequence[Any], positions: Sequence[int]) -> bool:
    """Whether values stay the same, bit for bit, if these arguments change a little. Calls the function twice.

    A few elements may change: those that a small step takes across the edge of a stair.
    """
    results = []
    start = TorchRandomState()
    for is_moved in (False, True):
        given = [value.detach().clone() if isinstance(value, Tensor) else value for value in args]
        for tensor in tensors_in([given[position] for position in positions]):
            if tensor.is_floating_point() and tensor.numel() and is_moved:
                step = max(SMALL_STEP, 8.0 * torch.finfo(tensor.dtype).eps)
                tensor.add_(step * tensor.abs().amax())
        with preserved_rng(), torch.no_grad():
            start.restore_torch()
            results.append(tensors_in(function(*given)))
    changed = sum(int((one != other).sum()) for one, other in zip(*results, strict=True))
    return bool(changed <= MAX_CHANGED * sum(tensor.numel() for tensor in results[0]))


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
