"""The progress bar appears where it helps, and nowhere else."""

from __future__ import annotations

import io
import sys
import time

import pytest
import torch
from rich.console import Console
from torch import Tensor

import gradvet
from gradvet.reports import progress as module
from gradvet.reports.progress import progress


def shown(*, terminal: bool, seconds: float) -> str:
    stream = io.StringIO()
    names = ["ops.py::first", "ops.py::second"]
    with progress(names, Console(file=stream, force_terminal=terminal, width=80)) as advance:
        for _ in names:
            time.sleep(seconds)
            advance()
    return stream.getvalue()


def test_long_work_on_a_terminal_shows_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.01)
    text = shown(terminal=True, seconds=0.3)
    assert "2/2" in text
    assert text.index("ops.py::first") < text.index("ops.py::second")


def test_short_work_shows_nothing() -> None:
    assert "/2" not in shown(terminal=True, seconds=0.0)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("interactive", [True, False])
def test_check_at_a_prompt_shows_that_it_is_under_way(monkeypatch: pytest.MonkeyPatch, interactive: bool) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.01)
    monkeypatch.setattr(sys, "stderr", Terminal())
    if interactive:
        monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)

    def slow(x: Tensor) -> Tensor:
        time.sleep(0.02)
        return x.sin()

    gradvet.check(slow, torch.ones(2, dtype=torch.float64), checks=["reverse"])
    assert ("slow" in sys.stderr.getvalue()) is interactive  # type: ignore[attr-defined]


def test_without_a_terminal_nothing_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.01)
    assert "/2" not in shown(terminal=False, seconds=0.1)
