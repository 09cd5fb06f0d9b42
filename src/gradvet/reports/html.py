"""Reports as an HTML page: one file with scripts, styles and figures, which opens offline.

A figure is drawn from `Finding.facts`, and left out if its facts are missing or unusable. It needs no script.

    numerical, derivative   Jacobian (outputs × inputs) by finite differences and by the derivative under test
    rows, columns           names of outputs and inputs (optional)
    block                   the four facts above for the block around the worst entry of a large Jacobian
    sweep                   steps, errors (of the difference at each step), floor (error expected from roundoff alone),
                            chosen (the step that decided the verdict), extrapolated (whether that is the largest of
                            several steps), gap (error of the derivative)
    errors                  kernel, plain (largest errors by position, of the kernel and of plain torch), rows, columns
"""

from __future__ import annotations

import datetime
import importlib.metadata
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from gradvet.core.results import WORST_FIRST, Finding, Report, SourceCode, Verdict
from gradvet.reports import ledger_table, wording
from gradvet.reports.json_files import write_text

DECADES = 6
"""Range of the colour scale: differences smaller by more powers of ten than the largest have no colour."""

WIDTH, LEFT, MAX_CELL, MAX_LABELS = 460, 110, 34, 16
"""Width of a figure, room for labels at its left, largest side of a cell, in pixels; labels per axis."""

ROW_LABELS = 64
"""Room for labels at the left of a map of errors, in pixels."""

TURNED_HEIGHT = 4.6
"""Height of one character of a turned label, in pixels."""

ALIKE = 1e-6
"""Relative difference up to which two differences count as equally large."""

HEIGHT = 250
"""Height of the plot of errors against steps, in pixels."""


Figure = tuple[str, str, str]
"""The kind of a drawing, its SVG, and the text below it."""

