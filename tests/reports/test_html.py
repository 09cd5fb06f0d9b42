"""The page and the notebook view as text; `tests/browser` opens the page in a browser.

Also tests `reports/__init__.py`.
"""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from gradvet.core.results import RENDERERS
from gradvet.reports.html import MissingLibraryError, page, write
from tests.reports.samples import doubtful, failed, passed


class AddressParser(HTMLParser):
    """Collects the addresses that a page would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if name in ("src", "href") and value and value != "data:,"]


def test_page_loads_no_other_file() -> None:
    parser = AddressParser()
    parser.feed(page([failed(), passed()]))
    assert parser.found == []


def test_page_counts_the_verdicts() -> None:
    text = page([failed("a"), failed("b"), passed(), doubtful()])
    assert "4 checks: 2 fail, 1 inconclusive, 1 pass" in text


def test_failures_come_first() -> None:
    titles = re.findall(r'<span class="title">(\w+)</span>', page([passed(), doubtful(), failed()]))
    assert titles == ["bad", "jump", "good"]


def test_page_shows_code_location_and_environment() -> None:
    text = page([failed()])
    assert "ops.py:17" in text
    assert "python 3.12" in text
    assert "torch 2.9" in text
    assert re.search(r"<span class=\"linenos\">17</span>", text)


def test_figures_belong_to_their_finding() -> None:
    assert re.findall(r'class="figure" data-kind="(\w+)"', page([passed(), failed()])) == ["heatmap", "sweep"]


def test_page_without_figures_carries_no_plotting_library() -> None:
    assert len(page([passed()])) < 100_000


def test_text_of_a_report_is_escaped() -> None:
    text = page([replace(failed("<script>alert(1)</script>"), replay="</script><b>")])
    assert "<script>alert(1)" not in text
    assert "</script><b>" not in text


def test_write_makes_one_file(tmp_path: Path) -> None:
    write([passed()], tmp_path / "page.html")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_missing_library_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(MissingLibraryError, match=r"pip install 'gradvet\[report\]'"):
        page([passed()])


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
