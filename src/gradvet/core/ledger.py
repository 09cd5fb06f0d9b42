"""Ledger, notes and time budget that the checks of one report share.

The ledger says which elements of which input were compared, at which resolution, and which were not and why.

The resolution of a row is the smallest relative error of a typical entry that the comparison would have shown. A check
may pass only if its ledger is complete: every element of every row compared, with a resolution as good as asked for.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import TypeVar

Item = TypeVar("Item")

MAX_VARIATION_SECONDS = 10.0
"""Largest budget of a check for variations."""

MIN_VARIATION_SECONDS = 1.0
"""Smallest budget, so that the variations of fast functions do not depend on the load of the machine."""

COMPILE_RATIO = 4.0
"""A first call that takes this many times the next one was compiled."""


@dataclass
class VariationBudget:
    """Time for variations, which are calls with other shapes and memory layouts: as long as the rest of the check took.

    There are a smallest and a largest budget; without `is_limited` there is none.
    """

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
        return min(MAX_VARIATION_SECONDS, max(MIN_VARIATION_SECONDS, elapsed))

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
        if not self.is_limited or self.longest <= MAX_VARIATION_SECONDS:
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


GIVEN, FLOAT64, FLOAT32 = "given", "float64", "float32"
"""Names of the precisions: that of the user's inputs, and those of wider versions."""

NO_MEMORY = "no memory"
"""Why inputs were not compared that do not fit into `Budget.bytes`."""

ACCEPTED = "accuracy= hides smaller errors"
"""Why the resolution of a row is not better, if that is the error that the user accepts."""

MAX_SUGGESTED = 0.5
"""Largest resolution that is suggested to the user: beyond, a check says little."""


def suggested_resolution(seen: float) -> float | None:
    """A value of `resolution=` that accepts what was seen: a tenth more, in full percents; None beyond the limit."""
    return math.ceil(110.0 * seen) / 100.0 if seen <= MAX_SUGGESTED else None


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
    """The resolution that is asked for: `resolution`, or a few spacings of the format if that is larger."""
    reasons: tuple[str, ...] = ()
    """Why elements were not compared, or not more sharply."""

    @property
    def is_complete(self) -> bool:
        """Whether every element was compared with the resolution asked for."""
        if not self.elements:
            return True
        return self.resolution is not None and self.resolution <= self.asked and self.compared == self.elements


@dataclass
class Record:
    """Ledger, notes and time budget of one report.

    The ledger has rows by input, mode and precision, in the order in which they were opened.
    """

    notes: list[str] = field(default_factory=list)
    variations: VariationBudget = field(default_factory=VariationBudget)
    about: str = ""
    """What the notes that follow are about, where that is not the function itself."""
    _rows: dict[tuple[str, str, str], LedgerRow] = field(default_factory=dict)
    """The comparisons so far, with an infinite resolution before the first one."""

    def note(self, text: str) -> None:
        text = f"{self.about}: {text}" if self.about else text
        if text not in self.notes:
            self.notes.append(text)

    def open(self, input: str, mode: str, precision: str, elements: int, asked: float) -> bool:
        """Expect a comparison: until something is entered, the row is not compared. Returns whether the row is new."""
        row = LedgerRow(input, mode, precision, elements, elements, math.inf, asked)
        return self._rows.setdefault((input, mode, precision), row) is row

    def withdraw(self, input: str, mode: str, precision: str) -> None:
        """Remove a row whose comparison could not be made, because another finding says so."""
        self._rows.pop((input, mode, precision), None)

    def compared(self, input: str, mode: str, precision: str, resolution: float) -> None:
        """A comparison would have shown a relative error of this size; the best one counts."""
        best = min(self.resolution(input, mode, precision), resolution)
        self._rows[input, mode, precision] = replace(self._rows[input, mode, precision], resolution=best)

    def left_out(self, input: str, mode: str, precision: str, elements: int, reason: str) -> None:
        """Some elements were not compared. Those of several reasons may be the same ones: the largest number counts."""
        row = self._rows[input, mode, precision]
        reasons = tuple(dict.fromkeys((*row.reasons, reason)))
        compared = min(row.compared, row.elements - elements)
        self._rows[input, mode, precision] = replace(row, compared=compared, reasons=reasons)

    def resolution(self, input: str, mode: str, precision: str) -> float:
        """The best resolution so far; infinite where nothing was compared."""
        row = self._rows.get((input, mode, precision))
        return math.inf if row is None or row.resolution is None else row.resolution

    def rows(self) -> Iterator[LedgerRow]:
        """All rows of the ledger as plain data."""
        for key, row in self._rows.items():
            # An error of the size of the entry itself would not have been seen: that is no comparison.
            is_known = self.resolution(*key) < 1.0 and (row.compared or not row.elements)
            yield row if is_known else replace(row, compared=0, resolution=None)


@dataclass(slots=True)
class Cost:
    """How often the function and its derivatives were called."""

    forwards: int = 0
    vjps: int = field(default=0, metadata={"key": "pulls"})
    jvps: int = field(default=0, metadata={"key": "pushes"})

    # Former names, which JSON documents keep.
    pulls = property(attrgetter("vjps"))
    pushes = property(attrgetter("jvps"))
