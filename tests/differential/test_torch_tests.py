"""The run of PyTorch's tests on both checkers: which tests it compares, and what counts as a difference."""

from __future__ import annotations

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

    def test_without_call(self):
        pass
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
    found, summary = torch_tests.run_file(tree / "test", tree / "test" / "test_example.py", [], 120.0)
    ends = {test["name"].split("::")[-1]: (test["torch"]["outcome"], test["gradvet"]["outcome"]) for test in found}
    assert summary.startswith("4 passed")
    assert ends["test_both_pass"] == ends["test_both_refuse"] == ("passed", "passed")
    assert "test_without_call" not in ends
    assert [test["name"].split("::")[-1] for test in found if torch_tests.differs(test)] == ["test_words"]


def test_unexplained_difference_is_status_1(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert torch_tests.main([str(tree)]) == 1
    monkeypatch.setitem(TESTS, "TestExample::test_words", "torch alone says these words")
    assert torch_tests.main([str(tree)]) == 0
