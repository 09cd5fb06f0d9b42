"""The progress view appears where it helps: on a terminal after a second, in a log now and then."""

from __future__ import annotations

import io
import time

import pytest
from rich.console import Console

from gradvet.reports import progress as module
from gradvet.reports.progress import progress
from tests.reports.samples import failed, passed


def shown(*, terminal: bool, seconds: float) -> str:
    stream = io.StringIO()
    with progress(3, Console(file=stream, force_terminal=terminal, width=140)) as advance:
        time.sleep(seconds)
        advance("ops.py::first", passed())
        time.sleep(seconds)
        advance("ops.py::second", failed())
        advance("ops.py::third", None, "was ended by SIGSEGV")
        time.sleep(seconds)
    return stream.getvalue()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.01)
    monkeypatch.setattr(module, "LOG", 0.01)


@pytest.mark.usefixtures("impatient")
def test_long_work_on_a_terminal_shows_a_bar_with_rate_and_time_left() -> None:
    text = shown(terminal=True, seconds=0.3)
    assert "3/3" in text
    assert "/s" in text
    assert "left" in text
    assert "1 fail, 1 pass, 1 no verdict" in text


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("terminal", [True, False])
def test_failures_are_told_as_they_come(terminal: bool) -> None:
    text = shown(terminal=terminal, seconds=0.3)
    assert "FAIL ops.py::second: reverse: reverse mode disagrees in 1 of 12 entries" in text
    assert "ops.py::third: was ended by SIGSEGV" in text
    assert "FAIL ops.py::first" not in text


@pytest.mark.parametrize("terminal", [True, False])
def test_short_work_shows_nothing(terminal: bool) -> None:
    assert "/3" not in shown(terminal=terminal, seconds=0.0)
    assert "of 3" not in shown(terminal=terminal, seconds=0.0)


@pytest.mark.usefixtures("impatient")
def test_log_has_lines_without_control_characters() -> None:
    lines = shown(terminal=False, seconds=0.05).splitlines()
    assert lines[0].startswith("1 of 3, ")
    assert lines[0].endswith(" left; 1 pass")
    assert not any("\x1b" in line or "\r" in line for line in lines)
