"""One random state for every evaluation: torch's, Python's and NumPy's generators each start from one place."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class TorchRandomState:
    """The generators of torch, as they stood at one moment."""

    __slots__ = ("_cuda", "_torch")

    def __init__(self) -> None:
        self._torch = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []

    def restore_torch(self) -> None:
        """The generators of torch alone: a hundred times cheaper than the others."""
        torch.set_rng_state(self._torch)
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)


class RandomState(TorchRandomState):
    """The generators that a function may draw from, as they stood at one moment."""

    __slots__ = ("_numpy", "_python")

    def __init__(self) -> None:
        super().__init__()
        self._python = random.getstate()
        self._numpy = numpy.random.get_state() if (numpy := _numpy()) else None

    def restore(self) -> None:
        self.restore_torch()
        random.setstate(self._python)
        if self._numpy is not None and (numpy := _numpy()):
            numpy.random.set_state(self._numpy)

    def is_torch_alone(self) -> bool:
        """Whether Python's and NumPy's generators still stand where they stood."""
        numpy = _numpy()
        if random.getstate() != self._python or (numpy is None) != (self._numpy is None):
            return False
        return numpy is None or _alike(numpy.random.get_state(), self._numpy)


@contextmanager
def forked() -> Iterator[None]:
    """Whatever is drawn inside was never drawn."""
    state = RandomState()
    try:
        yield
    finally:
        state.restore()


def _alike(one: Any, other: Any) -> bool:
    """Two states of NumPy's generator: a name, an array, and three numbers."""
    return one[2:] == other[2:] and bool((one[1] == other[1]).all())


def _numpy() -> Any:
    """NumPy where the function can have used it, that is, where somebody imported it."""
    return sys.modules.get("numpy")
