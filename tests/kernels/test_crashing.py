"""Other shapes and alignments of custom kernels on an accelerator: left out by default, in a child process on request.

Covers `api/isolation.py`.

The CPU stands for the accelerator: a request without safe devices treats it as one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gradvet.api.pipeline import PipelineSettings, run_pipeline
from gradvet.api.points import PointSettings
from gradvet.api.validation import selection_of
from gradvet.core.frontend import Request
from gradvet.core.results import Finding, Report, Verdict
from gradvet.frontends.torch import FRONTEND
from gradvet.options import Options
from tests.kernels import crashing


def report_on(function: Callable[..., Any], extent: str) -> Report:
    x = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    settings = PipelineSettings(1, selection_of(("reverse",), None), PointSettings(extent))
    return run_pipeline(FRONTEND, Request(function, x, safe_devices=()), settings, Options(seed=0))


def found(report: Report, check: str) -> list[Finding]:
    return [finding for finding in report.findings if finding.check == check]


@pytest.mark.parametrize("function", [crashing.aligned, crashing.with_six_rows, crashing.not_empty])
def test_nothing_that_may_crash_runs_by_default(function: Callable[..., Any]) -> None:
    report = report_on(function, "small")
    assert report.verdict is Verdict.PASS
    for check in ("input_layout", "shapes"):
        assert "points='thorough' tries them" in found(report, check)[-1].headline
        assert found(report, check)[-1].verdict is Verdict.SKIPPED


def test_function_that_does_not_crash_passes_on_request() -> None:
    report = report_on(crashing.square, "thorough")
    assert report.verdict is Verdict.PASS
    assert "length 0 instead of 6" in found(report, "shapes")[0].facts["exercised"]
    assert any("offset" in finding.headline for finding in found(report, "input_layout"))


@pytest.mark.parametrize(
    ("function", "check", "what"),
    [
        (crashing.aligned, "input_layout", "inputs that begin elsewhere in memory"),
        (crashing.with_six_rows, "shapes", "length 5 instead of 6"),
    ],
)
def test_crash_on_request_is_a_finding(function: Callable[..., Any], check: str, what: str) -> None:
    report = report_on(function, "thorough")
    (failure,) = report.failures
    assert failure.check == check
    assert failure.headline == f"the function ends the process at {what}: SIGABRT"


def test_child_that_takes_too_long_is_inconclusive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradvet.api.isolation.MAX_CHILD_SECONDS", 1.0)
    report = report_on(crashing.slow, "thorough")
    assert report.failures == ()
    # The child may not get as far as the shapes.
    late = [finding for check in ("input_layout", "shapes") for finding in found(report, check)]
    assert [finding.verdict for finding in late if "took longer than" in finding.headline] == [Verdict.INCONCLUSIVE]


def test_function_that_cannot_be_sent_is_left_out_and_that_is_said() -> None:
    def local(x: torch.Tensor) -> torch.Tensor:
        return crashing.with_six_rows(x)

    report = report_on(local, "thorough")
    assert report.failures == ()
    for check in ("input_layout", "shapes"):
        assert "define it at the top level of a module" in found(report, check)[-1].headline


def test_function_that_the_child_cannot_load_is_left_out() -> None:
    report = report_on(crashing.Unloadable(), "thorough")
    assert report.failures == ()
    assert (
        "which cannot load the function (RuntimeError: this process cannot load it)"
        in found(report, "shapes")[-1].headline
    )


def test_builtin_rules_are_tried_in_this_process() -> None:
    report = report_on(torch.sin, "small")
    assert any("offset" in finding.headline for finding in found(report, "input_layout"))
    assert not any("in a process of its own" in line for line in report.coverage)
