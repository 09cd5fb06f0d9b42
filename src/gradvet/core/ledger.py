"""What the checks of a report write down: ledger, notes, and the time spent on variations.

The ledger says which elements of which input were compared, at which resolution, and which were not and why.

The resolution of a row is the smallest relative error of a typical entry that the comparison would have shown. A check
may pass only if its ledger is complete: every element of every row compared, with a resolution as good as asked for.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
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


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One input in one mode and one precision."""

    input: str
    mode: str
    precision: str
    elements: int
    """Real coordinates of the input."""
    compared: int
    resolution: float | None
    """None where nothing was compared."""
    asked: float
    """The resolution that is asked for: `power`, or a few spacings of the format if that is larger."""
    reasons: tuple[str, ...] = ()
    """Why elements were not compared."""

    @property
    def is_complete(self) -> bool:
        """Whether every element was compared with the resolution asked for."""
        if not self.elements:
            return True
        return self.resolution is not None and self.resolution <= self.asked and self.compared == self.elements


@dataclass
class _Account:
    """What is known so far about one row."""

    elements: int
    asked: float
    resolution: float = math.inf
    left_out: dict[str, int] = field(default_factory=dict)


class Ledger:
    """Rows by input, mode and precision, in the order in which they were opened."""

    def __init__(self) -> None:
        self._accounts: dict[tuple[str, str, str], _Account] = {}

    def open(self, input: str, mode: str, precision: str, elements: int, asked: float) -> bool:
        """Expect a comparison: until something is entered, the row is not compared. Returns whether the row is new."""
        account = _Account(elements, asked)
        return self._accounts.setdefault((input, mode, precision), account) is account

    def withdraw(self, input: str, mode: str, precision: str) -> None:
        """Remove a row whose comparison could not be made, because another finding says so."""
        self._accounts.pop((input, mode, precision), None)

    def compared(self, input: str, mode: str, precision: str, resolution: float) -> None:
        """A comparison would have shown a relative error of this size; the best one counts."""
        account = self._accounts[input, mode, precision]
        account.resolution = min(account.resolution, resolution)

    def left_out(self, input: str, mode: str, precision: str, elements: int, reason: str) -> None:
        """Some elements were not compared."""
        self._accounts[input, mode, precision].left_out[reason] = elements

    def resolution(self, input: str, mode: str, precision: str) -> float:
        """The best resolution so far; infinite where nothing was compared."""
        account = self._accounts.get((input, mode, precision))
        return math.inf if account is None else account.resolution

    def rows(self) -> Iterator[LedgerRow]:
        """All rows as plain data."""
        for (input, mode, precision), account in self._accounts.items():
            # An error of the size of the entry itself would not have been seen: that is no comparison.
            known = account.resolution < 1.0
            missing = min(account.elements, sum(account.left_out.values())) if known else account.elements
            yield LedgerRow(
                input,
                mode,
                precision,
                account.elements,
                account.elements - missing,
                account.resolution if known else None,
                account.asked,
                tuple(account.left_out),
            )


@dataclass
class Record:
    """What the checks of one report wrote down."""

    ledger: Ledger = field(default_factory=Ledger)
    notes: list[str] = field(default_factory=list)
    variations: VariationBudget = field(default_factory=VariationBudget)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)
