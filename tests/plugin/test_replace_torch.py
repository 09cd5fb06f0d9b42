"""`--gradvet-replace-torch`."""

from __future__ import annotations

import pytest
import torch

from gradvet.core.results import Verdict
from gradvet.reports.json_files import load
from tests.plugin.suites import CLASSICAL

pytest_plugins = ("pytester",)


def test_every_gradcheck_of_the_suite_runs_on_gradvet_and_is_reported(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_op=CLASSICAL)
    result = pytester.runpytest_inprocess("--gradvet-replace-torch", "--gradvet-json=run.json")
    result.assert_outcomes(passed=3, failed=1)
    assert [(report.title, report.verdict) for report in load(pytester.path / "run.json")] == [
        ("test_op.py::test_right sin", Verdict.PASS),
        ("test_op.py::test_wrong Wrong.apply", Verdict.FAIL),
        ("test_op.py::test_refused_without_an_exception Wrong.apply", Verdict.FAIL),
        ("test_op.py::test_second_order gradient of sin", Verdict.PASS),
    ]


def test_failure_is_shown_as_a_report(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_op=CLASSICAL)
    result = pytester.runpytest_inprocess("--gradvet-replace-torch")
    result.stdout.fnmatch_lines(
        [
            ">   assert gradcheck(Wrong.apply, *",
            "FAIL Wrong.apply *",
            "*look for a wrong constant*",
            "*code: test_op.py:10",  # the line of backward
        ]
    )
    result.stdout.no_fnmatch_line("*torch/autograd/gradcheck.py*")
    result.stdout.no_fnmatch_line("*Jacobian mismatch*")  # the exception's message says the same


def test_failure_without_an_exception_is_shown_beside_the_failed_assertion(pytester: pytest.Pytester) -> None:
    assertion = "assert gradcheck(Wrong.apply, POINT.clone().requires_grad_(), raise_exception=False)"
    pytester.makepyfile(test_op=CLASSICAL + f"\n    def test_asserted():\n        {assertion}\n")
    result = pytester.runpytest_inprocess("--gradvet-replace-torch", "-k", "asserted")
    result.stdout.fnmatch_lines(
        ["E *assert False*", "*- gradvet -*", "FAIL * Wrong.apply *", "*wrong constant factor*"]
    )


def test_run_that_stops_at_the_first_failure_reports_its_checks(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_op=CLASSICAL)
    result = pytester.runpytest_inprocess("--gradvet-replace-torch", "-x")
    result.stdout.fnmatch_lines(["2 checks: 1 fail, 1 pass"])


def test_without_the_option_torch_checks(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_op=CLASSICAL)
    result = pytester.runpytest_inprocess("--gradvet-json=run.json")
    result.assert_outcomes(passed=3, failed=1)
    assert load(pytester.path / "run.json") == []


def test_torch_is_restored_after_the_run(pytester: pytest.Pytester) -> None:
    before = torch.autograd.gradcheck
    pytester.makepyfile(test_op="def test_nothing(): pass")
    pytester.runpytest_inprocess("--gradvet-replace-torch")
    assert torch.autograd.gradcheck is before
