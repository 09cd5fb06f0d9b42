"""A headless Chromium with one page open; its tests are left out where there is no Chromium."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradvet.reports.html import write
from tests.reports.samples import doubtful, failed, passed

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")
PATIENCE = 600_000
"""Milliseconds to wait for the browser. A loaded machine is slow."""


class Visit:
    """A page as the browser has it, and what the browser complained about."""

    def __init__(self, page: object) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.requests: list[str] = []


@pytest.fixture(scope="module")
def visit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visit]:
    """A report about four wrong, one doubtful and three right gradients."""
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium: install it, or name it in CHROMIUM")
    file = tmp_path_factory.mktemp("page") / "report.html"
    wrong = [failed(name) for name in ("scaled", "tilted", "shifted", "last")]
    write([passed("sine"), *wrong, doubtful("jump"), passed("cosine"), passed("tangent")], file)
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS, timeout=PATIENCE)
        page = browser.new_page(viewport={"width": 1200, "height": 900})
        page.set_default_timeout(PATIENCE)
        visit = Visit(page)
        page.on("console", lambda message: visit.complaints.append(message.text))
        page.on("pageerror", lambda error: visit.complaints.append(str(error)))
        page.on("request", lambda request: visit.requests.append(request.url))
        page.goto(Path(file).as_uri())
        yield visit
        browser.close()
