"""Random numbers: the global generators saved, restored and seeded, and vectors drawn for the probes of a check."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property

import torch
from torch import Tensor

from gradvet.core.miss_probability import SPREAD
from gradvet.core.problem import Distribution
from gradvet.frontends.torch import private_state as generators
from gradvet.frontends.torch.layouts.strided import WORKING_DTYPE


class TorchRandomState:
    """The state of torch's generators at one moment."""

    __slots__ = ("_cuda", "_torch")

    def __init__(self) -> None:
        self._torch = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []

    def is_torch_current(self) -> bool:
        """Whether no number has been drawn from torch's generators since."""
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        before, now = (self._torch, *self._cuda), (torch.get_rng_state(), *cuda)
        return len(before) == len(now) and all(map(torch.equal, before, now))

    def restore_torch(self) -> None:
        torch.default_generator.set_state(self._torch)
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)


class RandomState(TorchRandomState):
    """The state of all generators that a function may draw from, those of Python and NumPy included."""

    __slots__ = ("_numpy", "_python")

    def __init__(self) -> None:
        super().__init__()
        self._python = generators.python_state()
        self._numpy = generators.numpy_state()

    def restore(self) -> None:
        """Write back the states; those of Python and NumPy where they have changed."""
        self.restore_torch()
        if self._python != generators.python_state():
            generators.set_python_state(self._python)
        if self._numpy is not None and self._numpy != generators.numpy_state():
            generators.set_numpy_state(self._numpy)

    def is_host_current(self) -> bool:
        """Whether no number has been drawn from Python's and NumPy's generators since."""
        return self._python == generators.python_state() and (
            self._numpy is None or bool(self._numpy == generators.numpy_state())
        )


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


MAX_SHARED_DRAW = 512
"""Numbers up to which `SHARED_DRAWS` vectors are drawn in one call."""

MAX_DOUBLE_DRAW = 4096
"""Numbers up to which two vectors are drawn in one call."""

BLOCK_NUMBERS = 32_768
"""Longer vectors are made in blocks of this many numbers, which fit into the caches."""

SHARED_DRAWS = {Distribution.UNIFORM: 8, Distribution.OFF_ZERO: 8, Distribution.NEAR_UNIT: 16}

HALF_WIDTHS = {Distribution.UNIFORM: SPREAD, Distribution.OFF_ZERO: SPREAD, Distribution.NEAR_UNIT: 1.0}
"""Half the length of the interval from which numbers are drawn evenly."""

GAPS = {
    Distribution.OFF_ZERO: torch.tensor(0.25, dtype=WORKING_DTYPE, device="cpu"),
    Distribution.NEAR_UNIT: torch.tensor(0.5, dtype=WORKING_DTYPE, device="cpu"),
}
"""By how much numbers are then moved away from zero."""


NO_NUMBERS = torch.empty(0, device="cpu")


def draw(distribution: Distribution, size: int, generator: torch.Generator) -> Tensor:
    """The next `size` numbers of a generator."""
    numbers = torch.empty(size, dtype=WORKING_DTYPE, device=generator.device)
    width, gap = HALF_WIDTHS[distribution], GAPS.get(distribution)
    numbers.uniform_(-width, width, generator=generator)
    return numbers if gap is None else numbers.add_(torch.copysign(gap, numbers))


class Sampler:
    """The random numbers of one problem, drawn ahead so that short vectors cost few calls of torch."""

    def __init__(self, home: torch.device, seed: int) -> None:
        self._home, self._seed = home, seed
        self._reservoir, self._unused = NO_NUMBERS, 0
        self._distribution = Distribution.UNIFORM

    @cached_property
    def _generator(self) -> torch.Generator:
        return torch.Generator(self._home).manual_seed(self._seed)

    def take(self, size: int, distribution: Distribution, scale: float = 1.0) -> Tensor:
        """A fresh vector, multiplied by the scale."""
        if size > MAX_DOUBLE_DRAW:
            return self._draw_long(distribution, size, scale)
        if self._unused < size or self._distribution is not distribution:
            times = SHARED_DRAWS[distribution] if size <= MAX_SHARED_DRAW else 2
            self._distribution, self._unused = distribution, times * size
            self._reservoir = draw(distribution, self._unused, self._generator)
        self._unused -= size
        taken = self._reservoir[self._unused : self._unused + size]
        return taken if scale == 1.0 else taken * scale

    def _draw_long(self, distribution: Distribution, size: int, scale: float) -> Tensor:
        # Two numbers from each 64-bit word: the generator takes most of the time.
        device, width, gap = self._generator.device, HALF_WIDTHS[distribution], GAPS.get(distribution)
        numbers = torch.empty(size, dtype=WORKING_DTYPE, device=device)
        length = min(size, BLOCK_NUMBERS) if device.type == "cpu" else size
        words = torch.empty(length // 2 + 1, dtype=torch.int64, device=device)
        halves = words.view(torch.int32)
        gaps = torch.empty(0 if gap is None else length, dtype=WORKING_DTYPE, device=device)
        for block in numbers.split(length):
            taken = block.shape[0]
            words.random_(-(2**63), None, generator=self._generator)
            block.copy_(halves[:taken]).mul_(width * scale / 2**31)
            if gap is not None:
                block.add_(torch.copysign(gap, block, out=gaps[:taken]), alpha=scale)
        return numbers