UNUSABLE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""Exceptions of drawing facts that are missing or not what they should be, as in a file that was changed."""


def figures(finding: Finding) -> Iterator[Figure]:
    """The figures whose facts are present and usable."""
    first = finding.mismatches[0] if finding.mismatches else None
    named = None if first is None else (str(first.output), str(first.input))
    drawings: tuple[Callable[[Mapping[str, Any]], Figure | None], ...] = (
        lambda facts: heatmap(facts.get("block") or facts, named),
        lambda facts: sweep(facts["sweep"]),
        errors,
    )
    for draw in drawings:
        with suppress(*UNUSABLE):
            if (drawn := draw(finding.facts)) is not None:
                yield drawn


def heatmap(block: Mapping[str, Any], named: tuple[str, str] | None = None) -> Figure:
    """Derivative minus finite differences for each entry, with a frame around the largest difference.

    Of several that are equally large, the one that the table names first is framed.
    """
    numerical, derivative = ([[float(x) for x in row] for row in block[name]] for name in ("numerical", "derivative"))
    rows = block.get("rows") or [f"output [{i}]" for i in range(len(numerical))]
    columns = block.get("columns") or [f"input [{j}]" for j in range(len(numerical[0]))]
    values = {
        (i, j): (d, n)
        for i, pair in enumerate(zip(derivative, numerical, strict=True))
        for j, (d, n) in enumerate(zip(*pair, strict=True))
    }
    sizes = {place: _size(d - n) for place, (d, n) in values.items()}
    names = {(i, j): (rows[i], columns[j]) for i, j in sizes}
    largest = max(sizes.values())
    worst = max(sizes, key=lambda place: (sizes[place] >= (1.0 - ALIKE) * largest, names[place] == named, sizes[place]))
    top = max((size for size in sizes.values() if math.isfinite(size)), default=0.0) or 1.0
    cells = []
    for place, (d, n) in values.items():
        colour = "undefined" if math.isinf(sizes[place]) else "high" if d > n else "low"
        text = f"derivative {d:.7g}, finite differences {n:.7g}, difference {d - n:.3g}"
        cells.append((*place, _shade(sizes[place], top, DECADES, colour), f"{_entry(names[place])}: {text}"))
    cells.append((*worst, 'class="frame"', ""))
    parts, bottom = _grid(cells, rows, columns, LEFT, 0, WIDTH - LEFT)
    parts += _row_labels(rows, LEFT, 0)
    caption = (
        "derivative − finite differences: red is too large, blue too small, on a logarithmic scale from "
        f"{top / 10**DECADES:.1g} (no colour) to {top:.2g}; the frame marks the largest, {_entry(names[worst])}"
    )
    return "heatmap", _svg(bottom, parts, "difference of the two Jacobians"), caption


def sweep(facts: Mapping[str, Any]) -> Figure | None:
    """Error against step on logarithmic axes: roundoff dominates on the left, truncation on the right."""
    steps = [float(step) for step in facts["steps"]]
    curves = {"difference": _points(steps, facts["errors"])}
    if facts.get("floor"):
        curves["floor"] = _points(steps, facts["floor"])
    if facts.get("gap"):
        curves["gap"] = _points([min(steps), max(steps)], [abs(float(facts["gap"]))] * 2)
    curves = {name: points for name, points in curves.items() if points}
    heights = [y for points in curves.values() for _, y in points]
    if not heights:
        return None
    low, high = math.floor(min(heights)), math.ceil(max(heights)) + (min(heights) == max(heights))
    shown = [*steps, float(facts.get("chosen") or steps[0])]
    left, right = math.log10(min(shown)), math.log10(max(shown))

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - left) / ((right - left) or 1.0)
        # A label below the right end needs half of its width beyond it.
        return LEFT / 2 + across * (WIDTH - LEFT / 2 - 18), 8 + (high - y) / (high - low) * (HEIGHT - 48)

    parts = []
    for decade in range(low, high + 1, max(1, (high - low) // 5)):
        (x0, y), (x1, _) = place(left, decade), place(right, decade)
        parts.append(f'<line class="grid" x1="{x0:.1f}" x2="{x1:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_label(x0 - 4, y + 4, f"1e{decade}", "end"))
    for decade in range(math.ceil(left), math.floor(right) + 1, max(1, int(right - left) // 5)):
        x, y = place(decade, low)
        parts.append(_label(x, y + 16, f"1e{decade}", "middle"))
    for name, points in curves.items():
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in points))
        parts.append(f'<polyline class="{name}" points="{path}"/>')
    shown_errors = "(line)" if "difference" in curves else "(not drawn: zero or not finite)"
    caption = f"error of the difference {shown_errors} against its step"
    if "floor" in curves:
        caption += ", with what roundoff alone gives (dotted)"
    if "gap" in curves:
        caption += ", and the error of the derivative (dashed)"
    if facts.get("chosen"):
        chosen = float(facts["chosen"])
        (x, y0), (_, y1) = place(math.log10(chosen), low), place(math.log10(chosen), high)
        parts.append(f'<line class="chosen" x1="{x:.1f}" x2="{x:.1f}" y1="{y0:.1f}" y2="{y1:.1f}"/>')
        if facts.get("extrapolated"):
            caption += (
                f". Differences at the step of the vertical line, {chosen:.2g}, and at the next smaller ones were "
                "extrapolated to the step 0, which removes the error that grows with the step"
            )
        else:
            caption += (
                f". The vertical line is the step that was used, {chosen:.2g}: smaller steps lose digits to roundoff, "
                "larger ones to the curvature of the function"
            )
    return "sweep", _svg(HEIGHT, parts, "error against step"), caption


def errors(facts: Mapping[str, Any]) -> Figure:
    """Errors of a kernel by position, and those of plain torch in the same precision, on one logarithmic scale.

    Half of the cells of plain torch have no colour, so that a kernel's larger errors stand out in every precision.
    """
    known = facts["errors"]
    sizes = {
        name: {(i, j): _size(float(error)) for i, row in enumerate(side) for j, error in enumerate(row)}
        for name, side in (("kernel", known["kernel"]), ("plain torch", known["plain"]))
    }
    top = max((size for side in sizes.values() for size in side.values() if size < math.inf), default=0.0) or 1.0
    usual = sorted(size for size in sizes["plain torch"].values() if 0.0 < size < math.inf)
    decades = max(1.0, min(DECADES, math.log10(top / usual[len(usual) // 2]))) if usual else DECADES
    rows, columns = known["rows"], known["columns"]
    width = (WIDTH - ROW_LABELS) / 2 - 6
    parts, bottom = _row_labels(rows, ROW_LABELS, 20), 0.0
    for left, (name, side) in zip((ROW_LABELS, ROW_LABELS + width + 12), sizes.items(), strict=True):
        cells = []
        for (i, j), size in side.items():
            text = f"{name} [{rows[i]}, {columns[j]}]: largest error {size:.3g}"
            cells.append((i, j, _shade(size, top, decades, "high" if size < math.inf else "undefined"), text))
        drawn, bottom = _grid(cells, rows, columns, left, 20, width)
        parts += [_label(left, 14, name, "start"), *drawn]
    caption = (
        f"errors of {facts.get('tensor', 'the kernel')} by position, beside those of plain torch: columns are places "
        "along the last axis, rows along all others; on a logarithmic "
        f"scale from {top / 10**decades:.1g} (no colour) to {top:.2g}"
    )
    return "errors", _svg(bottom, parts, "errors by position"), caption


Cell = tuple[int, int, str, str]
"""Row, column, style and title; without a style, the cell is not drawn."""


def _grid(
    cells: Iterable[Cell], rows: Sequence[str], columns: Sequence[str], left: float, top: float, width: float
) -> tuple[list[str], float]:
    """A matrix of cells with the labels of its columns, and the height of all above its end."""
    wide, high = min(MAX_CELL, width / len(columns)), _row_height(rows)
    bottom = top + high * len(rows)
    parts = [_rectangle(left, top, wide * len(columns), high * len(rows), 'class="flat"')]
    for i, j, style, title in cells:
        if style:
            parts.append(_rectangle(left + j * wide, top + i * high, wide, high, style, title))
    for j in _shown(len(columns)):
        parts.append(_label(left + (j + 0.6) * wide, bottom + 12, columns[j], "end", turned=True))
    return parts, bottom + 18 + TURNED_HEIGHT * max(len(_short(columns[j])) for j in _shown(len(columns)))


def _row_labels(rows: Sequence[str], left: float, top: float) -> list[str]:
    high = _row_height(rows)
    return [_label(left - 4, top + (i + 0.5) * high + 4, rows[i], "end") for i in _shown(len(rows))]


def _row_height(rows: Sequence[str]) -> float:
    return min(MAX_CELL, WIDTH / len(rows))


def _points(steps: Sequence[float], values: Iterable[Any]) -> list[tuple[float, float]]:
    """Logarithms of the steps and of the values that have one."""
    pairs = zip(steps, map(float, values), strict=True)
    return [(math.log10(x), math.log10(y)) for x, y in pairs if x > 0.0 and 0.0 < y < math.inf]


def _size(difference: float) -> float:
    return abs(difference) if math.isfinite(difference) else math.inf


def _shade(size: float, top: float, decades: float, colour: str) -> str:
    """The style of a cell, whose opacity is from 0 to 1 on a logarithmic scale that ends at `top`; empty for none."""
    level = 1.0 + math.log10(size / top) / decades if 0.0 < size < math.inf else float(size > 0.0)
    opacity = 0.15 + 0.85 * level
    return f'class="{colour}" fill-opacity="{opacity:.2f}"' if level > 0.0 else ""


def _entry(names: tuple[str, str]) -> str:
    return f"d {names[0]} / d {names[1]}"


def _shown(count: int) -> range:
    """Rows or columns that have a label."""
    return range(0, count, math.ceil(count / MAX_LABELS))


def _rectangle(x: float, y: float, width: float, height: float, style: str, title: str = "") -> str:
    inside = f"<title>{escape(title)}</title>" if title else ""
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" {style}>{inside}</rect>'


def _label(x: float, y: float, text: str, anchor: str, *, turned: bool = False) -> str:
    turn = f' transform="rotate(-45 {x:.1f} {y:.1f})"' if turned else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{turn}>{escape(_short(text))}</text>'


def _short(text: str) -> str:
    return text if len(text) <= 18 else f"{text[:8]}…{text[-9:]}"


def _svg(height: float, parts: Iterable[str], label: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def page(reports: Sequence[Report], title: str = "gradvet") -> str:
    """An HTML document about many checks, with search, filters and figures."""
    return rendered(
        "page.html.j2",
        title=title,
        reports=sorted(reports, key=lambda report: WORST_FIRST.index(report.verdict)),
        counts=Counter(report.verdict for report in reports),
        verdicts=WORST_FIRST[:4],
        **origin(),
    )


def origin() -> dict[str, str]:
    """Version and time for the footer of a page."""
    created = datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
    version = "(not installed)"
    with suppress(importlib.metadata.PackageNotFoundError):
        version = importlib.metadata.version("gradvet")
    return {"version": version, "created": created}


def fragment(report: Report) -> str:
    """One report for a notebook, without scripts and figures."""
    return rendered("fragment.html.j2", report=report)


def rendered(template: str, **values: object) -> str:
    return str(templates().get_template(template).render(values))


def write(reports: Sequence[Report], path: str | Path) -> None:
    """Write the page to a file."""
    write_text(path, page(reports))


@cache
def templates() -> Any:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.globals.update(wording=wording, ledger_table=ledger_table, Verdict=Verdict)
    environment.globals.update(figures=figures, styles=_code_styles)
    environment.filters.update(code=_code)
    return environment


def _code(source: SourceCode) -> Any:
    """Highlighted Python code with the line numbers of its file."""
    from markupsafe import Markup
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import PythonLexer

    formatter = HtmlFormatter(cssclass="code", linenos="inline", linenostart=source.line)
    # An element that scrolls sideways must be reachable by the keyboard.
    code = highlight(source.code, PythonLexer(), formatter)
    return Markup(code.replace('<div class="code">', '<div class="code" tabindex="0">', 1))


def _code_styles(style: str) -> str:
    from pygments.formatters import HtmlFormatter

    return str(HtmlFormatter(style=style).get_style_defs(".code"))
