"""`check` on Triton kernels in interpreter mode, in a process of its own: Triton reads the mode when it is imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.kernels.faults import FAULTS, RIGHT

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")

KERNELS = ("tanh", "softmax")
PAIRS = ("dropout", "embedding", "swiglu")


@cache
def reports() -> dict[str, Any]:
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT), *filter(None, sys.path)])
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": paths}
    command = [sys.executable, "-W", "ignore", "-m", "tests.kernels.triton_kernels"]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT, check=False)
    assert found.returncode == 0, found.stderr
    return dict(json.loads(found.stdout.splitlines()[-1]))


@pytest.mark.parametrize("kernel", KERNELS)
def test_right_kernel_passes(kernel: str) -> None:
    assert reports()[f"{kernel}, {RIGHT}"]["verdict"] == "PASS"


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault != RIGHT])
@pytest.mark.parametrize("kernel", KERNELS)
def test_wrong_kernel_fails_by_its_slopes(kernel: str, fault: str) -> None:
    assert reports()[f"{kernel}, {fault}"]["failed"] == ["reverse"]


def test_kernel_that_overwrites_what_it_saved_is_said_to_work_once() -> None:
    assert any("retain_graph=True must not be used" in note for note in reports()[f"tanh, {RIGHT}"]["notes"])


@pytest.mark.parametrize("reference", ["without", "with"])
@pytest.mark.parametrize("kernel", PAIRS)
def test_kernel_passes_right_and_fails_wrong(kernel: str, reference: str) -> None:
    right, wrong = (reports()[f"{kernel}, {kind}, {reference} reference"] for kind in ("right", "wrong"))
    assert right["verdict"] == "PASS"
    assert wrong["failed"] == ["reverse" if reference == "without" else "reference"]


def test_kernel_of_the_documentation_passes_its_test(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "kernels.md").read_text(encoding="utf-8")
    for name in ("triton_norms.py", "test_triton_norms.py"):
        block = page.partition(f'```python title="{name}"\n')[2].partition("```")[0]
        (tmp_path / name).write_text(block, encoding="utf-8")
    paths = os.pathsep.join([str(ROOT / "src"), *filter(None, sys.path)])
    # The plugin is loaded by name alone: gradvet may be installed here or not.
    settings = {
        "TRITON_INTERPRET": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONPATH": paths,
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "gradvet.pytest_plugin", str(tmp_path)]
    found = subprocess.run(
        command, env={**os.environ, **settings}, capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert found.returncode == 0, found.stdout
