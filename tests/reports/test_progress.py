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
from tests.reports.samples import failed, passed


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


def told(*, terminal: bool, seconds: float) -> str:
    stream = io.StringIO()
    names = ["first", "second", "third"]
    with progress(names, Console(file=stream, force_terminal=terminal, width=140)) as advance:
        time.sleep(seconds)
        advance("first", passed())
        time.sleep(seconds)
        advance("third", None, "was ended by SIGSEGV")
        advance("second", failed())
        time.sleep(seconds)
    return stream.getvalue()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.01)
    monkeypatch.setattr(module, "LOG", 0.01)


@pytest.mark.usefixtures("impatient")
def test_bar_has_rate_time_left_and_verdicts() -> None:
    text = told(terminal=True, seconds=0.3)
    assert "3/3" in text
    assert "/s" in text
    assert "left" in text
    assert "1 fail, 1 pass, 1 no verdict" in text


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("terminal", [True, False])
def test_failures_are_told_as_they_come(terminal: bool) -> None:
    text = told(terminal=terminal, seconds=0.3)
    assert "FAIL second: reverse: reverse mode disagrees in 1 of 12 entries" in text
    assert "third: was ended by SIGSEGV" in text
    assert "FAIL first" not in text


def test_short_work_leaves_no_line_in_a_log() -> None:
    assert told(terminal=False, seconds=0.0) == ""


@pytest.mark.usefixtures("impatient")
def test_log_has_lines_without_control_characters() -> None:
    lines = told(terminal=False, seconds=0.05).splitlines()
    assert lines[0].startswith("1 of 3, ")
    assert lines[0].endswith(" left; 1 pass")
    assert not any("\x1b" in line or "\r" in line for line in lines)
