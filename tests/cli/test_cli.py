"""The entry point, and the commands `report` and `completion`.

Also tests `__main__.py` and `cli/__init__.py`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import gradvet
from gradvet.reports.json_files import save
from tests.cli.command import exit_code
from tests.reports.samples import passed


def test_results_can_be_rendered_later(capsys: pytest.CaptureFixture[str]) -> None:
    exit_code("check", "ops.py::wrong", "ops.py::right", "--json", "run.json", "--html", "now.html")
    capsys.readouterr()
    assert exit_code("report", "run.json", "--html", "later.html") == 1
    assert capsys.readouterr().out == "2 checks: 1 fail, 1 pass\n"
    for page in ("now.html", "later.html"):
        assert "ops.py::wrong" in Path(page).read_text(encoding="utf-8")


def test_report_without_files_shows_the_terminals_text(capsys: pytest.CaptureFixture[str]) -> None:
    exit_code("check", "ops.py::wrong", "--json", "run.json")
    shown = capsys.readouterr().out
    exit_code("report", "run.json")
    assert capsys.readouterr().out.startswith(shown)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_is_for_the_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("completion", shell) == 0
    assert f"_GRADVET_COMPLETE={shell}_complete" in capsys.readouterr().out


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("--version") == 0
    assert gradvet.__version__ in capsys.readouterr().out
    assert exit_code("--help") == 0
    assert "Exit codes: 0 all pass, 1 a gradient is wrong" in capsys.readouterr().out


def test_module_runs_as_the_command() -> None:
    answer = subprocess.run([sys.executable, "-m", "gradvet", "--version"], capture_output=True, text=True, check=True)
    assert answer.stdout == f"gradvet, version {gradvet.__version__}\n"


def test_help_report_and_compare_load_no_framework() -> None:
    save([passed()], "run.json")
    program = """
import sys
from gradvet.cli import main
for arguments in (["--help"], ["report", "run.json"], ["compare", "run.json", "run.json"]):
    try:
        main(arguments)
    except SystemExit as ended:
        assert not ended.code
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
