"""Stores and reports that are damaged at random give results or one sentence. `make fuzz` tries more."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gradvet.core.processes import Status
from gradvet.reports import json_files
from gradvet.suite import CaseResult
from gradvet.suite.store import Store
from tests.faults.files import complaint, ended, write_json
from tests.reports.samples import passed

FILES = 60
"""Damaged files of each seed."""


@pytest.mark.parametrize("seed", range(3))
def test_damaged_file_gives_results_or_one_sentence(tmp_path: Path, seed: int) -> None:
    source = random.Random(seed)
    for number in range(FILES):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert complaint(folder, source) == ""


ODD_FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "pipe": (os.mkfifo, "it is no regular file"),
    "device without end": (lambda path: path.symlink_to("/dev/zero"), "it is no regular file"),
    "link to itself": (lambda path: path.symlink_to(path), "cannot be read"),
    "link to nothing": (lambda path: path.symlink_to("nothing"), "cannot be read"),
    "nothing inside": (lambda path: path.touch(), "is not a gradvet report"),
    "zeros": (lambda path: path.write_bytes(bytes(10**5)), "is not a gradvet report"),
    "brackets without end": (lambda path: path.write_text("[" * 10**5), "is not a gradvet report"),
    "a number of 5,000 digits": (lambda path: path.write_text("9" * 5000), "is not a gradvet report"),
    "null": (lambda path: path.write_text("null"), "is not a gradvet report"),
    "two bytes for a character": (lambda path: path.write_text("{}", encoding="utf-16"), "is not a gradvet report"),
}


@pytest.mark.parametrize("kind", ODD_FILES)
def test_odd_file_is_refused_in_one_sentence(tmp_path: Path, kind: str) -> None:
    make, words = ODD_FILES[kind]
    path = tmp_path / "odd"
    make(path)
    code, out, messages = ended(["report", str(path)])
    assert (code, out) == (2, "")
    assert words in messages
    assert messages.count("\n") == 1
    assert "--debug" not in messages


@pytest.mark.parametrize("option", ["--json", "--html"])
@pytest.mark.parametrize("output", ["loop", "folder", "/dev/full", "nothing/x"])
def test_file_that_cannot_be_written_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, output: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    Path("folder").mkdir()
    Path("nothing").symlink_to("nowhere")
    write_json(Path("right.json"))
    code, _, messages = ended(["report", "right.json", option, output])
    assert code == 2
    assert messages.count("\n") == 1
    assert "--debug" not in messages


def test_empty_file_of_reports_is_no_success(tmp_path: Path) -> None:
    json_files.save([], tmp_path / "none.json")
    assert ended(["report", str(tmp_path / "none.json")])[:2] == (2, "no checks\n")


@pytest.mark.parametrize("status", [one for one in Status if one is not Status.REPORTED])
@pytest.mark.parametrize("output", [[], ["--json", "again.json", "--html", "page.html"]])
def test_case_without_result_is_counted_and_decides_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: Status, output: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    store = Store.create("run.db", {}, ["a", "b"])
    store.add(CaseResult("a", passed("a")))
    if status is not Status.UNFINISHED:
        store.add(CaseResult.of_error("b", status, "no"))
    store.close()
    code, out, _ = ended(["report", "run.db", *output])
    assert (code, out.splitlines()[-1]) == (2, "2 checks: 1 error, 1 pass")
    if output:
        assert ended(["report", "again.json"])[0] == 2
        assert status.value in Path("page.html").read_text()


FULL_DISK = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (40000, 40000))
from gradvet.cli import main
main(["check", "ops.py", "--store", "run.db"])
"""
CASES = """
import gradvet, torch
def inputs():
    return torch.ones(3, dtype=torch.float64)
for number in range(30):
    exec(f"@gradvet.case(inputs=inputs, checks=['reverse'], points=None)\\ndef f{number}(x): return x * x.detach()")
"""


def test_full_disk_ends_a_run_with_one_sentence_and_keeps_its_results(tmp_path: Path) -> None:
    (tmp_path / "ops.py").write_text(CASES)
    # Otherwise it and its workers would leave compiled modules cut off at the limit, which no later process could load.
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", FULL_DISK]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 2
    assert "run.db cannot be written" in done.stderr.splitlines()[-1]
    kept = [one.status for one in Store.open(tmp_path / "run.db").results()]
    assert len(kept) == 30
    assert {Status.UNFINISHED.value} < set(kept)
