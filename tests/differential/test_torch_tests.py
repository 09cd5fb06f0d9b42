"""The run of PyTorch's tests on both checkers: which tests it compares, and what counts as a difference."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.differential import torch_tests
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
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "test_example.py").write_text(SOURCE)
    helpers = tmp_path / "torch" / "testing" / "_internal"
    helpers.mkdir(parents=True)
    (helpers / "common_dtype.py").write_text("a_name_of_the_tree = True")
    return tmp_path


def test_tests_that_call_the_checker_run_with_both(tree: Path) -> None:
    found, summary = torch_tests.run_file(tree / "test", tree / "test" / "test_example.py", [], 3600.0)
    ends = {test["name"].split("::")[-1]: (test["torch"]["outcome"], test["gradvet"]["outcome"]) for test in found}
    assert summary.startswith("5 passed, 1 deselected")
    assert ends["test_both_pass"] == ends["test_both_refuse"] == ("passed", "passed")
    assert ends["test_by_a_helper"] == ("passed", "passed")
    assert "test_without_call" not in ends
    assert [test["name"].split("::")[-1] for test in found if torch_tests.differs(test)] == ["test_words"]


def test_long_run_goes_on_with_tests_that_the_record_lacks(tree: Path, tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"
    part = [str(tree), "--json", str(record), "--pytest", "-k 'both or words'"]
    assert torch_tests.main(part) == 1
    assert torch_tests.main(part[:3]) == 1
    names = [json.loads(line)["name"].split("::")[-1] for line in record.read_text().splitlines()]
    assert names == ["test_both_pass", "test_both_refuse", "test_words", "test_by_a_helper"]


def test_unexplained_difference_is_status_1(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    once = torch_tests.run_file(tree / "test", tree / "test" / "test_example.py", [], 3600.0)
    monkeypatch.setattr(torch_tests, "run_file", lambda *settings: once)
    assert torch_tests.main([str(tree)]) == 1
    monkeypatch.setitem(TESTS, "TestExample::test_words", "torch alone says these words")
    assert torch_tests.main([str(tree)]) == 0
