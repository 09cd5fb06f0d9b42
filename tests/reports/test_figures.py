"""Figures are made of facts, and of no more than there are."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import plotly.graph_objects as go
import pytest

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
