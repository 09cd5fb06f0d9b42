"""Figures are drawn from the facts of a finding, and both interfaces supply those facts."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import plotly.graph_objects as go
import pytest
import torch
from torch import Tensor

import gradvet
from gradvet.core.events import listening
from gradvet.core.results import Finding, Report
from gradvet.reports.figures import figures
from tests.reports.samples import COLUMNS, DERIVATIVE, NUMERICAL, ROWS, STEPS, WRONG, facts, failed


def drawn(**changes: Any) -> dict[str, Any]:
    finding = failed().findings[1]
    kept = {name: value for name, value in {**facts(), **changes}.items() if value is not None}
    return {kind: json.loads(text) for kind, text in figures(replace(finding, facts=kept))}


def test_figures_are_what_plotly_knows() -> None:
    for figure in drawn().values():
        go.Figure(figure)  # refuses names and values that it does not know


def test_heat_map_is_the_difference_of_outputs_by_inputs() -> None:
    (trace,) = drawn()["heatmap"]["data"]
    i, j = WRONG
    assert len(trace["z"]) == ROWS
    assert len(trace["z"][0]) == COLUMNS
    assert trace["z"][i][j] == pytest.approx(DERIVATIVE[i][j] - NUMERICAL[i][j])
    assert [value for row in trace["z"] for value in row if value] == [trace["z"][i][j]]


def test_hover_has_the_entry_and_both_values() -> None:
    (trace,) = drawn()["heatmap"]["data"]
    i, j = WRONG
    assert trace["customdata"][i][j] == [f"{DERIVATIVE[i][j]:.7g}", f"{NUMERICAL[i][j]:.7g}"]
    assert (trace["y"][i], trace["x"][j]) == ("output [1]", "weight [2]")


def test_worst_entry_is_framed() -> None:
    (frame,) = drawn()["heatmap"]["layout"]["shapes"]
    assert (frame["x0"], frame["x1"], frame["y0"], frame["y1"]) == (1.5, 2.5, 0.5, 1.5)


def test_rows_and_columns_without_names_are_numbered() -> None:
    (trace,) = drawn(rows=None, columns=None)["heatmap"]["data"]
    assert trace["y"] == [f"output [{i}]" for i in range(ROWS)]
    assert trace["x"] == [f"input [{j}]" for j in range(COLUMNS)]


def test_sweep_has_errors_floor_gap_and_chosen_step() -> None:
    sweep = drawn()["sweep"]
    traces = {trace["name"]: trace for trace in sweep["data"]}
    assert list(traces) == ["error of the difference", "noise floor", "error of the derivative", "chosen step"]
    assert traces["error of the difference"]["x"] == STEPS
    assert traces["chosen step"]["x"] == [2.0**-18] * 2
    assert sweep["layout"]["xaxis"]["type"] == sweep["layout"]["yaxis"]["type"] == "log"


def test_sweep_without_floor_gap_and_chosen_step_has_errors_alone() -> None:
    sweep = drawn(sweep={"steps": [0.5, 0.25], "errors": [0.1, 0.0]})["sweep"]
    assert [trace["name"] for trace in sweep["data"]] == ["error of the difference"]
    assert sweep["data"][0]["y"] == [0.1, None]


def test_values_that_are_not_finite_leave_holes() -> None:
    derivative = [["nan", *row[1:]] for row in DERIVATIVE]
    (trace,) = drawn(derivative=derivative)["heatmap"]["data"]
    assert [row[0] for row in trace["z"]] == [None] * ROWS


@pytest.mark.parametrize(("missing", "left"), [("numerical", ["sweep"]), ("sweep", ["heatmap"])])
def test_facts_that_are_missing_give_no_figure(missing: str, left: list[str]) -> None:
    assert list(drawn(**{missing: None})) == left


class Cubed(torch.autograd.Function):
    """y = x³, with a gradient and a tangent that are wrong for the element 4."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x**3

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return _with_one_wrong(3.0 * ctx.saved_tensors[0] ** 2 * dy)

    @staticmethod
    def jvp(ctx: Any, dx: Tensor) -> Tensor:
        return _with_one_wrong(3.0 * ctx.saved_tensors[0] ** 2 * dx)


def _with_one_wrong(values: Tensor) -> Tensor:
    factors = torch.ones_like(values)
    factors[4] = 1.5
    return values * factors


def gradcheck_finding(size: int, *, forward: bool = False) -> Finding:
    reports: list[Report] = []
    point = torch.linspace(0.5, 2.0, size, dtype=torch.float64).requires_grad_()
    with listening(reports.append):
        gradvet.gradcheck(
            Cubed.apply, point, raise_exception=False, check_forward_ad=forward, check_backward_ad=not forward
        )
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
    assert sweep["chosen"] in sweep["steps"]
    assert min(sweep["errors"]) < 1e-6 * sweep["gap"]
    assert sweep["errors"][0] > 1e-7 < sweep["errors"][-1]
    assert len(sweep["steps"]) == len(sweep["errors"]) == len(sweep["floor"])


def test_both_figures_of_gradcheck_can_be_drawn() -> None:
    assert [kind for kind, _ in figures(gradcheck_finding(300))] == ["heatmap", "sweep"]


def test_gradcheck_computes_no_figures_without_a_listener() -> None:
    point = torch.linspace(0.5, 2.0, 6, dtype=torch.float64).requires_grad_()
    with pytest.raises(gradvet.GradcheckError) as caught:
        gradvet.gradcheck(Cubed.apply, point)
    assert caught.value.report is not None
    assert "sweep" not in caught.value.report.failures[0].facts


def test_sweep_stays_inside_the_domain_of_the_function() -> None:
    def rooted(x: Tensor) -> Tensor:
        if bool((x < 0.0).any()):
            raise ValueError("negative")
        return Cubed.apply(x)  # type: ignore[no-any-return, no-untyped-call]

    reports: list[Report] = []
    with listening(reports.append):
        gradvet.gradcheck(
            rooted, torch.full((6,), 1e-2, dtype=torch.float64).requires_grad_(), atol=0.0, raise_exception=False
        )
    sweep = reports[0].failures[0].facts["sweep"]
    assert max(sweep["steps"]) <= 1e-2


@pytest.fixture(scope="module")
def native_finding() -> Finding:
    (failure,) = gradvet.check(Cubed, torch.linspace(0.5, 2.0, 6, dtype=torch.float64), checks=["reverse"]).failures
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
    assert [kind for kind, _ in figures(native_finding)] == ["heatmap", "sweep"]
