"""The options of every command that runs cases: limits, the store, and going on with it."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from gradvet.cli import main
from gradvet.commands.running import size
from tests.suite.runs import write_cases


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_cases(tmp_path, right="return x.sin()", hangs="time.sleep(1000)")
    return tmp_path


def exit_code(*arguments: str) -> int | str | None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    return left.value.code or 0


@pytest.mark.parametrize(
    ("text", "bytes_"), [("1", 1), ("2K", 2048), ("500M", 500 * 2**20), ("1.5GiB", 3 * 2**29), ("2gb", 2**31)]
)
def test_amounts_of_memory_are_understood(text: str, bytes_: int) -> None:
    assert size(text) == bytes_


@pytest.mark.parametrize("text", ["", "much", "-1G", "0", "2 X"])
def test_other_amounts_are_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is no amount of memory"):
        size(text)


def test_case_beyond_its_time_is_a_line_and_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("check", "ops.py", "--timeout", "1", "--retries", "0") == 2
    said = capsys.readouterr()
    assert said.out.startswith("PASS ops.py::right")
    assert said.err == "ops.py::hangs: did not end within 1 s\n"


def test_store_is_gone_on_with_shown_and_not_overwritten(capsys: pytest.CaptureFixture[str]) -> None:
    command = ("check", "ops.py::right", "--store", "run.db")
    assert exit_code(*command) == 0
    assert exit_code(*command) == 2
    assert "run.db holds a run already: go on with --resume" in capsys.readouterr().err
    assert exit_code(*command, "--resume") == 0
    said = capsys.readouterr()
    assert said.err == "1 of 1 cases are in run.db already\n"
    assert said.out.startswith("PASS ops.py::right")
    assert exit_code("report", "run.db", "--json", "run.json") == 0
    assert capsys.readouterr().out == "1 check: 1 pass\n"
    assert exit_code("check", "ops.py::right", "--store", "run.db", "--resume", "--order", "2") == 2
    assert "run.db holds another run" in capsys.readouterr().err


def test_resume_without_a_store_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("check", "ops.py::right", "--resume") == 2
    assert "name its file with --store" in capsys.readouterr().err
