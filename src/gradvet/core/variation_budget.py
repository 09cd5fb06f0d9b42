"""The time that a check may spend on other shapes and memory layouts, for which kernels may have to be compiled."""

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
        return (
            f"{self.spent:.0f} s were spent on other shapes and memory layouts, the budget was {self.limit:.0f} s; "
            "points='thorough' tries all"
        )

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
