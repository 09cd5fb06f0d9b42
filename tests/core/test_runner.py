"""Checks run in order, up to the first failure."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from gradvet.core.context import Context
from gradvet.core.results import Finding, Report, Verdict
from gradvet.core.runner import Check, run
from gradvet.errors import GradientError

from .planted import context, numbers


def check(name: str, *verdicts: Verdict, miss: float | None = None) -> Check:
    def found(context: Context) -> Iterator[Finding]:
        for verdict in verdicts:
            yield Finding(name, verdict, name, facts={} if miss is None else {"miss": miss})

    return found


def report(*checks: Check) -> Report:
    return run("title", context(torch.sin, numbers((3,), 0), seed=7), checks)


def test_findings_come_in_the_order_of_the_checks() -> None:
    found = report(check("a", Verdict.PASS, Verdict.PASS), check("nothing"), check("b", Verdict.PASS))
    assert [finding.check for finding in found.findings] == ["a", "a", "b"]
    assert found.verdict is Verdict.PASS
    assert found.failures == ()
    found.raise_if_failed()


def test_nothing_runs_after_a_failure() -> None:
    found = report(check("a", Verdict.PASS), check("b", Verdict.FAIL, Verdict.PASS), check("c", Verdict.FAIL))
    assert [finding.check for finding in found.findings] == ["a", "b"]
    assert found.verdict is Verdict.FAIL
    assert [finding.check for finding in found.failures] == ["b"]
    with pytest.raises(GradientError) as caught:
        found.raise_if_failed()
    assert caught.value.report is found


def test_miss_probability_of_a_report_is_that_of_its_weakest_finding() -> None:
    assert report(check("a", Verdict.PASS, miss=1e-9), check("b", Verdict.PASS, miss=1e-3)).miss == 1e-3
    assert report(check("a", Verdict.PASS)).miss == 0.0


def test_report_has_seed_and_cost() -> None:
    found = report(check("a", Verdict.PASS))
    assert found.seed == 7
    assert found.cost.forwards == 1
    assert found.seconds >= 0.0


def test_seconds_of_a_report_are_those_between_its_beginning_and_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(perf_counter=iter([100.0, 102.5]).__next__)
    monkeypatch.setattr("gradvet.core.runner.time", clock)
    assert report(check("a", Verdict.PASS)).seconds == 2.5
