"""Random vectors for the probes of a check, by named distribution and from a generator with its own seed."""

from __future__ import annotations

import torch
from torch import Tensor

from gradvet.core.miss_probability import SPREAD
from gradvet.core.problem import Distribution
from gradvet.frontends.torch.layouts.strided import WORKING_DTYPE

MAX_SHARED_DRAW = 512
"""Numbers up to which `SHARED_DRAWS` vectors are drawn in one call."""

MAX_DOUBLE_DRAW = 4096
"""Numbers up to which two vectors are drawn in one call."""

BLOCK_NUMBERS = 32_768
"""Longer vectors are made in blocks of this many numbers, which fit into the caches."""

SHARED_DRAWS = {Distribution.UNIFORM: 8, Distribution.APART: 8, Distribution.SHARP: 16}

HALF_WIDTHS = {Distribution.UNIFORM: SPREAD, Distribution.APART: SPREAD, Distribution.SHARP: 1.0}
"""Half the length of the interval from which numbers are drawn evenly."""

GAPS = {
    Distribution.APART: torch.tensor(0.25, dtype=WORKING_DTYPE, device="cpu"),
    Distribution.SHARP: torch.tensor(0.5, dtype=WORKING_DTYPE, device="cpu"),
}
"""By how much numbers are then moved away from zero."""


def draw(distribution: Distribution, size: int, generator: torch.Generator) -> Tensor:
    """The next `size` numbers of a generator."""
    numbers = torch.empty(size, dtype=WORKING_DTYPE, device=generator.device)
    width, gap = HALF_WIDTHS[distribution], GAPS.get(distribution)
    numbers.uniform_(-width, width, generator=generator)
    return numbers if gap is None else numbers.add_(torch.copysign(gap, numbers))


class Sampler:
    """The random numbers of one problem, drawn ahead so that short vectors cost few calls of torch."""

    def __init__(self, home: torch.device, seed: int) -> None:
        self._generator = torch.Generator(home).manual_seed(seed)
        self._reservoir, self._unused = torch.empty(0, device=home), 0
        self._distribution = Distribution.UNIFORM

    def take(self, distribution: Distribution, size: int, scale: float = 1.0) -> Tensor:
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
