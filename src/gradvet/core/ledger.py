"""What the checks of a report write down: the ledger and notes.

The ledger says which elements of which input were compared, at which resolution, and which were not and why.

The resolution of a row is the smallest relative error of a typical entry that the comparison would have shown. A check
may pass only if its ledger is complete: every element of every row compared, with a resolution as good as asked for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from gradvet.core.variation_budget import VariationBudget

MAX_SUGGESTED = 0.5
"""Largest resolution that is suggested to the user: beyond, a check says little."""


def suggested_resolution(seen: float) -> float | None:
    """What to pass as `resolution=` to accept what was seen: a tenth more, in full percents; None beyond the limit."""
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
