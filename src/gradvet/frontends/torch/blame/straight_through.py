"""Piecewise constant functions with a surrogate derivative J, such as rounding, in a model.

They are found, and replaced by f(x₀) + J·(x - x₀), so that the rest of the model can be compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gradvet.core import thresholds
from gradvet.frontends.torch.arguments import map_tensors, tensors_in
from gradvet.frontends.torch.binding import widened_copy
from gradvet.frontends.torch.blame.source_lines import calling_line
from gradvet.frontends.torch.random_state import RandomState, preserved_rng


def is_constant_in(function: Callable[..., Any], args: Sequence[Any], positions: Sequence[int]) -> bool:
    """Whether no value changes, bit for bit, both ways if these arguments change a little. Calls the function thrice.

    In float64, if it takes that: in lower precision a large value may hide a change, needed by
    `test_large_loss_in_single_precision_is_no_surrogate`.
    A value at the edge of a stair changes one way. Each element changes by another amount: a softmax does not change if
    all elements change by the same, needed by `test_wrong_softmax_is_no_surrogate`.
    """
    try:
        return _is_constant_in(function, map_tensors(widened_copy, tuple(args)), positions)
    except Exception:
        return _is_constant_in(function, args, positions)


def _is_constant_in(function: Callable[..., Any], args: Sequence[Any], positions: Sequence[int]) -> bool:
    results = []
    start = RandomState()
    for sign in (0.0, 1.0, -1.0):
        generator = torch.Generator("cpu").manual_seed(0)
        given = list(map_tensors(lambda tensor: tensor.detach().clone(), tuple(args)))
        for tensor in tensors_in([given[position] for position in positions]):
            if (tensor.is_floating_point() or tensor.is_complex()) and tensor.numel() and sign:
                step = max(thresholds.STAIR_STEP, 8.0 * torch.finfo(tensor.dtype).eps)
                amounts = torch.rand(tensor.shape, generator=generator, device="cpu").add_(0.5).to(tensor)
                tensor.add_(amounts.mul_(sign * step * (tensor.abs().amax() or 1.0)))
        with preserved_rng(), torch.no_grad():
            start.restore()
            results.append(tensors_in(function(*given)))
    return not any(bool(((here != up) & (here != down)).any()) for here, up, down in zip(*results, strict=True))


def _linear_value(function: Callable[..., Any], args: Sequence[Any], first: Mapping[int, Tensor]) -> Tensor | None:
    """f(x₀) + J·(x - x₀) with x₀ by position of the argument; None if the derivative is not linear in grad_output.

    Calls function and derivative.
    """
    given = [value.detach() if isinstance(value, Tensor) else value for value in args]
    with torch.enable_grad():
        for n, start in first.items():
            given[n] = start.to(args[n].dtype).requires_grad_()
        sources = [given[n] for n in first]
        steps = [args[n].detach() - given[n].detach() for n in first]
        y: Tensor = function(*given)
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


@dataclass
class Stairs:
    """Functions of stairs in the calls of a model, with values that vary with the values of the first call as start.

    In each precision that of the first call in it, as the derivative is taken there. Needed by
    `test_steep_surrogates_pass_in_single_precision`.
    """

    given: dict[tuple[str, str], str] = field(default_factory=dict)
    """The lines that call functions whose derivatives were taken as given, by line and name."""
    _first: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    _positions: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    """The arguments in which functions are constant."""
    _counts: Counter[str] = field(default_factory=Counter)
    _is_first: bool = True

    def restart(self, *, is_first: bool) -> None:
        """Begin another call of the model."""
        self._is_first = is_first
        self._counts.clear()

    def varied(self, name: str, surrogate: Callable[[], Tensor], result: Tensor) -> Tensor:
        """The value of the first call plus the change of the surrogate since then, with the result's derivative."""
        with torch.no_grad():
            now = surrogate()
        place = self._place(name)
        if self._is_first:
            self._first[place] = (result.detach() - now).clone()
        if place not in self._first:
            return result
        return torch.add(result, (self._first[place].to(now.dtype) + now - result).detach())

    def linearised(self, name: str, function: Callable[..., Any], args: Sequence[Any], result: Any) -> Any:
        """The result; of a function of stairs, with values that vary as its derivative says.

        In the first call it calls the function for each argument that requires grad.
        """
        if not isinstance(result, Tensor):
            return result
        place = self._place(name)
        if self._is_first and result.requires_grad:
            attached = [n for n, value in enumerate(args) if isinstance(value, Tensor) and value.requires_grad]
            self._positions[place] = [n for n in attached if is_constant_in(function, args, [n])]
            if self._positions[place] and (line := calling_line()) is not None:
                self.given[str(line), name] = f"{line} {line.code}".strip()
        if not (positions := self._positions.get(place)):
            return result
        start = (*place, result.dtype)
        if start not in self._first:
            self._first[start] = {n: args[n].detach().clone() for n in positions}
        value = None if self._is_first else _linear_value(function, args, self._first[start])
        return result if value is None else torch.add(result, value - result.detach())

    def _place(self, name: str) -> tuple[str, int]:
        """A function, and how often it was called before in this call of the model."""
        self._counts[name] += 1
        return name, self._counts[name] - 1
