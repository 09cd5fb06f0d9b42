"""The run of PyTorch's tests on both checkers: which tests it compares, and what counts as a difference."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path

import pytest
import torch

import gradvet
from benchmarks import suites
from tests.differential import planting, torch_tests
from tests.differential.table import TESTS

SOURCE = """
import unittest

import torch
from torch.autograd import gradcheck
from torch.testing._internal.common_dtype import a_name_of_the_tree, floating_types


class TestExample(unittest.TestCase):
    x = torch.ones(3, dtype=torch.float64, requires_grad=True)

    def test_both_pass(self):
        self.assertTrue(gradcheck(torch.sin, self.x) and floating_types() and a_name_of_the_tree)

    def test_both_refuse(self):
        with self.assertRaises(RuntimeError):
            gradcheck(lambda x: x + 2 * x.detach(), self.x)

    def test_words(self):
        with self.assertRaisesRegex(RuntimeError, "The above quantities"):
            gradcheck(lambda x: x + 2 * x.detach(), self.x, fast_mode=True)

    def helper(self):
        return gradcheck(torch.cos, self.x)

    def test_by_a_helper(self):
        self.assertTrue(self.helper())

    def test_without_call(self):
        "Mentions gradcheck."

    def test_of_something_else(self):
        raise AssertionError("not run")

    def test_of_an_earlier_run(self):
        raise AssertionError("not run, though it names gradcheck")
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tree")
    (root / "test").mkdir()
    (root / "test" / "test_example.py").write_text(SOURCE)
    helpers = root / "torch" / "testing" / "_internal"
    helpers.mkdir(parents=True)
    (helpers / "common_dtype.py").write_text("a_name_of_the_tree = True")
    return root


KNOWN = "test_example.py::TestExample::test_of_an_earlier_run"
END = {"outcome": "passed", "calls": ["True"], "seconds": 0.0, "error": ""}


@pytest.fixture(scope="module")
def record(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The record of a run that goes on after one test, with planted errors, in a process of its own; what it printed.

    It ends with status 1, because of the difference in `test_words`.
    """
    path, printed = tmp_path_factory.mktemp("record") / "record.jsonl", io.StringIO()
    path.write_text(json.dumps({"name": KNOWN, "torch": END, "gradvet": END}) + "\n")
    with contextlib.redirect_stdout(printed):
        assert torch_tests.main([str(tree), "--json", str(path), "--plant", "1"]) == 1
    return path, printed.getvalue()


def short(test: torch_tests.Test) -> str:
    return str(test["name"]).split("::")[-1]


def test_tests_that_call_the_checker_run_with_both_unless_the_record_has_them(record: tuple[Path, str]) -> None:
    found = torch_tests.recorded(record[0])
    ends = {short(test): (test["torch"]["outcome"], test["gradvet"]["outcome"]) for test in found}
    assert list(ends) == [
        "test_of_an_earlier_run",
        "test_both_pass",
        "test_both_refuse",
        "test_by_a_helper",
        "test_words",
    ]
    assert ends["test_both_pass"] == ends["test_both_refuse"] == ends["test_by_a_helper"] == ("passed", "passed")
    assert [short(test) for test in found if torch_tests.differs(test)] == ["test_words"]
    assert record[1].startswith("test_example.py: 4 tests call the checker; pytest: 5 passed, 2 deselected")


def test_difference_that_the_table_explains_is_status_0(
    tree: Path, record: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_tests, "run_file", lambda *settings: ([], ""))
    assert torch_tests.main([str(tree), "--json", str(record[0])]) == 1
    monkeypatch.setitem(TESTS, "TestExample::test_words", "torch alone says these words")
    assert torch_tests.main([str(tree), "--json", str(record[0])]) == 0


def test_errors_are_planted_in_both_modes(record: tuple[Path, str]) -> None:
    said = record[1].splitlines()[-3:]
    assert said[0] == "2 errors planted; torch's slow mode refuses 2, of these gradvet accepts 0"
    assert said[1].startswith("2 errors planted; torch's fast mode refuses 2")


@pytest.mark.parametrize("fault", planting.FAULTS)
def test_planted_error_is_an_error(fault: str) -> None:
    x = torch.tensor([0.3, 0.7, 1.1], dtype=torch.float64, requires_grad=True)
    wrong = planting.planted(torch.sin, 0, planting.FAULTS[fault], 1)
    assert torch.autograd.gradcheck(torch.sin, x, check_batched_grad=True)
    assert not torch.autograd.gradcheck(wrong, x, check_batched_grad=True, raise_exception=False)
    assert torch.equal(torch.func.jvp(wrong, (x,), (torch.ones_like(x),))[1], x.cos())


def test_error_that_torch_refuses_and_gradvet_accepts_is_status_1(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = {"fault": "sign", "torch slow": "GradcheckError", "gradvet slow": "True"}
    said |= {"torch fast": "True", "gradvet fast": "True"}
    test = {"name": "test", "torch": END, "gradvet": END, "planted": [said]}
    monkeypatch.setattr(torch_tests, "run_file", lambda *settings: ([test], ""))
    assert torch_tests.main([str(tree), "--plant", "1"]) == 1
    assert "accepted: test: {'fault': 'sign'" in capsys.readouterr().out


def test_subclass_of_the_expected_exception_is_no_difference() -> None:
    refusal = suites.kind(gradvet.GradcheckError("wrong"))
    assert refusal == "GradcheckError / RuntimeError"
    assert suites.is_same("RuntimeError", refusal)
    assert suites.is_same("GradcheckError", refusal)
    assert not suites.is_same("ValueError", refusal)
    assert not suites.is_same("GradcheckError", suites.kind(RuntimeError("raised")))


def test_tests_that_call_gradcheck_through_a_helper_are_found(tmp_path: Path) -> None:
    for name, text in {
        "tests/_helpers/testers.py": "def check(f, x): gradcheck(f, x)",
        "tests/regression/test_error.py": "from tests._helpers.testers import check",
        "tests/test_other.py": "import math",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert [file.name for file in suites.test_files(tmp_path)] == ["test_error.py"]
