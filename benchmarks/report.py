"""What the benchmarks share in telling their results: ratios, the machine, and the file of raw numbers."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

Values = dict[str, object]
RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Pair:
    """Two checkers that do the same work; a ratio is the first one's time over the second one's."""

    baseline: str
    candidate: str

    def ratio(self, seconds: dict[str, float]) -> float:
        return seconds[self.baseline] / seconds[self.candidate]

    def total_ratio(self, rows: Sequence[dict[str, float]]) -> float:
        return sum(row[self.baseline] for row in rows) / sum(row[self.candidate] for row in rows)

    def __str__(self) -> str:
        return f"{self.baseline} / {self.candidate}"


def geometric_mean(ratios: Iterable[float]) -> float:
    logarithms = [math.log(ratio) for ratio in ratios]
    return math.exp(sum(logarithms) / len(logarithms)) if logarithms else math.nan


def duration(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"


def wide_console() -> Console:
    """Written to a file, a table is as wide as it needs to be."""
    console = Console()
    return console if console.is_terminal else Console(width=140)


def numbers_table(title: str, words: Sequence[str], numbers: Sequence[str]) -> Table:
    """A table by the headings of its columns: first those of words, then those of numbers, aligned at the right."""
    table = Table(*words, title=title)
    for heading in numbers:
        table.add_column(heading, justify="right")
    return table


def save(name: str, options: Values, rows: list[Values], summary: Values, console: Console) -> None:
    """Write the raw numbers with what is needed to repeat them, and print where."""
    RESULTS.mkdir(exist_ok=True)
    now = datetime.now(timezone.utc)
    path = RESULTS / f"{name}-{now:%Y%m%d-%H%M%S}.json"
    content = {
        "benchmark": name,
        "time": now.isoformat(timespec="seconds"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "options": {key: str(value) for key, value in options.items()},
        "summary": summary,
        "rows": rows,
    }
    path.write_text(json.dumps(content, indent=1) + "\n")
    console.print(f"raw numbers: {path}", soft_wrap=True)
