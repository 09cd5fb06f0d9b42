"""A run that is killed in the middle, as the system kills, and gone on with: nothing is lost, nothing is done twice."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gradvet.cli import main
from gradvet.suite.store import Store
from tests.suite.runs import write_cases

CASES = 9
COMMAND = ("check", "ops.py", "--store", "run.db", "--timeout", "60")


def counted(path: Path) -> int:
    """Outcomes in a store that another process is writing to."""
    try:
        (number,) = sqlite3.connect(path).execute("SELECT count(*) FROM outcomes").fetchone()
    except sqlite3.Error:
        return 0
    return int(number)


def test_killed_run_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    # Each case leaves a mark when it begins, and waits so that the kill meets the middle of the run.
    body = "open('begun', 'a').write('{0}\\n'); time.sleep(0.01); return x.sin()"
    write_cases(tmp_path, **{f"case{number}": body.format(number) for number in range(CASES)})
    with subprocess.Popen([sys.executable, "-m", "gradvet", *COMMAND], stdout=subprocess.DEVNULL) as run:
        while counted(tmp_path / "run.db") < 3:
            assert run.poll() is None
            time.sleep(0.01)
        os.kill(run.pid, signal.SIGKILL)
    kept = {one.name: one.seconds for one in Store.open("run.db").outcomes()}
    assert 3 <= len(kept) < CASES

    before = set(Path("begun").read_text().split())
    Path("begun").unlink()
    with pytest.raises(SystemExit) as left:
        main([*COMMAND, "--resume"])
    assert not left.value.code
    said = capsys.readouterr()
    assert f"{len(kept)} of {CASES} cases are in run.db already" in said.err
    assert said.out.splitlines()[-1] == f"{CASES} checks: {CASES} pass"
    again = set(Path("begun").read_text().split())
    # What was stored was not begun again, and is as it was; whatever was begun when the kill came was.
    assert not again & {name.removeprefix("ops.py::case") for name in kept}
    assert before | again == {str(number) for number in range(CASES)}
    stored = {one.name: one.seconds for one in Store.open("run.db").outcomes()}
    assert len(stored) == CASES
    assert kept.items() <= stored.items()
