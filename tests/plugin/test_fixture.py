"""The fixture `gradvet`."""

from __future__ import annotations

import pytest

from tests.plugin.suites import NATIVE, WRONG

pytest_plugins = ("pytester",)


def test_right_gradient_passes_and_wrong_one_fails(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(NATIVE)
    pytester.runpytest_inprocess().assert_outcomes(passed=1, failed=1)


def test_failure_is_told_in_gradvets_words(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_op=NATIVE)
    result = pytester.runpytest_inprocess()
    result.stdout.fnmatch_lines(
        [
            "*test_op.py:*: reverse mode disagrees with finite differences*",
            "FAIL Wrong *",
            "*output *input *derivative *finite differences ± error *ratio*",
            "*output * *input 0 * *1.1",
            "*look for a wrong constant factor*",
            "*again: gradvet.check(Wrong, inputs, seed=*)",
        ]
    )
    result.stdout.no_fnmatch_line("*api/__init__.py*")
    result.stdout.no_fnmatch_line("*raise GradientError*")


def test_summary_line_says_what_is_wrong(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    pytester.makepyfile(test_op=NATIVE)
    result = pytester.runpytest_inprocess()
    result.stdout.fnmatch_lines(["FAILED test_op.py::test_wrong - reverse mode disagrees with finite differences*"])


def test_native_tracebacks_stay_pythons(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(NATIVE)
    pytester.runpytest_inprocess("--tb=native").stdout.fnmatch_lines(["*GradientError: Wrong: FAIL*"])


def test_other_failures_are_shown_as_ever(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_plain(gradvet):\n    assert 1 == 2")
    pytester.runpytest_inprocess().stdout.fnmatch_lines(["E       assert 1 == 2"])


def test_inconclusive_check_warns(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(WRONG + "\n    def test_jump(gradvet):\n        gradvet.check(torch.floor, 0 * POINT)\n")
    result = pytester.runpytest_inprocess()
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*InconclusiveWarning: floor: the function jumps*"])


def test_inconclusive_check_fails_where_its_warning_is_an_error(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(WRONG + "\n    def test_jump(gradvet):\n        gradvet.check(torch.floor, 0 * POINT)\n")
    result = pytester.runpytest_inprocess("-W", "error::gradvet.pytest_plugin.InconclusiveWarning")
    result.assert_outcomes(failed=1)


def test_check_gives_the_report(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        WRONG
        + """
    def test_report(gradvet):
        report = gradvet.check(torch.sin, POINT, modes=("reverse",))
        assert report.verdict.value == "pass"
        assert report.title == "sin"
"""
    )
    pytester.runpytest_inprocess().assert_outcomes(passed=1)


def test_loading_the_plugin_loads_no_framework(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import sys\ndef test_light():\n    assert 'torch' not in sys.modules")
    pytester.runpytest_subprocess().assert_outcomes(passed=1)
