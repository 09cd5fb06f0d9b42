"""Figures are drawn from the facts of a finding, and both interfaces supply those facts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple
from xml.etree import ElementTree

import pytest
import torch
from torch import Tensor

import gradvet
from gradvet.core.events import listening
from gradvet.core.results import Finding, Report
from gradvet.reports.html import figures, page
from tests.functions import with_derivative
from tests.reports.samples import COLUMNS, DERIVATIVE, NUMERICAL, ROWS, WRONG, facts, failed


class Figure(NamedTuple):
    """What `figures` gives."""

    kind: str
    svg: str
    caption: str


def kinds(finding: Finding) -> list[str]:
    return [kind for kind, _, _ in figures(finding)]


def drawn(**changes: Any) -> dict[str, Figure]:
    finding = failed().findings[1]
    kept = {name: value for name, value in {**facts(), **changes}.items() if value is not None}
    return {figure[0]: Figure(*figure) for figure in figures(replace(finding, facts=kept))}


def elements(figure: Figure, tag: str, kind: str = "") -> list[ElementTree.Element]:
    """The elements of the SVG, which must be well-formed."""
    return [one for one in ElementTree.fromstring(figure.svg).iter(tag) if kind in ("", one.get("class"))]


def text(figure: Figure) -> str:
    return " ".join(ElementTree.fromstring(figure.svg).itertext())


def test_heat_map_colours_the_wrong_entry_and_names_both_values() -> None:
    figure = drawn()["heatmap"]
    i, j = WRONG
    (cell,) = elements(figure, "rect", "high" if DERIVATIVE[i][j] > NUMERICAL[i][j] else "low")
    words = f"d output [1] / d weight [2]: derivative {DERIVATIVE[i][j]:.7g}, finite differences {NUMERICAL[i][j]:.7g}"
    assert "".join(cell.itertext()).startswith(words)
    assert cell.get("fill-opacity") == "1.00"


def test_small_differences_are_seen_beside_large_ones() -> None:
    derivative = [list(row) for row in NUMERICAL]
    derivative[1][2] += 100.0
    derivative[0][1] += 0.01
    derivative[2][3] += 1e-9
    levels = [
        float(cell.get("fill-opacity", 0)) for cell in elements(drawn(derivative=derivative)["heatmap"], "rect", "high")
    ]
    assert len(levels) == 2
    assert min(levels) > 0.3


def test_frame_is_around_the_largest_difference() -> None:
    derivative = [list(row) for row in DERIVATIVE]
    derivative[2][0] += 50.0
    (frame,) = elements(drawn(derivative=derivative)["heatmap"], "rect", "frame")
    (flat,) = elements(drawn()["heatmap"], "rect", "flat")
    side = float(flat.get("width", 0)) / COLUMNS
    assert float(frame.get("x", 0)) == float(flat.get("x", 0))
    assert float(frame.get("y", 0)) == pytest.approx(2 * side, abs=0.1)
    derivative[1][3] = float("nan")
    assert "d output [1] / d weight [3]" in drawn(derivative=derivative)["heatmap"].caption


def test_rows_and_columns_without_names_are_numbered() -> None:
    found = text(drawn(rows=None, columns=None)["heatmap"])
    assert all(f"output [{i}]" in found for i in range(ROWS))
    assert all(f"input [{j}]" in found for j in range(COLUMNS))


def test_names_are_escaped() -> None:
    found = drawn(rows=[f"<b>{i}" for i in range(ROWS)])["heatmap"]
    assert "<b>" not in found.svg
    assert "<b>0" in text(found)


def test_sweep_has_errors_floor_gap_and_explains_the_chosen_step() -> None:
    figure = drawn()["sweep"]
    assert [line.get("class") for line in elements(figure, "polyline")] == ["difference", "floor", "gap"]
    assert len(elements(figure, "line", "chosen")) == 1
    assert "The vertical line is the step that was used, 3.8e-06: smaller steps lose digits" in figure.caption


def test_sweep_that_was_extrapolated_says_so() -> None:
    known: Any = facts()["sweep"]
    figure = drawn(sweep={**known, "extrapolated": True})["sweep"]
    assert "Differences at the step of the vertical line, 3.8e-06, and at the next smaller ones" in figure.caption
    assert "step that was used" not in figure.caption


def test_sweep_without_floor_gap_and_chosen_step_has_errors_alone() -> None:
    figure = drawn(sweep={"steps": [0.5, 0.25, 0.1], "errors": [0.1, 0.0, 0.01]})["sweep"]
    (line,) = elements(figure, "polyline")
    assert len(line.get("points", "").split()) == 2
    assert elements(figure, "line", "chosen") == []
    assert list(drawn(sweep={"steps": [0.5], "errors": [0.0]})) == ["heatmap"]


def test_values_that_are_not_finite_are_marked() -> None:
    derivative = [["nan", *row[1:]] for row in DERIVATIVE]
    assert len(elements(drawn(derivative=derivative)["heatmap"], "rect", "undefined")) == ROWS


def test_difference_without_an_error_is_not_explained_as_a_line() -> None:
    figure = drawn(sweep={"steps": [0.5, 0.25], "errors": [0.0, 0.0], "gap": 1.0})["sweep"]
    assert [line.get("class") for line in elements(figure, "polyline")] == ["gap"]
    assert figure.caption.startswith("error of the difference (not drawn: zero or not finite) against its step")


@pytest.mark.parametrize(("missing", "left"), [("numerical", ["sweep"]), ("sweep", ["heatmap"])])
def test_facts_that_are_missing_give_no_figure(missing: str, left: list[str]) -> None:
    assert list(drawn(**{missing: None})) == left


def _slope(x: Tensor) -> Tensor:
    """That of x³, wrong for the element 4."""
    factors = torch.ones_like(x)
    factors[4] = 1.5
    return 3.0 * x**2 * factors


cubed = with_derivative(lambda x: x**3, _slope)
"""y = x³, with a gradient and a tangent that are wrong for the element 4."""


def gradcheck_finding(size: int, *, forward: bool = False) -> Finding:
    reports: list[Report] = []
    point = torch.linspace(0.5, 2.0, size, dtype=torch.float64).requires_grad_()
    with listening(reports.append):
        gradvet.gradcheck(cubed, point, raise_exception=False, check_forward_ad=forward, check_backward_ad=not forward)
    return reports[0].failures[0]


def gaps(finding: Finding) -> dict[tuple[str, str], float]:
    block = finding.facts["block"]
    return {
        (row, column): abs(block["derivative"][i][j] - block["numerical"][i][j])
        for i, row in enumerate(block["rows"])
        for j, column in enumerate(block["columns"])
    }


@pytest.mark.parametrize("forward", [False, True], ids=["reverse", "forward"])
@pytest.mark.parametrize("size", [6, 60, 300], ids=["whole", "window", "computed"])
def test_gradcheck_supplies_a_block_that_shows_the_wrong_entry_at_every_size(size: int, forward: bool) -> None:
    found = gaps(gradcheck_finding(size, forward=forward))
    assert max(found, key=found.__getitem__) == ("output 0 [4]", "input 0 [4]")
    assert sum(gap > 1e-3 for gap in found.values()) == 1


def test_gradcheck_supplies_a_sweep_that_falls_far_below_the_error_of_the_derivative_and_rises_again() -> None:
    sweep = gradcheck_finding(6).facts["sweep"]
    assert sweep["chosen"] == 1e-6
    assert min(sweep["errors"]) < 1e-6 * sweep["gap"]
    assert 10.0 * min(sweep["errors"]) < sweep["errors"][-1] < 1e-6 < sweep["errors"][0]
    assert len(sweep["steps"]) == len(sweep["errors"]) == len(sweep["floor"])


def test_both_figures_of_gradcheck_can_be_drawn() -> None:
    assert kinds(gradcheck_finding(300)) == ["heatmap", "sweep"]


def test_gradcheck_computes_no_figures_without_a_listener() -> None:
    point = torch.linspace(0.5, 2.0, 6, dtype=torch.float64).requires_grad_()
    with pytest.raises(gradvet.GradcheckError) as caught:
        gradvet.gradcheck(cubed, point)
    assert caught.value.report is not None
    assert "sweep" not in caught.value.report.failures[0].facts


def test_sweep_stays_inside_the_domain_of_the_function() -> None:
    def rooted(x: Tensor) -> Tensor:
        if bool((x < 0.0).any()):
            raise ValueError("negative")
        return cubed(x)

    reports: list[Report] = []
    with listening(reports.append):
        gradvet.gradcheck(
            rooted, torch.full((6,), 1e-2, dtype=torch.float64).requires_grad_(), atol=0.0, raise_exception=False
        )
    sweep = reports[0].failures[0].facts["sweep"]
    assert max(sweep["steps"]) <= 1e-2


@pytest.fixture(scope="module")
def native_finding() -> Finding:
    (failure,) = gradvet.check(cubed, torch.linspace(0.5, 2.0, 6, dtype=torch.float64), checks=["reverse"]).failures
    return failure


def test_check_supplies_the_block_around_the_wrong_entry(native_finding: Finding) -> None:
    facts = native_finding.facts
    assert facts["rows"] == [f"output [{i}]" for i in range(6)]
    assert facts["columns"] == [f"input 0 [{i}]" for i in range(6)]
    gaps = [
        [abs(d - n) for d, n in zip(*rows, strict=True)]
        for rows in zip(facts["derivative"], facts["numerical"], strict=True)
    ]
    assert max((gap, (i, j)) for i, row in enumerate(gaps) for j, gap in enumerate(row))[1] == (4, 4)


def test_check_supplies_a_sweep_that_falls_far_below_the_error_of_the_derivative(native_finding: Finding) -> None:
    sweep = native_finding.facts["sweep"]
    entry = native_finding.mismatches[0]
    assert sweep["gap"] == pytest.approx(abs(entry.derivative - entry.numerical))
    assert min(sweep["errors"]) < 1e-6 * sweep["gap"]
    assert sweep["chosen"] in sweep["steps"]
    assert len(sweep["steps"]) == len(sweep["errors"]) == len(sweep["floor"])


def test_both_figures_of_check_can_be_drawn(native_finding: Finding) -> None:
    assert kinds(native_finding) == ["heatmap", "sweep"]


def errors_of(kernel: float) -> dict[str, object]:
    plain = [[1e-7, 2e-7, 0.0], [3e-7, 1e-7, 1e-7]]
    return {
        "kernel": [[1e-7, kernel, 0.0], plain[1]],
        "plain": plain,
        "rows": ["0", "1"],
        "columns": ["0:4", "4:8", "8:12"],
    }


def test_errors_of_a_kernel_are_drawn_beside_those_of_plain_torch() -> None:
    figure = drawn(errors=errors_of(0.5), tensor="grad of input 1")["errors"]
    cells = {"".join(cell.itertext()): cell.get("fill-opacity") for cell in elements(figure, "rect", "high")}
    assert cells["kernel [0, 4:8]: largest error 0.5"] == "1.00"
    assert not any(name.startswith("plain torch [0, 8:12]") for name in cells)
    assert figure.caption.startswith("errors of grad of input 1 by position")
    texts = list(ElementTree.fromstring(figure.svg).itertext())
    assert {"kernel", "plain torch", "0", "1"} <= set(texts)
    assert all(texts.count(column) == 2 for column in ("0:4", "4:8", "8:12"))  # below both maps


def test_errors_as_large_as_those_of_plain_torch_have_hardly_a_colour() -> None:
    rounding = [[1e-3, 2e-3, 1.5e-3], [3e-3, 1e-3, 2e-3]]
    known = {
        "kernel": [[1e-3, 0.14, 2e-3], rounding[1]],
        "plain": rounding,
        "rows": ["0", "1"],
        "columns": ["0", "1", "2"],
    }
    figure = drawn(errors=known)["errors"]
    cells = {
        "".join(cell.itertext()): float(cell.get("fill-opacity") or 0) for cell in elements(figure, "rect", "high")
    }
    assert cells.pop("kernel [0, 1]: largest error 0.14") == 1.0
    assert max(cells.values()) < 0.4
    assert figure.caption.endswith("on a logarithmic scale from 0.002 (no colour) to 0.14")


def test_comparison_with_a_reference_supplies_the_errors() -> None:
    report = gradvet.check(torch.tanh, torch.randn(30, 40).bfloat16(), reference=torch.tanh, seed=0)
    (finding,) = [one for one in report.findings if one.check == "reference"]
    assert kinds(finding) == ["errors"]
    assert "errors by position" in page([report])


def test_frame_is_around_the_entry_that_the_table_names_first_where_several_are_equally_large() -> None:
    report = gradvet.check(Batch, (torch.ones(3, 2, dtype=torch.float64), torch.ones(2, dtype=torch.float64)), seed=1)
    finding = report.failures[0]
    (heatmap,) = [Figure(*one) for one in figures(finding) if one[0] == "heatmap"]
    assert heatmap.caption.endswith(f"the frame marks the largest, {finding.mismatches[0]}")


class Batch(torch.autograd.Function):
    """A bias whose gradient is a mean in place of a sum: all entries are off by the same amount."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:
        return x + bias

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        return dy, dy.mean(0)
