"""The fixture `gradient_checker`, and failures that a test ignores.

Also tests `pytest_plugin.py`.
"""

from __future__ import annotations

from importlib import import_module

import pytest

from gradvet.core.results import Verdict
from gradvet.reports.json_files import load
from tests.plugin.suites import NATIVE, WRONG

pytest_plugins = ("pytester",)


def test_kernel_is_compared_with_its_reference(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import torch

        X, DTYPES = torch.randn(8, 12), (torch.float32, torch.bfloat16)

        def test_right(gradient_checker):
            gradient_checker(torch.tanh, X, reference=torch.tanh, dtypes=DTYPES)

        def test_wrong(gradient_checker):
            gradient_checker(lambda x: torch.tanh(x) * 1.5, X, reference=torch.tanh, dtypes=DTYPES)
        """
    )
    result = pytester.runpytest_inprocess()
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*reference: float32: output is 1.5 times the reference*"])


def test_failure_is_shown_as_a_report(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    pytester.makepyfile(test_op=NATIVE)
    result = pytester.runpytest_inprocess()
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            ">   gradient_checker(Wrong, POINT)",
            "FAIL Wrong *",
            "*output *input *derivative *numerical ± error *ratio*",
            "*output * *input 0 * *1.1",
            "*look for a wrong constant factor*",
            "*reproduce: pytest test_op.py::test_wrong --gradvet-seed=*",
            "test_op.py:*",
            "FAILED test_op.py::test_wrong - Wrong: reverse mode disagrees with finite *",
        ]
    )
    result.stdout.no_fnmatch_line("*api/__init__.py*")
    result.stdout.no_fnmatch_line("*raise GradientError*")


def test_failure_shows_the_message_of_the_caller(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(NATIVE.replace("(Wrong, POINT)", "(Wrong, POINT, msg='grad[/norm] of layer 3')"))
    result = pytester.runpytest_inprocess()
    result.stdout.fnmatch_lines([">   gradient_checker(Wrong, *", "grad[[]/norm] of layer 3", "FAIL Wrong *"])


def test_native_tracebacks_are_unchanged(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(NATIVE)
    pytester.runpytest_inprocess("--tb=native").stdout.fnmatch_lines(
        ["*raise GradientError*", "*GradientError: FAIL Wrong *"]
    )


def test_other_failures_are_unchanged(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_plain(gradient_checker):\n    assert 1 == 2")
    pytester.runpytest_inprocess().stdout.fnmatch_lines(["E       assert 1 == 2"])


REFUSED = "\n    def test_refused(gradient_checker):\n        gradient_checker(torch.sin, POINT.long())\n"
BROKEN = """
    def kernel(x):
        raise RuntimeError("no such kernel")

    def test_broken(gradient_checker):
        gradient_checker(kernel, POINT)
"""


CONSTANT = "\n    import gradvet\n\n    def test_constant():\n        assert gradvet.gradcheck(torch.sin, POINT)\n"


@pytest.mark.parametrize(
    ("suite", "line"),
    [
        (REFUSED, "E * there is nothing to differentiate*"),
        (BROKEN, "E * no such kernel*"),
        (CONSTANT, "E * at least one input tensor to require gradient*"),
    ],
    ids=["a request that cannot be checked", "a function that raises", "an error of the drop-in function"],
)
def test_traceback_leaves_out_gradvets_frames(pytester: pytest.Pytester, suite: str, line: str) -> None:
    pytester.makepyfile(test_op=WRONG + suite)
    result = pytester.runpytest_inprocess()
    result.stdout.fnmatch_lines([">*grad*(*", line])
    for part in ("api", "compat", "frontends"):
        result.stdout.no_fnmatch_line(f"*gradvet/{part}/*")


UNITTEST = """
    import gradvet, unittest

    class TestConstant(unittest.TestCase):
        def test_constant(self):
            gradvet.gradcheck(torch.sin, POINT)
"""


def test_traceback_of_unittest_leaves_out_gradvets_frames_and_warnings_are_no_errors(pytester: pytest.Pytester) -> None:
    """In one process of its own: in this one another test may have hidden the frames, and torch has warned before."""
    right = "\n    def test_right(gradient_checker):\n        gradient_checker(torch.sin, POINT, order=2)\n"
    pytester.makepyfile(test_op=WRONG + right + UNITTEST)
    result = pytester.runpytest_subprocess("-W", "error")  # warnings of torch about itself do not reach the suite
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["E * at least one input tensor to require gradient*"])
    result.stdout.no_fnmatch_line("*gradvet/compat/*")


def test_traceback_of_a_mistake_inside_gradvet_has_its_frames(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_module("gradvet.compat.gradcheck"), "_check_inputs", None)
    pytester.makepyfile(test_op=WRONG + CONSTANT)
    pytester.runpytest_inprocess().stdout.fnmatch_lines(["E * not callable", "*gradvet/compat/gradcheck.py*"])


def test_full_trace_has_gradvets_frames(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_op=WRONG + REFUSED)
    pytester.runpytest_inprocess("--full-trace").stdout.fnmatch_lines(["*gradvet/frontends/*"])


JUMP = WRONG + "\n    def test_jump(gradient_checker):\n        gradient_checker(torch.floor, 0 * POINT{})\n"


def test_inconclusive_check_fails_and_says_what_was_not_compared(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    pytester.makepyfile(test_op=JUMP.format(""))
    result = pytester.runpytest_inprocess()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            ">   gradient_checker(torch.floor, 0 [*] POINT)",
            "INCONCLUSIVE floor *",
            "*not compared: input 0 in reverse and forward mode: the function jumps * (6 of 6 elements)",
            "*tensor *precision *mode *compared *resolution *verdict*",
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


def test_check_gives_the_report(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        WRONG
        + """
    def test_report(gradient_checker):
        report = gradient_checker(torch.sin, POINT, modes=("reverse",))
        assert report.verdict.value == "pass"
        assert report.title == "sin"
"""
    )
    pytester.runpytest_inprocess().assert_outcomes(passed=1)


def test_loading_the_plugin_loads_no_framework(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import sys\ndef test_light():\n    assert 'torch' not in sys.modules")
    pytester.runpytest_subprocess().assert_outcomes(passed=1)


UNREAD_WARNING = "*UnreadReportWarning: Wrong: *the test did not look at this report*"
UNREAD = (
    WRONG
    + """
    import gradvet

    def test_ignores():
        gradvet.check(Wrong, POINT)

    def test_asserts_the_failure():
        assert gradvet.check(Wrong, POINT).verdict is gradvet.Verdict.FAIL

    def test_expects_the_exception():
        import pytest
        with pytest.raises(gradvet.GradientError):
            gradvet.assert_gradients(Wrong, POINT)

    def test_right():
        gradvet.check(torch.sin, POINT)

    def test_classical():
        assert not gradvet.gradcheck(Wrong.apply, POINT.clone().requires_grad_(), raise_exception=False)
"""
)


def test_failure_that_a_test_ignores_is_a_warning(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_op=UNREAD)
    result = pytester.runpytest_inprocess()
    result.assert_outcomes(passed=5, warnings=1)
    result.stdout.fnmatch_lines([f"*test_op.py:*{UNREAD_WARNING}"])


def test_failure_warning_and_reports_arrive_from_other_processes(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    pytester.makepyfile(test_op=NATIVE, test_unread=UNREAD)
    result = pytester.runpytest_subprocess("-n", "1", "--gradvet-json=run.json")
    result.assert_outcomes(passed=6, failed=1, warnings=1)
    result.stdout.fnmatch_lines(
        [">   gradient_checker(Wrong, POINT)", "FAIL Wrong *", "*look for a wrong constant factor*"]
    )
    result.stdout.fnmatch_lines([UNREAD_WARNING])
    result.stdout.fnmatch_lines(["FAILED test_op.py::test_wrong - Wrong: reverse mode disagrees*"])
    found = {report.title: report.verdict for report in load(pytester.path / "run.json")}
    assert found["test_op.py::test_right sin"] is Verdict.PASS
    assert found["test_op.py::test_wrong Wrong"] is Verdict.FAIL


def test_failure_that_a_test_ignores_fails_in_strict_mode(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_op=UNREAD)
    result = pytester.runpytest_inprocess("--gradvet-strict")
    result.assert_outcomes(passed=4, failed=1)
    result.stdout.fnmatch_lines(
        [
            "the test did not look at this report: use the fixture gradient_checker, or gradvet.assert_gradients",
            "FAIL Wrong *",
            "*reproduce: pytest test_op.py::test_ignores --gradvet-strict",
            "*--gradvet-seed=*",
            "test_op.py:18",
            "FAILED test_op.py::test_ignores*",
        ]
    )
