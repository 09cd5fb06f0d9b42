"""What share of the changes the tests notice, by file."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Tally:
    """Of the changes that are known in a place, those that were tried and those that were noticed."""

    place: str
    known: int
    tried: int
    noticed: int

    @property
    def share(self) -> float:
        return self.noticed / self.tried if self.tried else math.nan

    @property
    def row(self) -> str:
        return f"| {self.place} | {self.known} | {self.tried} | {self.noticed} | {_percent(self.share)} |"


def total(place: str, parts: Iterable[Tally]) -> Tally:
    every = list(parts)
    return Tally(place, *(sum(getattr(part, name) for part in every) for name in ("known", "tried", "noticed")))


def estimate(parts: Iterable[Tally]) -> tuple[float, float, float]:
    """The share over all changes, each file weighed by what it has, and its interval of 95 % confidence (Wilson)."""
    tried = [part for part in parts if part.tried]
    known, n = sum(part.known for part in tried), sum(part.tried for part in tried)
    p, z = sum(part.known * part.share for part in tried) / known, 1.96
    middle, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return p, (middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)


def table(tallies: list[Tally]) -> str:
    """In the format of the documentation."""
    lines = ["| file | changes known | tried | noticed | |", "| --- | --- | --- | --- | --- |"]
    for folder in dict.fromkeys(tally.place.partition("/")[0] for tally in tallies):
        inside = [tally for tally in tallies if tally.place.startswith(f"{folder}/")]
        lines += [tally.row for tally in inside] + [total(f"**{folder}/**", inside).row]
    return "\n".join([*lines, total("**both**", tallies).row])


def sentence(tallies: list[Tally]) -> str:
    share, low, high = estimate(tallies)
    return (
        f"noticed: {_percent(share)} of all changes, each file weighed by what it has "
        f"(95 % confidence: {_percent(low)} to {_percent(high)})"
    )


def _percent(share: float) -> str:
    return f"{100.0 * share:.0f} %" if math.isfinite(share) else ""
