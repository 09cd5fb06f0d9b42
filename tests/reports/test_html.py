"""The page and the notebook view as text; `tests/browser` opens the page in a browser.

Also tests `reports/__init__.py`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from gradvet.core.results import RENDERERS, Finding, Verdict
from gradvet.reports.blame import fragment as blame
from gradvet.reports.html import page, write
from tests.reports.samples import doubtful, errored, failed, passed
from tests.reports.test_blame import report as model


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
    assert re.findall(r'<figure data-kind="(\w+)"', page([passed(), failed()])) == ["heatmap", "sweep"]


def test_page_is_small() -> None:
    assert len(page([passed(), failed()])) < 100_000


def luminance(colour: str) -> float:
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * channel for weight, channel in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_contrast_of_badges_and_counts_is_at_least_4_5() -> None:
    style = page([]).partition("<style>")[2]
    light, _, dark = style.partition("@media")
    schemes = [dict(re.findall(r"--([\w-]+): (#\w{6})", part)) for part in (light, dark.partition("* {")[0])]
    card = {"card": "#ffffff"}
    colours = [{**schemes[0], **card}, {**schemes[0], **schemes[1]}]
    assert colours[0].keys() == colours[1].keys()
    for scheme in colours:
        for verdict in ("pass", "fail", "error", "inconclusive", "skipped"):
            assert contrast("#ffffff", scheme[verdict]) >= 4.5
        for verdict in ("pass", "fail", "error", "inconclusive"):
            assert contrast(scheme["card"], scheme[f"{verdict}-ink"]) >= 4.5
    badges = re.findall(r"\.gradvet \.\w+ \{ background: (#\w+);", passed()._repr_html_())
    assert len(badges) == 5
    assert all(contrast("#ffffff", colour) >= 4.5 for colour in badges)


def test_model_has_the_same_colours_as_other_reports() -> None:
    shown = [
        re.findall(r"\.gradvet \.\w+ \{ background: (#\w+);", one) for one in (passed()._repr_html_(), blame(model()))
    ]
    assert len(shown[0]) == 5
    assert shown[0] == shown[1]


def test_error_has_a_badge_and_a_filter() -> None:
    text = page([errored(), passed()])
    assert '<span class="badge error">error</span>' in text
    assert 'data-verdict="error" aria-pressed="true"' in text


def test_text_of_a_report_is_escaped() -> None:
    text = page([replace(failed("<script>alert(1)</script>"), replay="</script><b>")])
    assert "<script>alert(1)" not in text
    assert "</script><b>" not in text


def test_write_makes_one_file(tmp_path: Path) -> None:
    write([passed()], tmp_path / "page.html")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_notebook_shows_verdict_worst_entry_and_replay() -> None:
    text = failed()._repr_html_()
    assert '<span class="badge fail">fail</span>' in text
    assert "<td>output [1]</td><td>weight [2]</td>" in re.sub(r"</?span.*?>", "", text)
    assert "gradvet.check(bad, inputs, seed=7)" in text


def test_notebook_names_the_consequences_of_a_wrong_derivative_as_the_terminal_does() -> None:
    consequence = Finding("symmetry", Verdict.FAIL, "the Hessian is not symmetric")
    text = replace(failed(), findings=(*failed().findings, consequence))._repr_html_()
    assert "<p><b>probably consequences</b>: symmetry</p>" in text
    assert consequence.headline not in text


def test_notebook_runs_no_scripts() -> None:
    assert "<script" not in passed("<script>")._repr_html_()


def test_report_without_renderer_shows_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(RENDERERS, "html")
    assert failed()._repr_html_().startswith("<pre>FAIL bad")


def test_report_without_any_renderer_shows_its_headlines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(RENDERERS, "text")
    assert str(failed()) == "FAIL bad\n  reverse: reverse mode disagrees in 1 of 12 entries"
    assert str(passed()) == "PASS good"
