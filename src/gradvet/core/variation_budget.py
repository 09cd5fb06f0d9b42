"""The time that a check may spend on other shapes, memory layouts and formats, for which kernels may be compiled."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

Item = TypeVar("Item")

MAX_SECONDS = 10.0
"""Largest budget of a check for variations."""

MIN_SECONDS = 1.0
"""Smallest budget, so that the variations of fast functions do not depend on the load of the machine."""

COMPILE_RATIO = 4.0
"""A first call that takes this many times the next one was compiled."""


@dataclass
class VariationBudget:
    """As long as the check took without its variations, within these limits."""

    clock: Callable[[], float] = time.monotonic
    is_limited: bool = True
    spent: float = 0.0
    """Seconds of the variations so far."""
    longest: float = 0.0
    """Seconds of the longest one: the next one may have to be compiled as well."""
    _started: float = field(init=False)

    def __post_init__(self) -> None:
        self._started = self.clock()

    @property
    def limit(self) -> float:
        """The budget in seconds."""
        elapsed = self.clock() - self._started - self.spent
        return min(MAX_SECONDS, max(MIN_SECONDS, elapsed))

    @property
    def is_spent(self) -> bool:
        """Whether another variation like the longest one would exceed the budget."""
        return self.is_limited and self.spent + self.longest > self.limit

    @property
    def reason(self) -> str:
        """Why variations were left out."""
        if not self.spent:
            words = f"the first call took {self.longest:.0f} s, other shapes and memory layouts may take as long"
            return f"{words}, and the budget was {self.limit:.0f} s; points='thorough' tries all"
        return (
            f"{self.spent:.0f} s were spent on other shapes and memory layouts, the budget was {self.limit:.0f} s; "
            "points='thorough' tries all"
        )

    def first(self, call: Callable[[], Item]) -> Item:
        """The result of the first call of the function: the first variation may take as long."""
        started = self.clock()
        try:
            return call()
        finally:
            self.longest = self.clock() - started

    def compiles(self, call: Callable[[], object]) -> bool:
        """Whether the first call took longer than any budget and another call does not: its kernels were compiled.

        Makes a call if the first one took that long. Needed by `test_kernel_of_long_compilation_is_not_compiled_again`.
        """
        if not self.is_limited or self.longest <= MAX_SECONDS:
            return False
        started = self.clock()
        call()
        return self.clock() - started < self.longest / COMPILE_RATIO

    def measured(self, variation: Callable[[], Item]) -> Item:
        """The result of one variation, whose time counts."""
        started = self.clock()
        try:
            return variation()
        finally:
            seconds = self.clock() - started
            self.spent, self.longest = self.spent + seconds, max(self.longest, seconds)

    def carried_out(self, variations: Mapping[str, Callable[[], Item]]) -> tuple[dict[str, Item], list[str]]:
        """The results of variations by name until the budget is spent, and the names of those left out."""
        found: dict[str, Item] = {}
        for name, variation in variations.items():
            if self.is_spent:
                return found, [other for other in variations if other not in found]
            found[name] = self.measured(variation)
        return found, []
