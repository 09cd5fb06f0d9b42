"""The fixture `gradvet`.

Also tests `pytest_plugin.py`.
"""

from __future__ import annotations

import importlib
import inspect

import pytest

from tests.plugin.suites import NATIVE, WRONG

pytest_plugins = ("pytester",)


def test_right_gradient_passes_and_wrong_one_fails(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(NATIVE)
    pytester.runpytest_inprocess().assert_outcomes(passed=1, failed=1)


def test_failure_is_shown_as_a_report(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_op=NATIVE)
    result = pytester.runpytest_inprocess()
    result.stdout.fnmatch_lines(
        [
            ">   gradvet.check(Wrong, POINT)",
            "FAIL Wrong *",
            "*output *input *derivative *numerical ± error *ratio*",
            "*output * *input 0 * *1.1",
            "*look for a wrong constant factor*",
            "*reproduce: pytest test_op.py::test_wrong --gradvet-seed=*",
            "test_op.py:*",
        ]
    )
    result.stdout.no_fnmatch_line("*api/__init__.py*")
    result.stdout.no_fnmatch_line("*raise GradientError*")


def test_summary_line_says_what_is_wrong(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    pytester.makepyfile(test_op=NATIVE)
    result = pytester.runpytest_inprocess()
    result.stdout.fnmatch_lines(["FAILED test_op.py::test_wrong - Wrong: reverse mode disagrees with finite *"])


def test_native_tracebacks_are_unchanged(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(NATIVE)
    pytester.runpytest_inprocess("--tb=native").stdout.fnmatch_lines(
        ["*raise GradientError*", "*GradientError: FAIL Wrong *"]
    )


def test_other_failures_are_unchanged(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_plain(gradvet):\n    assert 1 == 2")
    pytester.runpytest_inprocess().stdout.fnmatch_lines(["E       assert 1 == 2"])


REFUSED = "\n    def test_refused(gradvet):\n        gradvet.check(torch.sin, POINT.long())\n"
BROKEN = """
    def kernel(x):
        raise RuntimeError("no such kernel")

    def test_broken(gradvet):
        gradvet.check(kernel, POINT)
"""


@pytest.mark.parametrize(
    ("suite", "line"),
    [(REFUSED, "E * there is nothing to differentiate*"), (BROKEN, "E * no such kernel*")],
    ids=["a request that cannot be checked", "a function that raises"],
)
def test_traceback_leaves_out_gradvets_frames(pytester: pytest.Pytester, suite: str, line: str) -> None:
    pytester.makepyfile(test_op=WRONG + suite)
    result = pytester.runpytest_inprocess()
    result.stdout.fnmatch_lines([">*gradvet.check(*", line])
    result.stdout.no_fnmatch_line("*gradvet/api/*")
    result.stdout.no_fnmatch_line("*gradvet/frontends/*")


def test_full_trace_has_gradvets_frames(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_op=WRONG + REFUSED)
    pytester.runpytest_inprocess("--full-trace").stdout.fnmatch_lines(["*gradvet/frontends/*"])


def test_failure_and_its_summary_arrive_from_other_processes(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    pytester.makepyfile(test_op=NATIVE)
    result = pytester.runpytest_subprocess("-n", "1")
    result.stdout.fnmatch_lines(
        [">   gradvet.check(Wrong, POINT)", "FAIL Wrong *", "*look for a wrong constant factor*"]
    )
    result.stdout.fnmatch_lines(["FAILED test_op.py::test_wrong - Wrong: reverse mode disagrees*"])


def test_fixture_has_the_rest_of_the_package_too(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        WRONG
        + """
    def test_classical(gradvet):
        assert gradvet.gradcheck(torch.sin, POINT.clone().requires_grad_())
"""
    )
    pytester.runpytest_inprocess().assert_outcomes(passed=1)


def test_warnings_of_torch_about_itself_do_not_reach_a_strict_suite(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(WRONG + "\n    def test_right(gradvet):\n        gradvet.check(torch.sin, POINT, order=2)\n")
    pytester.runpytest_subprocess("-W", "error").assert_outcomes(passed=1)


JUMP = WRONG + "\n    def test_jump(gradvet):\n        gradvet.check(torch.floor, 0 * POINT{})\n"


def test_inconclusive_check_fails_and_says_what_was_not_compared(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    pytester.makepyfile(test_op=JUMP.format(""))
    result = pytester.runpytest_inprocess()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            ">   gradvet.check(torch.floor, 0 [*] POINT)",
            "INCONCLUSIVE floor *",
            "*not compared: input 0 in reverse and forward mode: the function jumps * (6 of 6 elements)",
            "*input *precision *mode *compared *resolution *verdict*",
            "*input 0 *given *reverse *0/6 * not compared",
            '*pass inconclusive="warn" or inconclusive="ignore".',
            "test_op.py:*",
            "FAILED test_op.py::test_jump - floor: the function jumps at the point*",
        ]
    )


def test_inconclusive_check_warns_if_asked_to(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(JUMP.format(', inconclusive="warn"'))
    result = pytester.runpytest_inprocess()
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*InconclusiveWarning: floor: the function jumps*"])


def test_inconclusive_check_fails_where_its_warning_is_an_error(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(JUMP.format(', inconclusive="warn"'))
    result = pytester.runpytest_inprocess("-W", "error::gradvet.pytest_plugin.InconclusiveWarning")
    result.assert_outcomes(failed=1)


def test_inconclusive_check_can_be_ignored(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(JUMP.format(', inconclusive="ignore"'))
    pytester.runpytest_inprocess("-W", "error::gradvet.InconclusiveWarning").assert_outcomes(passed=1)


def test_fixture_checks_with_the_signature_of_assert_gradients() -> None:
    import gradvet

    fixture = importlib.import_module("gradvet.pytest_plugin").GradvetFixture()
    assert inspect.signature(fixture.check) == inspect.signature(gradvet.assert_gradients)


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
