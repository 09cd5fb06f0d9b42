"""A run that is killed and resumed loses no result and repeats none."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gradvet.core.processes import Status
from gradvet.reports.json_files import load
from gradvet.suite.store import Store
from tests.cli.command import exit_code
from tests.suite.case_files import write_cases

CASES, CASES_BEFORE_KILL = 9, 4
COMMAND = ("check", "ops.py", "--store", "run.db", "--timeout", "3600")

RECORD = "open('started', 'a').write('{0}\\n'); "
WAIT = "\n    while not os.path.exists('killed'): time.sleep(0.01)\n    "


def stored_count(path: Path) -> int:
    """Results in a store that another process is writing to."""
    try:
        (number,) = sqlite3.connect(path).execute("SELECT count(*) FROM outcomes").fetchone()
    except sqlite3.Error:
        return 0
    return int(number)


def test_killed_run_is_resumed_where_it_stopped(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Each case records its start. Later cases wait for the kill, so that it always meets an unfinished run.
    bodies = {
        f"case{number}": RECORD.format(number) + ("" if number < CASES_BEFORE_KILL else WAIT) + "return x.sin()"
        for number in range(CASES)
    }
    write_cases(folder, **bodies)
    with subprocess.Popen([sys.executable, "-m", "gradvet", *COMMAND], stdout=subprocess.DEVNULL) as run:
        while stored_count(folder / "run.db") < CASES_BEFORE_KILL:
            assert run.poll() is None
            time.sleep(0.01)
        os.kill(run.pid, signal.SIGKILL)
    kept = {one.name: one.seconds for one in Store.open("run.db").results() if one.status != Status.UNFINISHED}
    assert len(kept) == CASES_BEFORE_KILL

    # The run reads as incomplete everywhere.
    assert exit_code("report", "run.db", "--json", "run.json", "--html", "run.html") == 2
    summary = f"{CASES} checks: {CASES - CASES_BEFORE_KILL} error, {CASES_BEFORE_KILL} pass"
    assert capsys.readouterr().out == f"{summary}\n"
    assert summary in Path("run.html").read_text(encoding="utf-8")
    for file in ("run.db", "run.json"):
        assert exit_code("compare", file, "run.db") == 2
        assert "incomplete: 5 of 9 cases in run.db have no result" in capsys.readouterr().out

    before = set(Path("started").read_text().split())
    Path("started").unlink()
    Path("killed").touch()
    assert exit_code(*COMMAND, "--resume") == 0
    captured = capsys.readouterr()
    assert f"{len(kept)} of {CASES} cases are in run.db already" in captured.err
    assert captured.out.splitlines()[-1] == f"{CASES} checks: {CASES} pass"
    again = set(Path("started").read_text().split())
    assert not again & {name.removeprefix("ops.py::case") for name in kept}
    assert before | again == {str(number) for number in range(CASES)}
    stored = {one.name: one.seconds for one in Store.open("run.db").results()}
    assert len(stored) == CASES
    assert kept.items() <= stored.items()


def test_sigterm_ends_a_run_as_ctrl_c_does(folder: Path) -> None:
    write_cases(folder, right="return x.sin()", waits="open('waits', 'w').close(); time.sleep(1e6)")
    command = [sys.executable, "-m", "gradvet", "check", "ops.py", "--json", "run.json"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as run:
        while not (folder / "waits").exists():
            assert run.poll() is None
            time.sleep(0.01)
        run.send_signal(signal.SIGTERM)
        assert run.stderr is not None
        assert run.stderr.read() == "gradvet: interrupted; results so far are kept\nwrote run.json\n"
    assert run.returncode == 130
    assert [(one.title, one.verdict.value) for one in load("run.json")] == [
        ("ops.py::right", "pass"),
        ("ops.py::waits", "error"),
    ]
