"""The page opens offline, filters, hovers and shows the wrong entry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gradvet.reports.blame import page as blame_page
from tests.browser.conftest import Visit
from tests.reports.samples import worst
from tests.reports.test_blame import report as blame_report


@pytest.fixture
def page(visit: Visit) -> Any:
    """The page as it is when opened."""
    page: Any = visit.page
    page.set_viewport_size({"width": 1200, "height": 900})
    page.reload()
    page.wait_for_selector("figure svg")
    return page


def shown(page: Any) -> list[str]:
    titles: list[str] = page.locator(".report:visible > summary .title").all_inner_texts()
    return titles


def test_page_opens_without_complaints_and_fetches_nothing_else(visit: Visit, page: Any) -> None:
    assert visit.complaints == []
    assert {url.rsplit("/", 1)[-1] for url in visit.requests if not url.startswith("data:")} == {"report.html"}


def test_failures_stand_first_and_the_first_three_are_open(page: Any) -> None:
    assert shown(page) == ["scaled", "tilted", "shifted", "last", "jump", "sine", "cosine", "tangent"]
    assert page.locator(".report[open] > summary .title").all_inner_texts() == ["scaled", "tilted", "shifted"]


def test_wrong_entry_is_shown_with_both_values(page: Any) -> None:
    cells = page.locator(".worst:visible td").all_inner_texts()
    entry = worst()
    assert cells[:3] == ["output [1]", "weight [2]", f"{entry.derivative:.7g}"]
    assert cells[3] == f"{entry.numerical:.7g} ± 2e-11"


def test_verdict_buttons_filter(page: Any) -> None:
    page.click("button.filter.pass")
    assert shown(page) == ["scaled", "tilted", "shifted", "last", "jump"]
    page.click("button.filter.fail")
    page.click("button.filter.inconclusive")
    assert shown(page) == []
    assert page.locator("#nothing").is_visible()
    page.click("button.filter.pass")
    assert shown(page) == ["sine", "cosine", "tangent"]


@pytest.mark.parametrize(
    ("words", "titles"),
    [
        ("SINE", ["sine", "cosine"]),
        ("constant factor", ["scaled", "tilted", "shifted", "last"]),
        ("nowhere", []),
        ("1e-10", []),
    ],
)
def test_search_finds_titles_and_diagnoses(page: Any, words: str, titles: list[str]) -> None:
    page.fill("#search", words)
    assert shown(page) == titles
    assert page.locator("#count").inner_text() == f"{len(titles)} of 8 shown"


@pytest.mark.parametrize(("scheme", "flat"), [("light", "rgb(244, 244, 242)"), ("dark", "rgb(42, 46, 54)")])
def test_entries_that_agree_take_the_colour_of_the_page(page: Any, scheme: str, flat: str) -> None:
    page.emulate_media(color_scheme=scheme)
    page.reload()
    page.wait_for_selector("figure svg")
    fill = "(cell) => getComputedStyle(cell).fill"
    assert page.locator('[data-kind="heatmap"] .flat').first.evaluate(fill) == flat


def violations(page: Any) -> list[tuple[str, str]]:
    """What axe says about a page whose parts are all open: rule and element."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true })")
    found = axe.run(page).response["violations"]
    return [(rule["id"], node["html"]) for rule in found for node in rule["nodes"]]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 390])
def test_pages_are_accessible(page: Any, scheme: str, width: int, tmp_path: Path) -> None:
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 800})
    assert violations(page) == []
    file = tmp_path / "blame.html"
    file.write_text(blame_page(blame_report()), encoding="utf-8")
    other = page.context.browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    other.goto(file.as_uri())
    assert violations(other) == []
    assert other.evaluate("document.documentElement.scrollWidth") <= width
    other.close()


def test_numbers_are_not_broken_into_lines_on_a_phone(page: Any) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    lines = """cell => { const range = document.createRange(); range.selectNodeContents(cell);
        return new Set([...range.getClientRects()].map(box => Math.round(box.top))).size }"""
    cells = page.locator(".entries:visible tbody td:nth-child(3), .entries:visible tbody td:nth-child(5)")
    assert cells.count() > 0
    assert [cells.nth(number).evaluate(lines) for number in range(cells.count())] == [1] * cells.count()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
