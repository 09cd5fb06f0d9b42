"""One sample through torch's slow mode and both of gradvet's modes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.differential.samples import Sample
from tests.differential.table import Reason, reason_for
from tests.differential.verdicts import Checker, Verdict, verdict_of


@dataclass(frozen=True)
class Disagreement:
    """A verdict that is not the reference's, with the table's reason for it if there is one."""

    sample: Sample
    checker: str
    expected: Verdict
    found: Verdict
    reason: Reason | None

    def __str__(self) -> str:
        lines = [f"{self.sample.label}: torch slow says {self.expected}, {self.checker} says {self.found}"]
        if self.found.disturbed:
            lines.append(f"{self.checker} left the inputs changed")
        lines += [first_lines(verdict.message) for verdict in (self.expected, self.found) if verdict.message]
        return "\n    ".join(lines)


def disagreements(sample: Sample, reference: Checker, others: Sequence[Checker]) -> list[Disagreement]:
    """What the others say differently. To leave the inputs changed is a disagreement whatever the verdict."""
    expected = verdict_of(reference, sample)
    found = [(other.name, verdict_of(other, sample)) for other in others]
    return [
        Disagreement(
            sample, name, expected, verdict, None if verdict.disturbed else reason_for(sample, expected, verdict)
        )
        for name, verdict in found
        if verdict.disturbed or not verdict.means(expected)
    ]


def first_lines(message: str, count: int = 3) -> str:
    return "\n    ".join(line[:160] for line in message.strip().splitlines()[:count])
