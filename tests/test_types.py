"""What a type checker says about a user's file. Run by `make types`, whose cache it uses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

pytestmark = pytest.mark.types

RIGHT = """
import gradvet
import torch

x = torch.ones(3, dtype=torch.float64)
report: gradvet.Report = gradvet.check(torch.sin, x, argnums=0, order=2, seed=7)
verdict: gradvet.Verdict = report.verdict
gradvet.assert_gradients(torch.sin, (x,), msg="layer 3", inconclusive="warn", resolution=0.1)
passed: bool = gradvet.gradcheck(torch.sin, x, eps=1e-6)
slopes: torch.Tensor = gradvet.numerical_jacobian(torch.sin, x).value
with gradvet.watch() as step:
    torch.sin(x)
culprits: int = len(step.report().culprits)


@gradvet.case(inputs=lambda: x)
def square(x: torch.Tensor) -> torch.Tensor:
    return x * x
"""

WRONG = """
import gradvet
import torch

x = torch.ones(3, dtype=torch.float64)
gradvet.chekc(torch.sin, x)
gradvet.check(torch.sin, x, order="two")
gradvet.assert_gradients(torch.sin, x, inconclusive="maybe")
gradvet.assert_gradients(torch.sin, x, resolutoin=0.1)
"""
LINES = ["6", "7", "8", "9"]


def complaints(command: list[str], folder: Path) -> dict[str, list[str]]:
    """The lines of each file that a type checker complains about."""
    for name, text in (("right.py", RIGHT), ("wrong.py", WRONG)):
        (folder / name).write_text(text, encoding="utf-8")
    done = subprocess.run([*command, "right.py", "wrong.py"], capture_output=True, text=True, timeout=900, cwd=folder)
    found: dict[str, list[str]] = {"right.py": [], "wrong.py": []}
    for line in (done.stdout + done.stderr).splitlines():
        place = line.strip().rpartition("/")[2].split(":")
        if "error" in line and place[0] in found and place[1] not in found[place[0]]:
            found[place[0]].append(place[1])
    return found


def test_mypy_accepts_right_calls_and_names_wrong_ones(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    # The settings and the cache of `make types`.
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml")]
    command += ["--cache-dir", str(ROOT / ".mypy_cache")]
    assert complaints(command, tmp_path) == {"right.py": [], "wrong.py": LINES}


def test_pyright_accepts_right_calls_and_names_wrong_ones(tmp_path: Path) -> None:
    pytest.importorskip("pyright")
    command = [sys.executable, "-m", "pyright"]
    # Its first run may load the program itself.
    if subprocess.run([*command, "--version"], capture_output=True, timeout=900).returncode:
        pytest.skip("pyright cannot be started")
    (tmp_path / "pyrightconfig.json").write_text(f'{{"extraPaths": ["{ROOT / "src"}"]}}', encoding="utf-8")
    command += ["--pythonpath", sys.executable]
    assert complaints(command, tmp_path) == {"right.py": [], "wrong.py": LINES}
