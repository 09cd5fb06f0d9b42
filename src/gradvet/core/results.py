"""What a check found, as plain data: numbers and words only, so that it survives processes, JSON and a page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from gradvet.core.problem import Cost
from gradvet.core.spaces import Location

FORMAT = 1
"""Version of the dictionary that `Report.to_dict` gives."""


class Verdict(str, Enum):
    """What a check, or all of them together, concluded."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One entry of the Jacobian that is known in two ways which disagree."""

    output: Location
    input: Location
    derivative: float
    numerical: float
    error: float
    """The error bar of `numerical`."""
    allowed: float

    @property
    def ratio(self) -> float:
        """Derivative over numerical value; not a number where the latter is zero."""
        return self.derivative / self.numerical if self.numerical else float("nan")

    def __str__(self) -> str:
        return f"d {self.output} / d {self.input}"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check says."""

    check: str
    verdict: Verdict
    headline: str
    mismatches: tuple[Mismatch, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """All findings about one function at one point, with what they cost and how sure they are."""

    title: str
    findings: tuple[Finding, ...]
    cost: Cost
    seconds: float
    seed: int
    miss: float
    """How probable it is at most that an entry outside the tolerance was not seen."""

    @property
    def verdict(self) -> Verdict:
        verdicts = {finding.verdict for finding in self.findings}
        for verdict in (Verdict.FAIL, Verdict.INCONCLUSIVE):
            if verdict in verdicts:
                return verdict
        return Verdict.PASS

    @property
    def failures(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.verdict is Verdict.FAIL)

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON-ready values, with the version of the format."""
        return {"format": FORMAT, "verdict": self.verdict.value, **asdict(self)}

    def save(self, path: str | Path) -> None:
        """Write the report as JSON."""
        Path(path).write_text(json.dumps(self.to_dict(), indent=2, default=str))
