"""What a notebook shows of a report."""

from __future__ import annotations

import pytest

from gradvet.core.results import RENDERERS
from tests.reports.samples import failed, passed


def test_notebook_shows_verdict_worst_entry_and_replay() -> None:
    text = failed()._repr_html_()
    assert '<span class="badge fail">fail</span>' in text
    assert "<td>output [1]</td><td>weight [2]</td>" in text
    assert "gradvet.check(bad, inputs, seed=7)" in text


def test_notebook_runs_no_scripts() -> None:
    assert "<script" not in passed("<script>")._repr_html_()


def test_report_without_renderer_shows_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(RENDERERS, "html")
    assert failed()._repr_html_().startswith("<pre>FAIL bad")


def test_report_without_any_renderer_shows_its_headlines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(RENDERERS, "text")
    assert str(failed()) == "FAIL bad\n  reverse: reverse mode disagrees in 1 of 12 entries"
    assert str(passed()) == "PASS good"
