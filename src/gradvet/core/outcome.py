"""What the scrutiny of one mode came to."""

from __future__ import annotations

from dataclasses import dataclass

from gradvet.core.judgement import Reason
from gradvet.core.pinpoint import Entry
from gradvet.core.results import Verdict


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the scrutiny of one mode came to."""

    verdict: Verdict
    reason: Reason
    entry: Entry | None = None
    error: float = 0.0
    bar: float = 0.0
