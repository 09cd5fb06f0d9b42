"""Every example of the documentation runs and prints what the page says.

In a page, `pycon` blocks are doctests, `python` blocks are executed, `python` blocks with a title are files, and
`console` blocks are commands of gradvet with their output. The blocks of a page share one folder and one namespace.
"""

from __future__ import annotations

import doctest
import inspect
import re
import shlex
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch

import gradvet
from gradvet.checks import CHECK_NAMES
from gradvet.checks.jacobian import REASONS, REJECTION, ROUNDED_INSIDE
from gradvet.checks.precision import OVERFLOWS
from gradvet.cli import main
from gradvet.core.ledger import ACCEPTED, NO_MEMORY, LedgerRow
from gradvet.core.refinement import HIDDEN
from gradvet.core.results import Finding, Mismatch, Report
from gradvet.core.runner import UNSEEN
from tests.suite.case_files import InProcessExecutor

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))
BLOCK = re.compile(r"^```(pycon|python|console)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
VOLATILE = (r"± \S+", r"resolution [-e.\d]+(?=,)", r"\d+ (?=forward|backward)", r"[.\d]+ m?s\b")
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def run_doctest(text: str, names: dict[str, Any], page: str, line: int) -> None:
    test = doctest.DocTestParser().get_doctest(text, names, page, page, line)
    failures: list[str] = []
    # Later blocks continue with the doctest's own copy of the names.
    doctest.DocTestRunner(optionflags=FLAGS).run(test, out=failures.append, clear_globs=False)
    names.update(test.globs)
    assert not failures, "".join(failures)


def steady(text: str) -> str:
    """The text without what varies between machines and runs: error bars, counts of calls, times."""
    for volatile in VOLATILE:
        text = re.sub(volatile, "#", text)
    return text


def run_commands(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, expected = part.partition("\n")
        program, *arguments = shlex.split(command)
        assert program == "gradvet"
        with pytest.raises(SystemExit):
            main(arguments)
        found = capsys.readouterr().out
        assert doctest.OutputChecker().check_output(steady(expected), steady(found), FLAGS), f"$ {command}\n{found}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_examples_of_a_page_hold(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)  # The examples draw inputs.
    # A loaded machine is slower from one command to the next.
    monkeypatch.setattr("gradvet.cli.compare.MIN_SLOWDOWN_SECONDS", 3600.0)
    monkeypatch.setattr("gradvet.suite.run.ProcessExecutor", InProcessExecutor)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    text = page.read_text(encoding="utf-8")
    for block in BLOCK.finditer(text):
        kind, title, body = block.groups()
        if title:
            (tmp_path / title).write_text(body)
            monkeypatch.delitem(sys.modules, Path(title).stem, raising=False)
        elif kind == "pycon":
            run_doctest(body, names, page.name, text[: block.start()].count("\n"))
        elif kind == "console":
            run_commands(body, capsys)
        else:
            exec(compile(body, page.name, "exec"), names)
    # Tests of Triton kernels run in `tests/kernels/test_triton.py`.
    tests = [path.name for path in tmp_path.glob("test_*.py") if "triton" not in path.name]
    if tests:
        expected = 1 if page.stem == "index" else 0  # the quickstart's test finds the quickstart's mistake
        # In this process: another one would import torch again.
        options = ("-q", "-p", "no:cacheprovider", "--import-mode=importlib", f"--rootdir={tmp_path}")
        status = pytest.main([*options, *tests])
        printed = capsys.readouterr().out
        assert status == expected, printed
        assert ("FAIL Swish" in printed) == bool(expected)


def test_snippets_of_the_readme_run_and_print_the_failure_that_it_shows(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(r"^```python\n(.*?)^```$\s+^```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert found
    snippets = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, snippet in enumerate(snippets):
        exec(compile(snippet, f"README, snippet {number}", "exec"), names)
        printed = capsys.readouterr().out
        if snippet == found[1]:
            assert doctest.OutputChecker().check_output(steady(found[2]), steady(printed), FLAGS), printed


@pytest.mark.parametrize("kind", [Report, Finding, LedgerRow, Mismatch])
def test_every_field_of_a_result_is_explained(kind: type) -> None:
    page = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    table = page.partition(f"| `{kind.__name__}` |")[2].partition("\n\n")[0]
    explained = re.findall(r"`(\w+)`", "\n".join(line.split("|")[1] for line in table.splitlines()[1:]))
    derived = [name for name, value in vars(kind).items() if isinstance(value, property) and not name.startswith("_")]
    assert [name for name in (*(item.name for item in fields(kind)), *derived) if name not in explained] == []


def test_every_reason_of_an_inconclusive_comparison_has_an_answer() -> None:
    page = (ROOT / "docs" / "inconclusive.md").read_text(encoding="utf-8")
    reasons = [*REASONS.values(), ROUNDED_INSIDE, REJECTION, UNSEEN, NO_MEMORY, ACCEPTED, OVERFLOWS]
    assert [reason for reason in (*reasons, HIDDEN.format(1, 3)) if reason not in page] == []


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert [page.name for page in PAGES if f": {page.name}" not in navigation] == []


def test_every_check_is_explained() -> None:
    page = (ROOT / "docs" / "reading.md").read_text(encoding="utf-8")
    explained = re.findall(r"`([a-z_-]+)`", page.partition("## The checks by name")[2].partition("## The page")[0])
    assert [name for name in CHECK_NAMES if name not in explained] == []


def test_every_option_of_check_is_explained() -> None:
    page = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    options = [name for name in inspect.signature(gradvet.check).parameters if name not in ("func", "inputs")]
    assert [name for name in options if f"| `{name}` |" not in page] == []


@pytest.mark.parametrize("function", [gradvet.check, gradvet.blame, gradvet.numerical_jacobian])
def test_help_describes_every_argument(function: Any) -> None:
    described = re.findall(r"^ +(\w+): ", inspect.getdoc(function) or "", re.MULTILINE)
    assert list(inspect.signature(function).parameters) == [name for name in described if name != "Returns"]


def test_completion_at_a_prompt_offers_public_names_once() -> None:
    assert [name for name in dir(gradvet) if not name.startswith("__")] == sorted(gradvet.__all__)


def test_wrong_example_is_noticed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(AssertionError, match="Expected"):
        run_doctest(">>> 1 + 1\n3\n", {}, "page", 0)
    with pytest.raises(AssertionError, match="version"):
        run_commands("$ gradvet --version\nsomething else\n", capsys)


def test_numbers_that_matter_are_compared() -> None:
    line = "output [0]   input 0 [0]   2.2   2 ± 2e-13   1.1; 12 forward calls, 25 ms"
    assert steady(line) == steady(line.replace("2e-13", "3e-12").replace("12 f", "9 f").replace("25 ms", "1.2 s"))
    assert steady(line) != steady(line.replace("2.2", "2.3"))
