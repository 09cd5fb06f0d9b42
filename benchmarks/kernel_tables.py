"""Writes the results of `benchmarks.kernels` into docs/measurements.md, between the marks of each table.

    python -m benchmarks.kernels --jobs 12 --out shipped.json
    python -m benchmarks.kernels --reference --jobs 12 --out shipped-reference.json
    python -m benchmarks.kernels --planted --jobs 12 --out planted.json
    python -m benchmarks.kernels --planted --reference --comparison --jobs 12 --out planted-reference.json
    python -m benchmarks.kernel_tables FOLDER

A table whose file is missing in the folder stays as it is.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.kernel_cases import DTYPES

PAGE = Path(__file__).parent.parent / "docs" / "measurements.md"
WORDS = {"PASS": "pass", "INCONCLUSIVE": "inconclusive", "TIME": "no end", "refused": "refused"}
"""How verdicts are written in a table; FAIL stays as it is."""

Row = dict[str, Any]


def shipped_table(plain: Sequence[Row], reference: Sequence[Row]) -> Iterator[str]:
    """A row for each kernel, as shipped: verdicts without and with a reference."""
    found = {
        (row["case"]["kernel"], row["case"]["dtype"], number): WORDS.get(row["verdict"], row["verdict"])
        for number, rows in enumerate((plain, reference))
        for row in rows
        if not row["case"]["fault"]
    }
    columns = [(dtype, number) for number in range(2) for dtype in DTYPES]
    titles = [f"with `reference=`: {dtype}" if number and dtype == "float32" else dtype for dtype, number in columns]
    yield f"| kernel | {' | '.join(titles)} |"
    yield f"| --- |{' --- |' * len(columns)}"
    for name in dict.fromkeys(sorted(kernel for kernel, _, _ in found)):
        yield f"| `{name}` | {' | '.join(found.get((name, *column), '') for column in columns)} |"
    yield ""
    for title, rows in (("Without", plain), ("With", reference)):
        ended = [row for row in rows if not row["case"]["fault"] and row["seconds"]]
        seconds, calls = (statistics.median(values) for values in zip(*map(_cost, ended), strict=True))
        words = f"the median check took {seconds:.1f} s beyond its first call"
        yield f"{title} a reference, {words}, and {calls:.0f} calls of forward and backward."


def _cost(row: Row) -> tuple[float, int]:
    return row["seconds"], sum(row["calls"])


def planted_table(rows: Sequence[Row]) -> Iterator[str]:
    """Verdicts on kernels with a planted fault, by dtype."""
    yield "| | checks | FAIL | named as a wrong derivative | inconclusive | pass | no end |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for dtype in DTYPES:
        chosen = [row for row in rows if row["case"]["fault"] and row["case"]["dtype"] == dtype]
        chosen = [row for row in chosen if row["verdict"] != "refused"]
        verdicts = [row["verdict"] for row in chosen]
        counts = [verdicts.count(verdict) for verdict in ("FAIL", "INCONCLUSIVE", "PASS", "TIME")]
        counts.insert(1, sum(row["is_named"] for row in chosen))
        yield f"| {dtype} | {len(chosen)} | {' | '.join(map(str, counts))} |"


def written(page: str, name: str, lines: Sequence[str]) -> str:
    """The page with these lines between the marks of a table."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    pattern = re.compile(f"({re.escape(begin)}\n).*?(\n{re.escape(end)})", re.DOTALL)
    if not pattern.search(page):
        raise ValueError(f"{begin} … {end} was expected in {PAGE}")
    text = "\n".join(["", *lines, ""])
    return pattern.sub(lambda found: found[1] + text + found[2], page)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder with the JSON files")
    folder = parser.parse_args().folder
    names = ("shipped", "shipped-reference", "planted", "planted-reference")
    files = {name: folder / f"{name}.json" for name in names}
    known = {name: json.loads(path.read_text()) for name, path in files.items() if path.exists()}
    page = PAGE.read_text(encoding="utf-8")
    if "shipped" in known and "shipped-reference" in known:
        page = written(page, "shipped", list(shipped_table(known["shipped"], known["shipped-reference"])))
    for name in ("planted", "planted-reference"):
        if name in known:
            page = written(page, name, list(planted_table(known[name])))
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
