"""One random state for every evaluation: torch's, Python's and NumPy's generators each start from one place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from gradvet.frontends.torch.generators import Generators


class TorchRandomState:
    """The generators of torch, as they stood at one moment."""

    __slots__ = ("_cuda", "_torch")

    def __init__(self) -> None:
        self._torch = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []

    def restore_torch(self) -> None:
        """The generators of torch alone: a hundred times cheaper than the others."""
        torch.default_generator.set_state(self._torch)
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)


class RandomState(TorchRandomState):
    """The generators that a function may draw from, as they stood at one moment."""

    __slots__ = ("_others",)

    def __init__(self) -> None:
        super().__init__()
        self._others = Generators()

    def restore(self) -> None:
        self.restore_torch()
        self._others.restore()

    def is_torch_alone(self) -> bool:
        """Whether Python's and NumPy's generators still stand where they stood."""
        return self._others.are_untouched()


@contextmanager
def preserved_rng() -> Iterator[None]:
    """Whatever is drawn inside was never drawn."""
    state = RandomState()
    try:
        yield
    finally:
        state.restore()
