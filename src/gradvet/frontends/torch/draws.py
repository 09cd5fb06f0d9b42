"""Random numbers for the probes of a check: the same ones for a seed, drawn ahead, by few calls of torch."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gradvet.core.miss_probability import SPREAD
from gradvet.frontends.torch.coordinates import WORK

FEW = 512
"""So few numbers are drawn many times over at once: they are the next ones."""

MODERATE = 4096
"""So many are drawn twice over."""

BLOCK = 32_768
"""More are made block by block, so that no pass over them leaves the caches."""


class Law(NamedTuple):
    """How numbers are distributed: evenly over this length on either side, beyond a gap around zero."""

    length: float
    gap: Tensor | None
    times: int
    """How often few of them are drawn at once."""


EVEN = Law(SPREAD, None, 8)
"""Several directions of these add least noise to what they prove."""

APART = Law(SPREAD, torch.tensor(0.25, dtype=WORK), 8)
"""With one direction no single wrong entry may hide."""

SHARP = Law(1.0, torch.tensor(0.5, dtype=WORK), 16)
"""An entry is to be seen against error bars, so none should count for little."""


def fresh(law: Law, size: int, generator: torch.Generator) -> Tensor:
    """So many numbers, the next of the generator."""
    numbers = torch.empty(size, dtype=WORK, device=generator.device)
    numbers.uniform_(-law.length, law.length, generator=generator)
    return numbers if law.gap is None else numbers.add_(torch.copysign(law.gap, numbers))


class Draws:
    """The random numbers of one check."""

    def __init__(self, home: torch.device, seed: int) -> None:
        self._generator = torch.Generator(home).manual_seed(seed)
        self._reservoir, self._unused = torch.empty(0), 0
        self._law = EVEN

    def take(self, law: Law, size: int, scale: float = 1.0) -> Tensor:
        """Fresh numbers, each times the scale."""
        if size > MODERATE:
            return self._many(law, size, scale)
        if self._unused < size or self._law is not law:
            self._law, self._unused = law, (law.times if size <= FEW else 2) * size
            self._reservoir = fresh(law, self._unused, self._generator)
        self._unused -= size
        taken = self._reservoir[self._unused : self._unused + size]
        return taken if scale == 1.0 else taken * scale

    def _many(self, law: Law, size: int, scale: float) -> Tensor:
        # Two numbers from each word of the generator: drawing takes more time than anything that is done with them.
        device = self._generator.device
        numbers = torch.empty(size, dtype=WORK, device=device)
        length = min(size, BLOCK) if device.type == "cpu" else size
        words = torch.empty(length // 2 + 1, dtype=torch.int64, device=device)
        halves = words.view(torch.int32)
        gaps = None if law.gap is None else torch.empty(length, dtype=WORK, device=device)
        for block in numbers.split(length):
            taken = block.shape[0]
            words.random_(-(2**63), None, generator=self._generator)
            block.copy_(halves[:taken]).mul_(law.length * scale / 2**31)
            if law.gap is not None and gaps is not None:
                block.add_(torch.copysign(law.gap, block, out=gaps[:taken]), alpha=scale)
        return numbers
