"""The two pictures of a finding: where the Jacobians disagree, and how the differences depend on the step.

A figure is made of what stands in `Finding.facts`; a fact that is not there gives no figure.

    numerical, derivative   blocks of outputs × inputs, by differences and by the derivative under test
    rows, columns           what their rows and columns are called (optional)
    block                   these four for a part of the Jacobian around the worst entry, where the whole is not for it
    sweep                   steps, errors (of the difference at each step), floor (what roundoff alone would give),
                            chosen (the step that the verdict rests on), gap (by how much the derivative is off)
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gradvet.core.results import Finding

Figure = dict[str, Any]
"""Data and layout in plotly's terms; plain, for plotly's own objects would take most of a page's time."""

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
        yield "heatmap", json.dumps(heatmap(finding))
    if facts.get("sweep"):
        yield "sweep", json.dumps(sweep(facts["sweep"]))


def heatmap(finding: Finding) -> Figure:
    """Derivative less finite differences, entry by entry, with the worst one framed."""
    facts = _block(finding)
    numerical, derivative = _numbers(facts["numerical"]), _numbers(facts["derivative"])
    rows = _names(facts.get("rows"), "output", len(numerical))
    columns = _names(facts.get("columns"), "input", len(numerical[0]))
    pairs = [list(zip(d, n, strict=True)) for d, n in zip(derivative, numerical, strict=True)]
    difference = [[_finite(d - n) for d, n in row] for row in pairs]
    top = max((abs(z) for row in difference for z in row if z is not None), default=0.0) or 1.0
    trace = {
        "type": "heatmap",
        "z": difference,
        "x": columns,
        "y": rows,
        "customdata": [[[f"{d:.7g}", f"{n:.7g}"] for d, n in row] for row in pairs],
        "hovertemplate": HOVER,
        "colorscale": [[0.0, BLUE], [0.5, "#f4f4f2"], [1.0, RED]],
        "zmin": -top,
        "zmax": top,
        "xgap": 1,
        "ygap": 1,
        "colorbar": {"thickness": 12, "tickformat": ".2~g", "exponentformat": "power"},
    }
    axis = {"type": "category", "automargin": True, "showgrid": False}
    layout = {
        "title": {"text": "derivative − finite differences"},
        "height": _height(len(rows)),
        "margin": MARGIN,
        "shapes": _frames(finding, rows, columns),
        "xaxis": {"title": {"text": "inputs"}, **axis},
        "yaxis": {"title": {"text": "outputs"}, "autorange": "reversed", **axis},
    }
    return {"data": [trace], "layout": layout}


def sweep(facts: Mapping[str, Any]) -> Figure:
    """Error against step, both logarithmic: truncation to the right, roundoff to the left."""
    steps = _floats(facts["steps"])
    errors = _curve("error of the difference", steps, _floats(facts["errors"]), color=BLUE)
    errors |= {"mode": "lines+markers", "connectgaps": True}
    errors["hovertemplate"] = "step %{x:.2e}<br>error %{y:.2e}<extra></extra>"
    data = [errors]
    if facts.get("floor"):
        data.append(_curve("noise floor", steps, _floats(facts["floor"]), color=GREY, dash="dot"))
    if facts.get("gap"):
        gap = [abs(float(facts["gap"]))] * 2
        data.append(_curve("error of the derivative", [steps[0], steps[-1]], gap, color=RED, dash="dash"))
    if facts.get("chosen"):
        heights = [y for curve in data for y in curve["y"] if y]
        data.append(_curve("chosen step", [float(facts["chosen"])] * 2, [min(heights), max(heights)], color=GREY))
    axis = {"type": "log", "exponentformat": "power", "automargin": True}
    layout = {
        "title": {"text": "error against step"},
        "height": HEIGHT,
        "margin": MARGIN,
        "legend": {"orientation": "h", "y": -0.3},
        "xaxis": {"title": {"text": "step"}, "dtick": 2, **axis},
        "yaxis": {"title": {"text": "error", "standoff": 12}, **axis},
    }
    return {"data": data, "layout": layout}


def _curve(name: str, x: Sequence[float], y: Sequence[float], **line: str) -> dict[str, Any]:
    heights = [_finite(height) or None for height in y]  # a logarithmic axis has no zero
    return {"type": "scatter", "mode": "lines", "name": name, "x": list(x), "y": heights, "line": line}


def _block(finding: Finding) -> Mapping[str, Any]:
    return finding.facts.get("block") or finding.facts


def _frames(finding: Finding, rows: Sequence[str], columns: Sequence[str]) -> list[dict[str, Any]]:
    """A frame around the worst entry, if it is there."""
    found = []
    for entry in finding.mismatches[:1]:
        if str(entry.output) in rows and str(entry.input) in columns:
            i, j = rows.index(str(entry.output)), columns.index(str(entry.input))
            place = {"x0": j - 0.5, "x1": j + 0.5, "y0": i - 0.5, "y1": i + 0.5}
            found.append({"type": "rect", **place, "line": {"color": "#111", "width": 2}})
    return found


def _height(rows: int) -> int:
    return max(HEIGHT, min(720, 120 + 16 * rows))


def _names(given: Any, kind: str, count: int) -> list[str]:
    return [str(name) for name in given] if given else [f"{kind} [{i}]" for i in range(count)]


def _floats(values: Sequence[Any]) -> list[float]:
    return [float(value) for value in values]


def _numbers(matrix: Sequence[Sequence[Any]]) -> list[list[float]]:
    return [_floats(row) for row in matrix]


def _finite(value: float) -> float | None:
    """What JSON, and a figure, can hold."""
    return value if math.isfinite(value) else None
