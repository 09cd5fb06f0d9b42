"""A folder with a file of cases, for every test of the command line."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from tests.plugin.suites import WRONG

FILE = f"""
import gradvet
{dedent(WRONG)}
def point():
    return torch.randn(2, 3, dtype=torch.float64)

@gradvet.case(inputs=point)
def right(x):
    return x.sin()

@gradvet.case(inputs=point)
def wrong(x):
    return Wrong.apply(x)

@gradvet.case(inputs=lambda: 0 * point())
def jump(x):
    return x.floor() + 0 * x

@gradvet.case(inputs=point)
def broken(x):
    raise RuntimeError("no such kernel")
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with the file `ops.py`. A slow machine prints no progress either."""
    monkeypatch.setattr("gradvet.reports.progress.LOG_INTERVAL_SECONDS", 1e6)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ops.py").write_text(FILE)
    return tmp_path
