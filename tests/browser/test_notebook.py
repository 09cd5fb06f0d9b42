"""A real notebook, executed by nbconvert and opened in a browser: each report is shown once, as text and as a table."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import CHROMIUM, FLAGS, PATIENCE

SOURCE = Path(__file__).parents[2] / "src"

CELLS = [
    f"import sys; sys.path.insert(0, {str(SOURCE)!r})\nimport torch, gradvet",
    """class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.saved_tensors[0]

x = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
report = gradvet.check(Square, x, seed=1)
passing = gradvet.check(torch.sin, x, seed=1)""",
    "report",
    "passing",
    "print(str(report))",
    """try:
    gradvet.assert_gradients(Square, x, seed=1, msg="my layer")
except gradvet.GradientError as error:
    print("raised:", error)""",
    "gradvet.blame(torch.nn.Sequential(torch.nn.Linear(3, 2)).double(), x)",
]
SHOWN, PASSING, PRINTED, RAISED, MODEL = range(2, 7)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    nbformat = pytest.importorskip("nbformat")
    for package in ("nbconvert", "ipykernel"):
        pytest.importorskip(package)
    if CHROMIUM is None:
        pytest.skip("there is no Chromium: install it, or name it in CHROMIUM")
    folder = tmp_path_factory.mktemp("notebook")
    cells = [nbformat.v4.new_code_cell(cell) for cell in CELLS]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), folder / "first.ipynb")
    command = [sys.executable, "-m", "nbconvert", "--to", "html", "--execute", "--allow-errors", "first.ipynb"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE // 1000)
    assert done.returncode == 0, done.stderr
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS, timeout=PATIENCE)
        page = browser.new_page(viewport={"width": 1200, "height": 900})
        page.set_default_timeout(PATIENCE)
        page.route("http*://**", lambda route: route.abort())  # nbconvert's page asks for scripts of its own
        page.goto((folder / "first.html").as_uri())
        yield page
        browser.close()


def output(page: Any, cell: int) -> str:
    """What the page shows below a cell."""
    found: str = page.locator(".jp-CodeCell").nth(cell).locator(".jp-Cell-outputWrapper").inner_text()
    return found


def test_cells_without_a_result_show_nothing(page: Any) -> None:
    assert page.locator(".jp-CodeCell").count() == len(CELLS)
    outputs = page.locator(".jp-CodeCell").nth(1).locator(".jp-OutputArea-child")
    assert outputs.count() == 0


def test_report_is_shown_once_with_verdict_entries_and_diagnosis(page: Any) -> None:
    shown = output(page, SHOWN)
    assert shown.count("FAIL Square") == 1
    assert "The ratio is 0.5 everywhere" in shown
    assert page.locator(".jp-CodeCell").nth(SHOWN).locator(".jp-OutputArea-child").count() == 1
    assert page.locator(".jp-CodeCell").nth(SHOWN).locator("table").count() >= 1


def test_passing_report_is_shown_once(page: Any) -> None:
    assert output(page, PASSING).count("PASS sin") == 1
    assert page.locator(".jp-CodeCell").nth(PASSING).locator(".jp-OutputArea-child").count() == 1


def test_report_prints_its_text_once(page: Any) -> None:
    printed = output(page, PRINTED)
    assert printed.strip().startswith("FAIL Square")
    assert printed.count("The ratio is 0.5 everywhere") == 1
    assert page.locator(".jp-CodeCell").nth(PRINTED).locator(".jp-OutputArea-child").count() == 1


def test_exception_has_a_message(page: Any) -> None:
    raised = output(page, RAISED)
    assert raised.strip().startswith("raised: my layer\nFAIL Square")
    assert "The ratio is 0.5 everywhere" in raised


def test_report_about_a_model_is_shown_once(page: Any) -> None:
    assert "PASS Sequential" in output(page, MODEL)
    assert page.locator(".jp-CodeCell").nth(MODEL).locator(".jp-OutputArea-child").count() == 1
