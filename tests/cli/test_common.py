"""The options of every command that runs cases: limits, store and resume."""

from __future__ import annotations

import os
from pathlib import Path

import click
import pytest

from gradvet.cli.common import memory_size
from gradvet.suite import run
from tests.cli.command import exit_code
from tests.suite.case_files import InProcessExecutor, write_cases


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
    head, line, command = capsys.readouterr().out.splitlines()
    assert head.startswith("ERROR ops.py::hangs")
    assert line == "  time limit: did not end within 0.5 s"
    assert command.startswith("  reproduce: gradvet check ops.py::hangs --seed ")


@pytest.mark.parametrize("seed", [(), ("--seed", "1")])
def test_resume_without_a_store_is_refused(capsys: pytest.CaptureFixture[str], seed: tuple[str, ...]) -> None:
    assert exit_code("check", "ops.py::right", "--resume", *seed) == 2
    assert "--resume goes on with the run in a store: name its file with --store" in capsys.readouterr().err


def test_store_is_announced_resumed_shown_and_not_overwritten(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "ProcessExecutor", InProcessExecutor)
    command = ("check", "ops.py::right", "--store", "run.db")
    assert exit_code(*command) == 0
    assert "wrote run.db" in capsys.readouterr().err
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


@pytest.mark.parametrize("timeout", ["nan", "inf", "0", "-1", "soon"])
def test_time_limit_is_a_number_of_seconds(timeout: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("check", "ops.py::right", "--timeout", timeout) == 2
    assert "is no time: write a number of seconds above 0" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--store", "--json", "--html"])
def test_file_without_a_name_is_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("check", "ops.py::right", option, "") == 2
    assert "the name of a file was expected, found nothing" in capsys.readouterr().err


def test_case_that_dies_is_one_line_beside_the_others_and_in_all_files(capsys: pytest.CaptureFixture[str]) -> None:
    """Also counts how often each process executes the file, because every worker imports torch."""
    file = Path("ops.py")
    file.write_text("import os\nopen('executed', 'a').write(f'{os.getpid()}\\n')\n" + file.read_text())
    command = ("check", "ops.py::right", "ops.py::dies", "--retries", "0", "--store", "run.db")
    assert exit_code(*command, "--json", "run.json", "--html", "run.html") == 2
    processes = Path("executed").read_text().split()
    assert processes.count(str(os.getpid())) == 1
    assert len(set(processes)) == len(processes) > 1
    out = capsys.readouterr().out
    assert "died: ended its process with code 3" in out
    assert "PASS ops.py::right" in out
    assert "2 checks: 1 error, 1 pass" in out.splitlines()
    assert 'data-verdict="error"' in Path("run.html").read_text(encoding="utf-8")
    for file in ("run.db", "run.json"):
        assert exit_code("report", file) == 2
        out = capsys.readouterr().out
        assert "ERROR ops.py::dies" in out
        assert "died: ended its process with code 3" in out
        assert out.splitlines()[-1] == "2 checks: 1 error, 1 pass"
    assert exit_code("compare", "run.db", "run.json") == 2
    assert "now: 2 checks: 1 error, 1 pass" in capsys.readouterr().out
