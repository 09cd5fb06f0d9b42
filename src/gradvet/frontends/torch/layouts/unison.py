"""All arguments of a function, moved and put back at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch._C._nn import flatten_dense_tensors as side_by_side
from torch._C._nn import unflatten_dense_tensors as apart

from gradvet.core.problem import Move
from gradvet.core.spaces import Coordinates
from gradvet.frontends.torch.coordinates import is_plain
from gradvet.frontends.torch.layouts.strided import Strided


class Movable(Protocol):
    """What is needed of one argument's layout."""

    @property
    def coordinates(self) -> Coordinates: ...
    def rounded(self, displacement: Tensor) -> tuple[Any, Tensor]: ...
    def place(self, displacement: Any, scale: float) -> Any: ...
    def restore(self) -> None: ...


class Alone:
    """A single ordinary tensor of the working precision."""

    def __init__(self, layout: Strided) -> None:
        self._tensor, self._base = layout.tensor, layout.base
        self._shaped = layout.coordinates.shaped
        self._moved = False
        self.extent = _length(self._base.flatten())

    def move(self, displacement: Tensor) -> Move:
        part = (self._base + self._shaped(displacement)).sub_(self._base)
        return Move([part], part.flatten())

    def place(self, move: Move, scale: float) -> None:
        """The function is called with the tensor itself."""
        self._moved = True
        torch.add(self._base, move.parts[0], alpha=scale, out=self._tensor.data)

    def restore(self) -> None:
        if self._moved:
            self._tensor.data.copy_(self._base)
            self._moved = False

    def gathered(self, gradients: Sequence[Any]) -> Tensor | None:
        """Gradients side by side in memory of their own, if they can be put so at once."""
        (gradient,) = gradients
        if not is_plain(gradient):
            return None
        vector: Tensor = gradient.clone() if gradient.dim() == 1 else gradient.flatten().clone()
        return vector


class OneByOne:
    """Arguments of any kind."""

    extent = math.inf

    def __init__(self, layouts: Sequence[Movable]) -> None:
        self._layouts = layouts
        self._sizes = [layout.coordinates.size for layout in layouts]

    def move(self, displacement: Tensor) -> Move:
        pieces = displacement.split(self._sizes)
        rounded = [layout.rounded(piece) for layout, piece in zip(self._layouts, pieces, strict=True)]
        return Move([part for part, _ in rounded], torch.cat([vector for _, vector in rounded]))

    def place(self, move: Move, scale: float) -> Sequence[Any]:
        """What the function is called with."""
        self.restore()
        return [layout.place(part, scale) for layout, part in zip(self._layouts, move.parts, strict=True)]

    def restore(self) -> None:
        for layout in self._layouts:
            layout.restore()

    def gathered(self, gradients: Sequence[Any]) -> None:
        """None of them is known to be ordinary."""


class InUnison:
    """Several ordinary tensors of the working precision: one call for all of them, and one vector of their numbers."""

    def __init__(self, layouts: Sequence[Strided]) -> None:
        self._tensors = [layout.tensor for layout in layouts]
        self._bases = [layout.base for layout in layouts]
        self._base: Tensor = side_by_side(self._bases)
        self._moved = False
        self.extent = _length(self._base)

    def move(self, displacement: Tensor) -> Move:
        vector = (self._base + displacement).sub_(self._base)
        return Move(apart(vector, self._bases), vector)

    def place(self, move: Move, scale: float) -> None:
        """The function is called with the tensors themselves."""
        self.restore()
        self._moved = True
        # In turn, so that where the same tensor is given twice both displacements count.
        torch._foreach_add_([tensor.data for tensor in self._tensors], list(move.parts), alpha=scale)

    def restore(self) -> None:
        if self._moved:
            torch._foreach_copy_([tensor.data for tensor in self._tensors], self._bases)
            self._moved = False

    def gathered(self, gradients: Sequence[Any]) -> Tensor | None:
        if all(map(is_plain, gradients)):
            together: Tensor = side_by_side(list(gradients))
            return together
        return None


def moving(layouts: Sequence[Movable]) -> Alone | OneByOne | InUnison:
    """The quickest way to move these: always from where they were found, wherever they are.

    Its `extent` is a number that none of theirs exceeds.
    """
    ordinary = [layout for layout in layouts if isinstance(layout, Strided) and _is_ordinary(layout)]
    # Several additions may overlap elsewhere than on a CPU, and infinite numbers need care.
    if len(ordinary) == len(layouts) and (len(ordinary) == 1 or all(layout.base.is_cpu for layout in ordinary)):
        scheme = Alone(ordinary[0]) if len(ordinary) == 1 else InUnison(ordinary)
        if scheme.extent < math.inf:
            return scheme
    return OneByOne(layouts)


def _is_ordinary(layout: Strided) -> bool:
    return is_plain(layout.base) and not layout.tensor.is_neg()


def _length(vector: Tensor) -> float:
    return math.sqrt(float(vector @ vector))
