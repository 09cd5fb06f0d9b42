"""Which stored numbers of a tensor are coordinates, and how they are moved.

A layout is bound to one argument of the function. It is the only place that knows how the tensor is stored.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from gradvet.core.spaces import Coordinates
from gradvet.errors import InvalidProblemError
from gradvet.frontends.torch.layouts.mkldnn import Mkldnn
from gradvet.frontends.torch.layouts.strided import Strided


class Layout(Protocol):
    """One argument of the function, as coordinates that can be moved."""

    @property
    def coordinates(self) -> Coordinates: ...
    @property
    def independent(self) -> bool:
        """Whether moving one coordinate leaves the others where they are."""
        ...

    def rounded(self, displacement: Tensor) -> Tensor:
        """A vector of coordinates as a displacement of the stored numbers, with what is left of it after rounding."""
        ...

    def place(self, displacement: Tensor, scale: float) -> Any:
        """Move by so much of a rounded displacement; gives what the function is to be called with."""
        ...

    def restore(self) -> None:
        """Put the argument back, bit for bit."""
        ...

    def coarseness(self, step: float) -> float:
        """By how much of itself rounding may change a step of this size."""
        ...

    def dual(self, tangent: Tensor | None) -> Tensor:
        """The argument for forward mode: detached, with a tangent (a tensor like it) or without."""
        ...

    def misfits(self, gradient: Any) -> list[tuple[str, str, str]]:
        """(attribute, found, expected) wherever a gradient is not like the argument."""
        ...


def layout_of(tensor: Any, home: torch.device) -> Layout:
    """The layout of an argument."""
    if tensor.layout is torch.strided:
        return Strided(tensor, home)
    if tensor.layout is torch._mkldnn:  # type: ignore[attr-defined]
        return Mkldnn(tensor, home)
    raise InvalidProblemError(f"tensors of layout {tensor.layout} cannot be checked yet")
