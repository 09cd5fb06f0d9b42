"""Makes the pictures of the documentation: python docs/images/make.py (needs Chromium)."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import plotly.graph_objects as go
import torch
from playwright.sync_api import sync_playwright

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parents[1] / "examples"))

from gradvet import gradcheck  # noqa: E402
from gradvet.core.events import listening  # noqa: E402
from gradvet.core.results import Report  # noqa: E402
from gradvet.reports.html import write  # noqa: E402
from gradvet.suite import Case  # noqa: E402
from right import RMSNorm  # noqa: E402
from wrong import HastyRMSNorm  # noqa: E402

SEED = 1


def point() -> torch.Tensor:
    return torch.randn(2, 3, dtype=torch.float64)


def page(path: Path) -> None:
    """A suite's `gradcheck` of a wrong function, then native checks of the examples and of a few operators."""
    torch.manual_seed(SEED)
    inputs = [point().requires_grad_(), torch.randn(3, dtype=torch.float64)]
    reports: list[Report] = []
    with listening(reports.append):
        gradcheck(HastyRMSNorm.apply, inputs, raise_exception=False)
    reports[0] = replace(reports[0], title="test_norm.py::test_hasty_rms_norm")
    cases = [
        Case("RMSNorm", RMSNorm, lambda: (point(), torch.randn(3, dtype=torch.float64))),
        Case("HastyRMSNorm", HastyRMSNorm, lambda: (point(), torch.randn(3, dtype=torch.float64))),
        Case("relu", torch.relu, point),
        Case("logsumexp", torch.logsumexp, point, {"kwargs": {"dim": 1}}),
        Case("floor", torch.floor, lambda: torch.zeros(3, dtype=torch.float64)),
    ]
    write([*reports, *(case.run(SEED) for case in cases)], path)


def steps(path: Path) -> None:
    """The error of a central difference of exp at 0.7 against its step."""
    figure = go.Figure()
    sizes = [2.0 ** (-k / 2) for k in range(2, 70)]
    for dtype, colour in ((torch.float64, "#3b82c4"), (torch.float32, "#d6336c")):
        x = torch.tensor(0.7, dtype=dtype)
        points = [(x + h, x - h) for h in sizes]
        found = [(a.exp() - b.exp()).double() / (a - b).double() for a, b in points if a != b]
        errors = [float(abs(slope - x.double().exp())) or None for slope in found]
        figure.add_scatter(x=sizes, y=errors, mode="lines+markers", name=str(dtype), line={"color": colour})
    _draw(figure, "error of the difference", path)


def residuals(path: Path) -> None:
    """Odd and even residuals against the step: exp at 0.7 with a right and a wrong slope, and |x| at zero."""
    sizes = [2.0 ** (-k / 2) for k in range(2, 60)]
    x = torch.tensor(0.7, dtype=torch.float64)
    slope = x.exp()
    pairs = [((x + h).exp(), (x - h).exp(), h) for h in sizes]
    curves = {
        "odd residual, slope right": ([(a - b) / 2 - slope * h for a, b, h in pairs], "#3b82c4", None),
        "odd residual, slope wrong by 0.1 %": ([(a - b) / 2 - 1.001 * slope * h for a, b, h in pairs], "#d6336c", None),
        "even residual, smooth": ([(a + b) / 2 - x.exp() for a, b, _ in pairs], "#3b82c4", "dot"),
        "even residual, kink": (sizes, "#d6336c", "dot"),
    }
    figure = go.Figure()
    for name, (values, colour, dash) in curves.items():
        heights = [float(abs(value)) or None for value in values]
        figure.add_scatter(x=sizes, y=heights, mode="lines", name=name, line={"color": colour, "dash": dash})
    _draw(figure, "residual", path)


def _draw(figure: go.Figure, quantity: str, path: Path) -> None:
    figure.update_xaxes(title="step", type="log", exponentformat="power", dtick=2)
    figure.update_yaxes(title=quantity, type="log", exponentformat="power", dtick=4)
    figure.update_layout(template="simple_white", width=760, height=380, margin={"t": 10, "r": 10})
    path.write_text(figure.to_html(include_plotlyjs=True), encoding="utf-8")


def main() -> None:
    os.chdir(FOLDER.parents[1])  # the page names files relative to it
    browser_path = os.environ.get("CHROMIUM") or shutil.which("chromium")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=browser_path, args=["--no-sandbox", "--disable-gpu"])
        for name, make, size in (
            ("report", page, (1180, 960)),
            ("steps", steps, (776, 396)),
            ("residuals", residuals, (776, 396)),
        ):
            file = Path(folder) / f"{name}.html"
            make(file)
            sheet = browser.new_page(viewport={"width": size[0], "height": size[1]}, color_scheme="light")
            sheet.goto(file.as_uri())
            sheet.wait_for_timeout(1500)
            sheet.screenshot(path=FOLDER / f"{name}.png")
        browser.close()


if __name__ == "__main__":
    main()
