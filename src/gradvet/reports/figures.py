"""The two figures of a finding: difference of the Jacobians, and finite-difference error against step size.

A figure is drawn from `Finding.facts`, and left out if its facts are missing.

    numerical, derivative   Jacobian (outputs × inputs) by finite differences and by the derivative under test
    rows, columns           names of outputs and inputs (optional)
    block                   the four facts above for the block around the worst entry of a large Jacobian
    sweep                   steps, errors (of the difference at each step), floor (error expected from roundoff alone),
                            chosen (the step that decided the verdict), gap (error of the derivative)
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gradvet.core.results import Finding

Figure = dict[str, Any]
"""Data and layout as plotly reads them from JSON. Building plotly's own objects would dominate the time of a page."""

HOVER = (
    "d %{y} / d %{x}<br>derivative %{customdata[0]}<br>finite differences %{customdata[1]}"
    "<br>difference %{z:.4g}<extra></extra>"
)
HEIGHT = 340
"""Smallest height of a figure, in pixels."""

RED, BLUE, GREY = "#d6336c", "#3b82c4", "#8a8f98"
MARGIN = {"l": 8, "r": 8, "t": 40, "b": 8}


def figures(finding: Finding) -> Iterator[tuple[str, str]]:
    """Pairs of kind and JSON for the figures whose facts are present."""
    facts, block = finding.facts, _block(finding)
    if block.get("numerical") and block.get("derivative"):
        yield "heatmap", json.dumps(heatmap(finding))
    if facts.get("sweep"):
        yield "sweep", json.dumps(sweep(facts["sweep"]))


def heatmap(finding: Finding) -> Figure:
    """Derivative minus finite differences for each entry, with a frame around the worst one."""
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
    """Error against step on logarithmic axes: roundoff dominates on the left, truncation on the right."""
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
    heights = [_finite(height) or None for height in y]  # a logarithmic axis cannot show zero
    return {"type": "scatter", "mode": "lines", "name": name, "x": list(x), "y": heights, "line": line}


def _block(finding: Finding) -> Mapping[str, Any]:
    return finding.facts.get("block") or finding.facts


def _frames(finding: Finding, rows: Sequence[str], columns: Sequence[str]) -> list[dict[str, Any]]:
    """A frame around the worst entry, if the block contains it."""
    frames = []
    for entry in finding.mismatches[:1]:
        if str(entry.output) in rows and str(entry.input) in columns:
            i, j = rows.index(str(entry.output)), columns.index(str(entry.input))
            corners = {"x0": j - 0.5, "x1": j + 0.5, "y0": i - 0.5, "y1": i + 0.5}
            frames.append({"type": "rect", **corners, "line": {"color": "#111", "width": 2}})
    return frames


def _height(rows: int) -> int:
    return max(HEIGHT, min(720, 120 + 16 * rows))


def _names(given: Any, kind: str, count: int) -> list[str]:
    return [str(name) for name in given] if given else [f"{kind} [{i}]" for i in range(count)]


def _floats(values: Sequence[Any]) -> list[float]:
    return [float(value) for value in values]


def _numbers(matrix: Sequence[Sequence[Any]]) -> list[list[float]]:
    return [_floats(row) for row in matrix]


def _finite(value: float) -> float | None:
    """None for NaN and infinity, which JSON cannot represent."""
    return value if math.isfinite(value) else None
