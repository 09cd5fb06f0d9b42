"""`gradvet check`: targets, options, exit codes, one line for every error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gradvet.reports.json_files import load
from tests.cli.command import exit_code
from tests.cli.conftest import FILE


@pytest.mark.parametrize(
    ("targets", "code"),
    [
        (["ops.py::right"], 0),
        (["ops.py::wrong"], 1),
        (["ops.py::wrong", "ops.py::jump", "ops.py::right"], 1),
        (["ops.py::jump"], 3),
        (["ops.py::jump", "ops.py::right"], 3),
        (["ops.py::broken", "ops.py::right"], 2),
        (["ops.py::wrong", "ops.py::broken"], 1),
        (["ops.py::jump", "ops.py::broken"], 2),
        (["torch:sin", "--input", "2x3"], 0),
        (["torch:sin", "--input", "2y3"], 2),
        (["torch:take", "--input", "2x3", "--input", "4:int:6"], 0),
        (["torch:take", "--input", "2x3", "--input", "4:int:"], 2),
        (["torch:take", "--input", "2x3", "--input", "4:6"], 2),
        (["ops.py::Wrong", "--input", "2x3"], 1),
        (["torch:log", "--input", "2", "--domain", "2,1"], 2),
        (["torch:log", "--input", "20", "--domain", "0.1,2", "--points", "none"], 0),
        (["torch:log", "--input", "20", "--domain", "0,inf", "--points", "none"], 0),
        (["torch:sin", "--input", "2", "--resolution", "2"], 2),
        (["torch:sin", "--input", "2", "--points", "many"], 2),
        (["torch:sin", "--input", "-2"], 2),
        (["torch:tanh", "--input", "9x8", "--reference", "torch:tanh", "--dtypes", "bfloat16,float16"], 0),
        (["torch:tanh", "--input", "9x8", "--dtype", "bfloat16", "--reference", "torch:sin"], 1),
        (["torch:tanh", "--input", "9x8", "--reference", "torch.tanh"], 2),
        (["torch:tanh", "--input", "9x8", "--reference", "torch:no_such"], 2),
        (["torch:tanh", "--input", "9x8", "--dtypes", "bfloat16"], 2),
        (["torch:sin", "--input", "9x8", "--reference", "ops.py::right"], 0),
        (["torch.nn:Tanh", "--input", "9x8", "--reference", "torch.nn:Tanh"], 0),
        (["torch:sin", "--input", "9x8", "--reference", "ops.py::no_such"], 2),
        (["torch:sin", "--input", "9x8", "--budget", "1e-9"], 3),
        (["torch:sin", "--input", "9x8", "--budget", "0"], 2),
        (["ops.py", "--input", "2x3"], 2),
        (["ops.py::right", "torch:sin", "--input", "2x3"], 0),
        (["torch:sin", "--input", "2", "--kwargs", "[1]"], 2),
        (["torch:sin", "--input", "2", "--modes", "sideways"], 2),
        ([], 2),
        (["ops.py", "--no-such-option"], 2),
    ],
)
def test_exit_code_depends_on_the_verdicts(targets: list[str], code: int) -> None:
    assert exit_code("check", *targets) == code


@pytest.mark.parametrize("option", [["--dtype", "float99"], ["--dtype", "int64"], ["--device", "nowhere"]])
def test_dtype_and_device_are_refused_before_the_run(capsys: pytest.CaptureFixture[str], option: list[str]) -> None:
    assert exit_code("check", "torch:sin", "--input", "2", *option) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("gradvet: ")
    assert shown.err.count("\n") == 1


def test_failure_names_the_entry_the_code_and_the_command_that_repeats_it(capsys: pytest.CaptureFixture[str]) -> None:
    exit_code("check", "ops.py::wrong", "--seed", "9")
    out = capsys.readouterr().out
    assert "look for a wrong constant factor" in out
    assert "code: ops.py:" in out
    assert "reproduce: gradvet check ops.py::wrong --seed 9" in out


def test_failure_against_a_reference_is_repeated_by_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--input", "9x8", "--reference", "torch:sin", "--dtypes", "float32,bfloat16")
    exit_code("check", "torch:tanh", *options, "--seed", "9")
    out = capsys.readouterr().out
    assert "reference: bfloat16: output is " in out
    assert f"reproduce: gradvet check torch:tanh {' '.join(options)} --seed 9" in out


def test_case_that_is_named_twice_runs_once(capsys: pytest.CaptureFixture[str]) -> None:
    exit_code("check", "ops.py::right", "ops.py::right")
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_file_is_executed_once() -> None:
    Path("counted.py").write_text("open('executed', 'a').write('once')\n" + FILE)
    exit_code("check", "counted.py::right", "counted.py::wrong")
    assert Path("executed").read_text() == "once"


def test_interrupted_run_shows_and_keeps_its_results(capsys: pytest.CaptureFixture[str]) -> None:
    Path("stopped.py").write_text(FILE + "\n@gradvet.case(inputs=point)\ndef stop(x):\n    raise KeyboardInterrupt\n")
    targets = [f"stopped.py::{name}" for name in ("wrong", "stop", "right")]
    assert exit_code("check", *targets, "--json", "run.json") == 130
    assert "FAIL stopped.py::wrong" in capsys.readouterr().out
    found = [(report.title, report.verdict.value) for report in load("run.json")]
    assert found == [("stopped.py::wrong", "fail"), ("stopped.py::stop", "error"), ("stopped.py::right", "error")]


@pytest.mark.parametrize("option", ["--html", "--json"])
def test_unwritable_file_is_reported_before_any_check_runs(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("check", "ops.py::right", option, "ops.py/page") == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith("gradvet: ops.py/page cannot be written")


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("check --mo", {"--modes"}),
        ("check --modes r", {"reverse", "reverse,forward"}),
        ("check --dtype b", {"bfloat16"}),
    ],
)
def test_shell_completes(typed: str, offered: set[str]) -> None:
    words = f"gradvet {typed}"
    environment = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" ")), "_GRADVET_COMPLETE": "bash_complete"}
    program = [sys.executable, "-c", "from gradvet.cli import main; main()"]
    answer = subprocess.run(program, env={**os.environ, **environment}, capture_output=True, text=True, check=True)
    assert {line.partition(",")[2] for line in answer.stdout.splitlines()} == offered


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check", "none.py"], "gradvet: there is no file none.py"),
        (["report", "none.json"], "gradvet: none.json cannot be read"),
        (
            ["check", "ops.py", "--kwargs", '{"dim": 1}'],
            "gradvet: cases in files have inputs of their own: --input",
        ),
    ],
)
def test_errors_are_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(*arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(message)


def test_debug_shows_the_traceback_and_keeps_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("check", "ops.py::broken", "--debug") == exit_code("check", "ops.py::broken") == 2
    shown = capsys.readouterr().err
    assert "in broken" in shown
    assert "RuntimeError: no such kernel" in shown


def test_error_names_the_line_of_the_users_code_that_raised(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    line = FILE.splitlines().index('    raise RuntimeError("no such kernel")') + 1
    exit_code("check", "ops.py::broken")
    assert f"raised: RuntimeError: no such kernel (ops.py:{line})" in capsys.readouterr().out
    # Inside of torch, the innermost line of the user's file is named.
    (folder / "shapes.py").write_text("def product(x):\n    y = x + 1\n    return x @ y\n")
    exit_code("check", "shapes.py::product", "--input", "2x3")
    assert "(shapes.py:3)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["torch:mul", "--input", "3"], "repeat --input for each argument, and give keyword arguments with --kwargs"),
        (["torch:mul", "--input", "3:int:4", "--input", "3:int:4"], "give at least one --input without :int:"),
        (["torch.nn:Bilinear", "--init", "[3, 2, 2]", "--input", "5x3"], "repeat --input for each argument"),
    ],
)
def test_errors_about_inputs_have_the_words_of_the_command_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("check", *arguments) == 2
    shown = capsys.readouterr().out
    assert words in shown
    assert "kwargs={" not in shown
    assert ".double()" not in shown


def test_outputs_that_are_not_finite_suggest_a_domain(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    (folder / "far.py").write_text("def far(x):\n    return (x - 1000).log()\n")
    assert exit_code("check", "far.py::far", "--input", "3") == 3
    assert "finite and smooth; --domain LOW,HIGH draws the inputs" in " ".join(capsys.readouterr().out.split())


def test_case_with_inputs_of_its_own_is_not_told_to_draw_them(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    (folder / "far.py").write_text(
        "import gradvet, torch\n\n"
        "@gradvet.case(inputs=lambda: torch.ones(3))\ndef far(x):\n    return (x - 1000).log()\n"
    )
    assert exit_code("check", "far.py") == 3
    shown = " ".join(capsys.readouterr().out.split())
    assert "finite and smooth." in shown
    assert "--domain" not in shown


@pytest.mark.parametrize("targets", [["no_such.py::name"], ["ops.py::right", "--reference", "no_such.py::name"]])
def test_missing_file_is_reported_before_torch_is_loaded(targets: list[str]) -> None:
    script = "import atexit, sys; atexit.register(lambda: print('torch' in sys.modules)); "
    script += "from gradvet.cli import main; main(['check', *sys.argv[1:], '--input', '3'])"
    done = subprocess.run([sys.executable, "-c", script, *targets], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "False\n")
    assert done.stderr.startswith("gradvet: there is no file no_such.py")


def test_suggestions_are_names_that_differ_little(capsys: pytest.CaptureFixture[str]) -> None:
    exit_code("check", "torch:nosuch", "--input", "3")
    assert "did you mean" not in capsys.readouterr().err
    exit_code("check", "torch:sofmax", "--input", "3")
    assert "did you mean 'softmax'?" in capsys.readouterr().err


def checks_in(path: str) -> set[str]:
    return {finding.check for report in load(path) for finding in report.findings}


def test_options_reach_the_check() -> None:
    exit_code("check", "ops.py::right", "--modes", "reverse", "--json", "one.json")
    exit_code("check", "ops.py::right", "--order", "2", "--json", "two.json")
    exit_code("check", "ops.py::right", "--thorough", "--json", "three.json")
    assert "forward" not in checks_in("one.json")
    assert "reverse-over-reverse" not in checks_in("one.json")
    assert "reverse-over-reverse" in checks_in("two.json")
    assert "reverse-over-reverse" in checks_in("three.json")
    exit_code("check", "ops.py::right", "--points", "none", "--resolution", "0.001", "--json", "four.json")
    assert "points" in checks_in("one.json")
    assert "points" not in checks_in("four.json")
    assert {row.asked for report in load("four.json") for row in report.ledger} == {0.001}


def test_command_that_repeats_a_failure_has_all_options(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--resolution", "0.002", "--points", "none", "--domain", "0.5,2.0", "--seed", "3")
    exit_code("check", "ops.py::Wrong", "--input", "2x3", *options)
    assert f"reproduce: gradvet check ops.py::Wrong --input 2x3 {' '.join(options)}" in capsys.readouterr().out


def test_run_stops_after_the_first_failure(capsys: pytest.CaptureFixture[str]) -> None:
    targets = [f"ops.py::{name}" for name in ("right", "wrong", "jump", "broken")]
    assert exit_code("check", *targets, "-x") == 1
    captured = capsys.readouterr()
    assert captured.out.splitlines()[-1] == "2 checks: 1 fail, 1 pass"
    assert "stopped; 2 of 4 cases did not run" in captured.err


def test_verbose_shows_why_checks_did_not_run(capsys: pytest.CaptureFixture[str]) -> None:
    exit_code("check", "ops.py::wrong")
    assert "exercised: values" not in capsys.readouterr().out
    exit_code("check", "ops.py::wrong", "-v")
    assert "exercised: values" in capsys.readouterr().out
