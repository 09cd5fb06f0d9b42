"""The two pictures of a finding: where the Jacobians disagree, and how the differences depend on the step.

A figure is made of what stands in `Finding.facts`; a fact that is not there gives no figure.

    numerical, derivative   blocks of outputs × inputs, by differences and by the derivative under test
    rows, columns           what their rows and columns are called (optional)
    block                   these four for a part of the Jacobian around the worst entry, where the whole is not for it
    sweep                   steps, errors (of the difference at each step), floor (what roundoff alone would give),
                            chosen (the step that the verdict rests on), gap (by how much the derivative is off)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from gradvet.core.results import Finding

HOVER = (
    "d %{y} / d %{x}<br>derivative %{customdata[0]}<br>finite differences %{customdata[1]}"
    "<br>difference %{z:.4g}<extra></extra>"
)
HEIGHT = 340
RED, BLUE, GREY = "#d6336c", "#3b82c4", "#8a8f98"
MARGIN = {"l": 8, "r": 8, "t": 40, "b": 8}


def figures(finding: Finding) -> Iterator[tuple[str, str]]:
    """The kind of each figure that the facts allow, and the figure as JSON."""
    facts, block = finding.facts, _block(finding)
    if block.get("numerical") and block.get("derivative"):
        yield "heatmap", str(heatmap(finding).to_json())
    if facts.get("sweep"):
        yield "sweep", str(sweep(facts["sweep"]).to_json())


def heatmap(finding: Finding) -> go.Figure:
    """Derivative less finite differences, entry by entry, with the worst one framed."""
    facts = _block(finding)
    numerical, derivative = _numbers(facts["numerical"]), _numbers(facts["derivative"])
    rows = _names(facts.get("rows"), "output", len(numerical))
    columns = _names(facts.get("columns"), "input", len(numerical[0]))
    pairs = [list(zip(d, n, strict=True)) for d, n in zip(derivative, numerical, strict=True)]
    difference = [[d - n for d, n in row] for row in pairs]
    top = max((abs(z) for row in difference for z in row if math.isfinite(z)), default=0.0) or 1.0
    figure = go.Figure(
        go.Heatmap(
            z=difference,
            x=columns,
            y=rows,
            customdata=[[(f"{d:.7g}", f"{n:.7g}") for d, n in row] for row in pairs],
            hovertemplate=HOVER,
            colorscale=[[0.0, BLUE], [0.5, "#f4f4f2"], [1.0, RED]],
            zmin=-top,
            zmax=top,
            xgap=1,
            ygap=1,
            colorbar={"thickness": 12, "tickformat": ".2~g", "exponentformat": "power"},
        )
    )
    _frame_worst(figure, finding, rows, columns)
    figure.update_layout(title="derivative − finite differences", height=_height(len(rows)), margin=MARGIN)
    figure.update_xaxes(title="inputs", type="category", automargin=True, showgrid=False)
    figure.update_yaxes(title="outputs", type="category", autorange="reversed", automargin=True, showgrid=False)
    return figure


def sweep(facts: Mapping[str, Any]) -> go.Figure:
    """Error against step, both logarithmic: truncation to the right, roundoff to the left."""
    steps, errors = _floats(facts["steps"]), _floats(facts["errors"])
    figure = go.Figure()
    figure.add_scatter(
        x=steps,
        y=[error or None for error in errors],  # a logarithmic axis has no zero
        mode="lines+markers",
        connectgaps=True,
        name="error of the difference",
        line={"color": BLUE},
        hovertemplate="step %{x:.2e}<br>error %{y:.2e}<extra></extra>",
    )
    if facts.get("floor"):
        dashes = {"color": GREY, "dash": "dot"}
        figure.add_scatter(x=steps, y=_floats(facts["floor"]), mode="lines", name="noise floor", line=dashes)
    if facts.get("gap"):
        gap = abs(float(facts["gap"]))
        figure.add_scatter(
            x=[steps[0], steps[-1]],
            y=[gap, gap],
            mode="lines",
            name="error of the derivative",
            line={"color": RED, "dash": "dash"},
        )
    if facts.get("chosen"):
        heights = [y for trace in figure.data for y in trace.y if y]
        chosen = [float(facts["chosen"])] * 2
        figure.add_scatter(
            x=chosen, y=[min(heights), max(heights)], mode="lines", name="chosen step", line={"color": GREY}
        )
    figure.update_layout(title="error against step", height=HEIGHT, margin=MARGIN)
    figure.update_layout(legend={"orientation": "h", "y": -0.3})
    figure.update_xaxes(title="step", type="log", exponentformat="power", automargin=True, dtick=2, ticklabelstep=1)
    figure.update_yaxes(title="error", type="log", exponentformat="power", automargin=True, title_standoff=12)
    return figure


def _block(finding: Finding) -> Mapping[str, Any]:
    return finding.facts.get("block") or finding.facts


def _frame_worst(figure: go.Figure, finding: Finding, rows: Sequence[str], columns: Sequence[str]) -> None:
    for entry in finding.mismatches[:1]:
        if str(entry.output) in rows and str(entry.input) in columns:
            i, j = rows.index(str(entry.output)), columns.index(str(entry.input))
            frame = {"color": "#111", "width": 2}
            figure.add_shape(type="rect", x0=j - 0.5, x1=j + 0.5, y0=i - 0.5, y1=i + 0.5, line=frame)


def _height(rows: int) -> int:
    return max(HEIGHT, min(720, 120 + 16 * rows))


def _names(given: Any, kind: str, count: int) -> list[str]:
    return [str(name) for name in given] if given else [f"{kind} [{i}]" for i in range(count)]


def _floats(values: Sequence[Any]) -> list[float]:
    return [float(value) for value in values]


def _numbers(matrix: Sequence[Sequence[Any]]) -> list[list[float]]:
    return [_floats(row) for row in matrix]
