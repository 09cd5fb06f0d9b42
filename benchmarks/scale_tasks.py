"""Functions that `benchmarks.scale` runs in other processes, which import them by name."""

from __future__ import annotations

import time

from gradvet.suite import CaseResult
from gradvet.suite.sources import Operators


def ready() -> float:
    """Seconds of CPU that this process has taken until it has the operator database."""
    next(iter(Operators("sin", samples=1).open()))
    return time.process_time()


def returned(results: list[CaseResult]) -> list[CaseResult]:
    return results
