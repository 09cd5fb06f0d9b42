"""`--gradvet-html=FILE`."""

from __future__ import annotations

import pytest

from tests.plugin.suites import NATIVE

pytest_plugins = ("pytester",)


def test_page_has_every_check_of_the_run_and_its_folder_is_made(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_op=NATIVE)
    pytester.runpytest_inprocess("--gradvet-html=out/run.html").stdout.fnmatch_lines(["wrote out/run.html"])
    text = (pytester.path / "out" / "run.html").read_text(encoding="utf-8")
    assert "2 checks: 1 fail, 1 pass" in text
    assert "test_op.py::test_wrong Wrong" in text
    assert "test_op.py::test_right sin" in text


def test_file_that_cannot_be_written_is_a_usage_error_before_any_test_runs(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_nothing(): pass")
    (pytester.path / "taken").write_text("")
    result = pytester.runpytest_inprocess("--gradvet-html=taken/run.html")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*taken/run.html cannot be written*"])
