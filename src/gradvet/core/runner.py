"""Runs checks one after the other and gathers what they find."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from gradvet.core.experiment import Experiment
from gradvet.core.results import Finding, Report, Verdict

Check = Callable[[Experiment], Iterable[Finding]]


def run(title: str, experiment: Experiment, checks: Iterable[Check]) -> Report:
    """The findings of the checks in their order, up to the first failure."""
    started = time.perf_counter()
    findings = tuple(_until_failure(experiment, checks))
    misses = [finding.facts["miss"] for finding in findings if "miss" in finding.facts]
    return Report(
        title=title,
        findings=findings,
        cost=experiment.problem.cost,
        seconds=time.perf_counter() - started,
        seed=experiment.options.seed,
        miss=max(misses, default=0.0),
    )


def _until_failure(experiment: Experiment, checks: Iterable[Check]) -> Iterator[Finding]:
    for check in checks:
        for finding in check(experiment):
            yield finding
            if finding.verdict is Verdict.FAIL:
                return
