"""The demonstration and the examples of the docstrings run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gradvet

ROOT = Path(__file__).parent.parent


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, arguments)], capture_output=True, text=True, cwd=ROOT, timeout=600, check=False
    )


def test_demonstration_accepts_the_right_gradient_and_refuses_the_wrong_one() -> None:
    answer = run("examples/demo.py")
    assert answer.returncode == 0, answer.stderr
    right, wrong = answer.stdout.split("wrong.py, HastyRMSNorm: the gradients are wrong")
    assert right.startswith("right.py, RMSNorm: the gradients are right\n\nPASS RMSNorm")
    assert "its off-diagonal terms are missing" in wrong
    verdicts = re.findall(r"^  (input \d) .* (\w+)$", wrong, re.MULTILINE)
    assert verdicts == [("input 0", "wrong"), ("input 1", "right")]


def failures_of(name: str) -> int:
    """Examples in the docstrings of a module that print something else. Modules of optional dependencies have none."""
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "gradvet":
            raise
        return 0
    return doctest.testmod(module).failed


def test_examples_in_docstrings_hold() -> None:
    names = [module.name for module in pkgutil.walk_packages(gradvet.__path__, "gradvet.")]
    assert [name for name in names if not name.endswith("__main__") and failures_of(name)] == []


@pytest.mark.parametrize("name", ["gradcheck", "replace_torch_gradcheck", "as_sparse_gradcheck"])
def test_public_function_has_an_example(name: str) -> None:
    (found,) = doctest.DocTestFinder(recurse=False).find(getattr(gradvet, name), name)
    assert found.examples
