"""Saves, restores and seeds the global random generators, and gives every call of a function the same start."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from gradvet.frontends.torch import private
from gradvet.frontends.torch import private_generators as generators


class TorchRandomState:
    """The state of torch's generators at one moment."""

    __slots__ = ("_cuda", "_torch")

    def __init__(self) -> None:
        self._torch = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []

    def restore_torch(self) -> None:
        torch.default_generator.set_state(self._torch)
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)


class HostRandomState:
    """The state of Python's and NumPy's global generators at one moment."""

    __slots__ = ("_numpy", "_python")

    def __init__(self) -> None:
        self._python = generators.python_state()
        self._numpy = generators.numpy_state()

    def is_current(self) -> bool:
        """Whether no number has been drawn since."""
        return self._python == generators.python_state() and (
            self._numpy is None or bool(self._numpy == generators.numpy_state())
        )

    def restore(self) -> None:
        """Write back the states that have changed."""
        if self._python != generators.python_state():
            generators.set_python_state(self._python)
        if self._numpy is not None and self._numpy != generators.numpy_state():
            generators.set_numpy_state(self._numpy)


class RandomState(TorchRandomState):
    """The state of all generators that a function may draw from, at one moment."""

    __slots__ = ("_host",)

    def __init__(self) -> None:
        super().__init__()
        self._host = HostRandomState()

    def restore(self) -> None:
        self.restore_torch()
        self._host.restore()

    def is_host_current(self) -> bool:
        """Whether no number has been drawn from Python's and NumPy's generators since."""
        return self._host.is_current()


class FixedState:
    """Gives every call of a function the same random state and the same buffers of its module."""

    def __init__(self, owner: Any) -> None:
        self._start = RandomState()
        self._draws_from_torch_alone: bool | None = None
        modules = owner.modules() if isinstance(owner, nn.Module) else ()
        self._buffers = [
            (module, name, buffer, buffer.detach().clone(), private.version(buffer))
            for module in modules
            for name, buffer in private.buffers_of(module).items()
            if buffer is not None and not buffer.is_inference()
        ]

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, called from this state."""

        def from_fixed_state(*values: Any) -> Any:
            self.restore()
            result = function(*values)
            # Seen in the first call: torch's generators alone are restored a hundred times faster.
            if self._draws_from_torch_alone is None:
                self._draws_from_torch_alone = self._start.is_host_current()
            return result

        return from_fixed_state

    def restore(self) -> None:
        """Restore the random state, and replace buffers that were changed."""
        self._start.restore_torch() if self._draws_from_torch_alone else self._start.restore()
        self._renew_buffers()

    def _renew_buffers(self) -> None:
        """Replace buffers that a call may have changed by copies of their first values."""
        for module, name, buffer, copy, version in self._buffers:
            changed = getattr(module, name) is not buffer or private.version(buffer) != version
            # In training `batch_norm` writes uncounted.
            if module.training or changed:
                setattr(module, name, copy.clone())


@contextmanager
def preserved_rng() -> Iterator[None]:
    """Restore all random states on exit."""
    state = RandomState()
    try:
        yield
    finally:
        state.restore()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed all generators on entry and restore their states on exit."""
    with preserved_rng():
        # Not torch.manual_seed, which loads the compiler (seconds).
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_available():
            torch.cuda.manual_seed_all(seed)
        random.seed(seed)
        if numpy := sys.modules.get("numpy"):
            numpy.random.seed(seed)
        yield
