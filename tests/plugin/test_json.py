"""`--gradvet-json=FILE`."""

from __future__ import annotations

import pytest

from gradvet.core.results import Verdict
from gradvet.reports.json_files import load
from tests.plugin.suites import NATIVE, WRONG

pytest_plugins = ("pytester",)


def test_file_has_every_check_of_the_run(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_op=NATIVE)
    result = pytester.runpytest_inprocess("--gradvet-json=run.json")
    result.stdout.fnmatch_lines(["*2 checks: 1 fail, 1 pass*", "wrote run.json"])
    found = {report.title: report for report in load(pytester.path / "run.json")}
    assert {title: report.verdict for title, report in found.items()} == {
        "test_op.py::test_right sin": Verdict.PASS,
        "test_op.py::test_wrong Wrong": Verdict.FAIL,
    }
    source = found["test_op.py::test_wrong Wrong"].source
    assert source is not None
    assert "def backward(ctx, dy):" in source.code
    assert "torch" in found["test_op.py::test_right sin"].environment


def test_checks_without_the_fixture_are_in_it_too(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_op=WRONG
        + """
    import gradvet

    def test_plain():
        gradvet.assert_gradients(torch.sin, POINT)
        assert gradvet.gradcheck(torch.cos, POINT.clone().requires_grad_())
"""
    )
    pytester.runpytest_inprocess("--gradvet-json=run.json").assert_outcomes(passed=1)
    assert [report.title for report in load(pytester.path / "run.json")] == [
        "test_op.py::test_plain sin",
        "test_op.py::test_plain cos",
    ]


def test_run_without_checks_writes_an_empty_file(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_nothing(): pass")
    pytester.runpytest_inprocess("--gradvet-json=run.json").assert_outcomes(passed=1)
    assert load(pytester.path / "run.json") == []
