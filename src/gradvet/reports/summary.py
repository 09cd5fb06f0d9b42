"""Several reports in one table row: the worst verdict of each mode, the worst entry, resolution and cost."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gradvet.core.results import WORST_FIRST, Mismatch, Report, Verdict
from gradvet.reports import wording
from gradvet.reports.terminal import COLOURS

COLUMN_HEADINGS = {
    "reverse": "reverse",
    "forward": "forward",
    "reverse-over-reverse": "r/r",
    "forward-over-reverse": "f/r",
    "reverse-over-forward": "r/f",
    "forward-over-forward": "f/f",
    "symmetry": "symmetry",
}
"""Checks with a column of their own, and the heading of the column."""

OTHERS = "others"
"""Heading of the column for all other checks."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The reports of one operator, or of another group of cases."""

    name: str
    reports: int
    verdicts: Mapping[str, Verdict]
    """The worst verdict of each mode; SKIPPED if no report exercised the mode."""
    worst: Mismatch | None
    resolution: float | None
    calls: int
    seconds: float
    errors: tuple[str, ...] = ()
    """One message for each report with the verdict ERROR."""
    upstream_marks: tuple[str, ...] = ()
    """Gradient tests of PyTorch that are skipped or expected to fail."""

    @property
    def verdict(self) -> Verdict:
        return next((one for one in WORST_FIRST if one in self.verdicts.values()), Verdict.SKIPPED)

    @classmethod
    def of(cls, name: str, reports: Sequence[Report], upstream_marks: Iterable[str] = ()) -> Summary:
        found: dict[str, set[Verdict]] = defaultdict(set)
        for report in reports:
            for finding in report.findings:
                found[_column(finding.check)].add(finding.verdict)
            if not report.is_complete:
                # Findings alone decide no verdict: what the ledger leaves open is inconclusive.
                for column in {_column(row.mode) for row in report.open_rows} or {OTHERS}:
                    found[column].add(Verdict.INCONCLUSIVE)
        resolutions = [report.resolution for report in reports if report.resolution is not None]
        costs = [report.cost for report in reports]
        return cls(
            name,
            len(reports),
            {mode: next(one for one in WORST_FIRST if one in verdicts) for mode, verdicts in found.items()},
            _worst(reports),
            max(resolutions, default=None),
            sum(cost.forwards + cost.pulls + cost.pushes for cost in costs),
            sum(report.seconds for report in reports),
            tuple(
                f"{one.check}: {one.headline}"
                for report in reports
                for one in report.findings
                if one.verdict is Verdict.ERROR
            ),
            tuple(upstream_marks),
        )


def _column(check: str) -> str:
    return check if check in COLUMN_HEADINGS else OTHERS


def _worst(reports: Iterable[Report]) -> Mismatch | None:
    """The wrong entry with the largest relative error."""
    entries = [entry for report in reports for finding in report.failures for entry in finding.mismatches]
    return max(entries, key=_relative_error, default=None)


def _relative_error(entry: Mismatch) -> float:
    error = abs(entry.derivative - entry.numerical)
    return error / (abs(entry.derivative) + abs(entry.numerical)) if error else 0.0


def show(summaries: Sequence[Summary], console: Console) -> None:
    """Print a table with one row per summary, then the remarks."""
    modes = [mode for mode in (*COLUMN_HEADINGS, OTHERS) if any(mode in summary.verdicts for summary in summaries)]
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 2, 0, 0))
    table.add_column("operator", overflow="fold")
    table.add_column("samples", justify="right")
    for mode in modes:
        table.add_column(COLUMN_HEADINGS.get(mode, mode), no_wrap=True)
    for heading in ("resolution", "calls", "time"):
        table.add_column(heading, justify="right", no_wrap=True)
    for summary in summaries:
        table.add_row(*_row(summary, modes))
    console.print(table)
    for summary in summaries:
        for remark in _remarks(summary):
            console.print(Text.assemble((summary.name, "bold"), f": {remark}"))


def _row(summary: Summary, modes: Sequence[str]) -> list[Text]:
    resolution = "" if summary.resolution is None else f"{summary.resolution:.0e}"
    verdicts = [_verdict(summary.verdicts.get(mode, Verdict.SKIPPED)) for mode in modes]
    cost = [str(summary.calls), wording.seconds(summary.seconds)]
    return [Text(summary.name), Text(str(summary.reports)), *verdicts, Text(resolution), *map(Text, cost)]


def _verdict(verdict: Verdict) -> Text:
    shown = {Verdict.SKIPPED: "-", Verdict.INCONCLUSIVE: "unsure", Verdict.FAIL: "FAIL", Verdict.ERROR: "ERROR"}
    return Text(shown.get(verdict, verdict.value), COLOURS[verdict])


def _remarks(summary: Summary) -> Iterable[str]:
    if summary.worst is not None:
        entry = summary.worst
        derivative, numerical = wording.number(entry.derivative), wording.numerical(entry)
        yield f"worst entry: {entry} is {derivative}, finite differences give {numerical}"
    for error, count in Counter(summary.errors).items():
        yield f"{error} (in {count} sample{'' if count == 1 else 's'})"
    if summary.upstream_marks:
        yield f"PyTorch's own tests: {', '.join(summary.upstream_marks)}"
