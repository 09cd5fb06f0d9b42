"""The options of every command that runs cases: limits, store and resume."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from gradvet.cli.common import memory_size
from tests.cli.command import exit_code
from tests.suite.case_files import write_cases


@pytest.fixture(autouse=True)
def cases(folder: Path) -> None:
    write_cases(folder, right="return x.sin()", hangs="time.sleep(1e6)", dies="os._exit(3)")


@pytest.mark.parametrize(
    ("text", "bytes_"), [("1", 1), ("2K", 2048), ("500M", 500 * 2**20), ("1.5GiB", 3 * 2**29), ("2gb", 2**31)]
)
def test_amounts_of_memory_are_understood(text: str, bytes_: int) -> None:
    assert memory_size(text) == bytes_


@pytest.mark.parametrize("text", ["", "much", "-1G", "0", "2 X"])
def test_other_amounts_are_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is no amount of memory"):
        memory_size(text)


def test_case_beyond_its_time_limit_is_one_line_and_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("check", "ops.py::hangs", "--timeout", "0.5", "--retries", "0") == 2
    assert capsys.readouterr().err == "ops.py::hangs: did not end within 0.5 s\n"


def test_case_that_dies_is_one_line_beside_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    targets = ("ops.py::dies", "ops.py::right")
    assert exit_code("check", *targets, "--timeout", "3600", "--retries", "0") == 2
    captured = capsys.readouterr()
    assert captured.out.startswith("PASS ops.py::right")
    assert captured.out.splitlines()[-1] == "1 check: 1 pass; 1 error"
    assert captured.err == "ops.py::dies: ended its process with code 3\n"


def test_store_is_resumed_shown_and_not_overwritten(capsys: pytest.CaptureFixture[str]) -> None:
    command = ("check", "ops.py::right", "--store", "run.db")
    assert exit_code(*command) == 0
    assert exit_code(*command) == 2
    assert "run.db holds a run already: go on with --resume" in capsys.readouterr().err
    assert exit_code(*command, "--resume") == 0
    captured = capsys.readouterr()
    assert captured.err == "1 of 1 cases are in run.db already\n"
    assert captured.out.startswith("PASS ops.py::right")
    assert exit_code("report", "run.db", "--json", "run.json") == 0
    assert capsys.readouterr().out == "1 check: 1 pass\n"
    assert exit_code("check", "ops.py::right", "--store", "run.db", "--resume", "--order", "2") == 2
    assert "run.db holds another run" in capsys.readouterr().err


def test_resume_without_a_store_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("check", "ops.py::right", "--resume") == 2
    assert "name its file with --store" in capsys.readouterr().err
