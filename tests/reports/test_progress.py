"""The progress bar and the log of a run. No test depends on the speed of the machine."""

from __future__ import annotations

import io
import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from rich.console import Console
from torch import Tensor

import gradvet
from gradvet.reports import progress as module
from gradvet.reports.progress import Advance, progress
from tests.reports.samples import errored, failed, passed

NEVER_SECONDS = 1e6
WAIT_SECONDS = 600.0


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait for another thread."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def wait_for(self, text: str) -> None:
        wait_for(lambda: text in self.getvalue())


@contextmanager
def bar(names: list[str]) -> Iterator[tuple[Advance, Terminal]]:
    stream = Terminal()
    with progress(names, Console(file=stream, force_terminal=True, width=140)) as advance:
        yield advance, stream


@pytest.fixture
def immediate_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BAR_DELAY_SECONDS", 0.0)


@pytest.mark.usefixtures("immediate_bar")
def test_bar_names_the_case_that_runs() -> None:
    with bar(["ops.py::first", "ops.py::second"]) as (advance, stream):
        stream.wait_for("ops.py::first")
        assert "ops.py::second" not in stream.getvalue()
        advance()
        stream.wait_for("ops.py::second")
        advance()
    assert "2/2" in stream.getvalue()


def test_run_that_ends_before_the_delay_shows_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BAR_DELAY_SECONDS", NEVER_SECONDS)
    with bar(["first", "second"]) as (advance, stream):
        advance()
        advance()
    assert "/2" not in stream.getvalue()


@pytest.mark.usefixtures("immediate_bar")
@pytest.mark.parametrize("interactive", [True, False])
def test_check_shows_a_bar_in_an_interactive_session(monkeypatch: pytest.MonkeyPatch, interactive: bool) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    if interactive:
        monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)

    def slow(x: Tensor) -> Tensor:
        if interactive:
            stream.wait_for("slow")
        return x.sin()

    gradvet.check(slow, torch.ones(2, dtype=torch.float64), checks=["reverse"])
    assert ("slow" in stream.getvalue()) is interactive


@pytest.mark.usefixtures("immediate_bar")
def test_bar_has_rate_time_left_verdicts_and_failures() -> None:
    with bar(["first", "second", "third"]) as (advance, stream):
        stream.wait_for("0/3")
        advance("first", passed())
        advance("third", errored())
        advance("second", failed())
    text = stream.getvalue()
    assert "3/3" in text
    assert "/s" in text
    assert "left" in text
    assert "1 fail, 1 error, 1 pass" in text
    assert "FAIL second: reverse: reverse mode disagrees in 1 of 12 entries" in text
    assert "ERROR third: died: was ended by SIGSEGV" in text
    assert "FAIL first" not in text


def log(seconds_per_call: float) -> list[str]:
    """The lines of a log, with a clock that advances by a fixed time at each call."""
    stream = io.StringIO()
    ticks = itertools.count()
    console = Console(file=stream, force_terminal=False, width=140)
    with progress(["first", "second", "third"], console, lambda: seconds_per_call * next(ticks)) as advance:
        advance("first", passed())
        advance("third", errored())
        advance("second", failed())
    return stream.getvalue().splitlines()


def test_log_has_counts_and_failures_without_control_characters() -> None:
    assert log(20.0) == [
        "1 of 3, 0.05/s, 40 s left; 1 pass",
        "ERROR third: died: was ended by SIGSEGV",
        "2 of 3, 0.05/s, 20 s left; 1 error, 1 pass",
        "FAIL second: reverse: reverse mode disagrees in 1 of 12 entries",
        "3 of 3, 0.05/s, 0 s left; 1 fail, 1 error, 1 pass",
    ]


def test_log_holds_failures_back_until_the_first_interval_is_over() -> None:
    assert log(4.0) == [
        "ERROR third: died: was ended by SIGSEGV",
        "FAIL second: reverse: reverse mode disagrees in 1 of 12 entries",
        "3 of 3, 0.25/s, 0 s left; 1 fail, 1 error, 1 pass",
    ]


def test_short_run_leaves_no_line_in_a_log() -> None:
    assert log(0.0) == []


def test_no_thread_is_left_behind() -> None:
    before = set(threading.enumerate())
    with bar(["first"]) as (advance, _):
        advance()
    assert set(threading.enumerate()) <= before
