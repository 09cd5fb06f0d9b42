"""What rich does with text of its own accord: writing to Jupyter instead of a stream, and reading markup."""

from __future__ import annotations

import builtins
import io
import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
from rich.console import Console

from gradvet.cli.ops import show
from gradvet.core.ledger import LedgerRow
from gradvet.core.results import Finding, Mismatch, Report, Verdict
from gradvet.core.vectors import Location
from gradvet.errors import GradientError
from gradvet.reports import html, terminal
from gradvet.reports.progress import progress
from tests.cli.test_summary import summary_of
from tests.reports.samples import doubtful, errored, failed, passed, worst


class ZMQInteractiveShell:
    """The name by which rich recognises Jupyter."""


@pytest.fixture
def shown_by_jupyter(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Rich in a notebook: what it hands to Jupyter's `display`."""
    shown: list[Any] = []
    display_module = ModuleType("IPython.display")
    display_module.display = lambda *objects, **settings: shown.extend(objects)  # type: ignore[attr-defined]
    package = ModuleType("IPython")
    package.display = display_module  # type: ignore[attr-defined]
    monkeypatch.setattr(builtins, "get_ipython", ZMQInteractiveShell, raising=False)
    monkeypatch.setitem(sys.modules, "IPython", package)
    monkeypatch.setitem(sys.modules, "IPython.display", display_module)
    return shown


def test_rich_believes_to_be_in_jupyter(shown_by_jupyter: list[Any]) -> None:
    stream = io.StringIO()
    console = Console(file=stream)
    console.print("text")
    assert console.is_jupyter
    assert (stream.getvalue(), len(shown_by_jupyter)) == ("", 1)


@pytest.mark.parametrize("report", [passed(), failed(), doubtful()], ids=["pass", "fail", "inconclusive"])
def test_text_of_a_report_is_the_same_in_jupyter(report: Report, shown_by_jupyter: list[Any]) -> None:
    assert str(report).startswith(f"{report.verdict} {report.title}")
    assert repr(report) == str(report) == terminal.plain(report)
    assert shown_by_jupyter == []


def test_error_has_its_text_in_jupyter(shown_by_jupyter: list[Any]) -> None:
    with pytest.raises(GradientError, match=r"^FAIL bad"):
        failed().raise_if_failed()
    assert shown_by_jupyter == []


def test_report_is_shown_once_in_jupyter(shown_by_jupyter: list[Any]) -> None:
    """Jupyter asks a cell's result for all of its forms and shows the richest."""
    forms = {"text/plain": repr(failed()), "text/html": failed()._repr_html_()}
    assert all("bad" in form for form in forms.values())
    assert shown_by_jupyter == []


def test_notebook_shows_the_line_of_what_is_wrong() -> None:
    assert "ops.py:17" in failed()._repr_html_()
    assert "ops.py" not in passed()._repr_html_()


def test_renderers_write_to_their_stream_in_jupyter(
    shown_by_jupyter: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    stream = io.StringIO()
    terminal.show([failed()], terminal.console_for(stream))
    show([summary_of("op", [failed()])], terminal.console_for(stream))
    assert stream.getvalue().count("FAIL bad") == 1
    assert "op" in stream.getvalue()
    terminal.show([passed()])
    assert capsys.readouterr().out.startswith("PASS good")
    assert shown_by_jupyter == []


# Markup.

LABELS = ("grad[/norm]", "[red]weight[/red]", "[/]", "x[0]", "[link=http://a]b[/link]", ":smile:", "\\[a]", "[bold")


def labelled(label: str, verdict: Verdict) -> Report:
    """A report with the label wherever text of users or files can be."""
    entry = Mismatch(Location(0, label, label), Location(0, label, label), 1.0, 2.0, 1e-9, 1e-9)
    finding = Finding(label, verdict, label, (entry, worst()), facts={"exercised": [label]}, advice=label)
    row = LedgerRow(label, label, label, 3, 1, 0.5, 0.1, (label,))
    source = failed().source
    assert source is not None
    return replace(
        failed(label),
        findings=(finding, replace(finding, verdict=Verdict.SKIPPED)),
        notes=(label,),
        replay=label,
        source=replace(source, file=label),
        environment={label: label},
        ledger=(row,),
        expects_ledger=True,
    )


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("verdict", [Verdict.FAIL, Verdict.INCONCLUSIVE, Verdict.PASS])
@pytest.mark.parametrize("is_terminal", [True, False])
def test_labels_are_printed_as_they_are(label: str, verdict: Verdict, is_terminal: bool) -> None:
    report = labelled(label, verdict)
    stream = io.StringIO()
    terminal.show([report], Console(file=stream, force_terminal=is_terminal, width=400, color_system=None))
    terminal.show([report], terminal.console_for(stream))
    assert stream.getvalue().count(label) == 2 * str(report).count(label) > 20


@pytest.mark.parametrize("label", LABELS)
def test_labels_in_a_pass_are_printed_as_they_are(label: str) -> None:
    assert terminal.plain(replace(passed(label), notes=(label,))).count(label) == 2


@pytest.mark.parametrize("label", LABELS)
def test_labels_in_a_summary_are_printed_as_they_are(label: str) -> None:
    summaries = [summary_of(label, [labelled(label, Verdict.FAIL), errored(label, label)], [label])]
    stream = io.StringIO()
    show(summaries, Console(file=stream, width=400))
    assert stream.getvalue().count(label) >= 6


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("is_terminal", [True, False])
def test_labels_in_the_progress_of_a_run_are_printed_as_they_are(label: str, is_terminal: bool) -> None:
    stream = io.StringIO()
    times = iter(range(0, 10_000, 60))
    console = Console(file=stream, force_terminal=is_terminal, width=400, color_system=None)
    with progress([label, "other"], console, lambda: float(next(times))) as advance:
        advance(label, labelled(label, Verdict.FAIL))
        advance("other", errored("other", label))
    assert is_terminal or stream.getvalue().count(label) >= 3


@pytest.mark.parametrize("label", LABELS)
def test_labels_are_on_the_page(label: str) -> None:
    assert label in html.page([labelled(label, Verdict.FAIL)])
    assert label in labelled(label, Verdict.FAIL)._repr_html_()
