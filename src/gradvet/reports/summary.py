"""Many reports about one thing in one line: the worst verdict of each mode, the worst entry, resolution and cost."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gradvet.core.results import Mismatch, Report, Verdict
from gradvet.reports import words
from gradvet.reports.terminal import COLOURS

MODES = {
    "reverse": "reverse",
    "forward": "forward",
    "reverse-over-reverse": "r/r",
    "forward-over-reverse": "f/r",
    "reverse-over-forward": "r/f",
    "forward-over-forward": "f/f",
    "symmetry": "symmetry",
}
"""What has a column of its own where it was run, and its heading."""

OTHERS = "others"
"""The checks that need no differences."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What a group of reports says together."""

    name: str
    reports: int
    verdicts: Mapping[str, Verdict]
    """The worst of each mode; a mode that was nowhere exercised is SKIPPED."""
    worst: Mismatch | None
    resolution: float | None
    calls: int
    seconds: float
    troubles: tuple[str, ...] = ()
    """Why there is no report, for each case that has none."""
    declared: tuple[str, ...] = ()
    """What others say of this: tests of theirs that are skipped or expected to fail."""

    @property
    def verdict(self) -> Verdict:
        return next((one for one in words.ORDER if one in self.verdicts.values()), Verdict.SKIPPED)

    @classmethod
    def of(
        cls, name: str, reports: Sequence[Report], troubles: Iterable[str] = (), declared: Iterable[str] = ()
    ) -> Summary:
        found: dict[str, set[Verdict]] = defaultdict(set)
        for report in reports:
            for finding in report.findings:
                found[finding.check if finding.check in MODES else OTHERS].add(finding.verdict)
        resolutions = [report.resolution for report in reports if report.resolution is not None]
        costs = [report.cost for report in reports]
        return cls(
            name,
            len(reports),
            {mode: next(one for one in words.ORDER if one in verdicts) for mode, verdicts in found.items()},
            _worst(reports),
            max(resolutions, default=None),
            sum(cost.forwards + cost.pulls + cost.pushes for cost in costs),
            sum(report.seconds for report in reports),
            tuple(troubles),
            tuple(declared),
        )


def _worst(reports: Iterable[Report]) -> Mismatch | None:
    """The wrong entry that is furthest from what was allowed, in units of it."""
    entries = [entry for report in reports for finding in report.failures for entry in finding.mismatches]
    return max(entries, key=_distance, default=None)


def _distance(entry: Mismatch) -> float:
    gap = abs(entry.derivative - entry.numerical)
    return gap / (abs(entry.derivative) + abs(entry.numerical)) if gap else 0.0


def show(summaries: Sequence[Summary], console: Console) -> None:
    """A table with one line for each, then what there is to say of some."""
    modes = [mode for mode in (*MODES, OTHERS) if any(mode in summary.verdicts for summary in summaries)]
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 2, 0, 0))
    table.add_column("operator", overflow="fold")
    table.add_column("samples", justify="right")
    for mode in modes:
        table.add_column(MODES.get(mode, mode), no_wrap=True)
    for heading in ("resolution", "calls", "time"):
        table.add_column(heading, justify="right", no_wrap=True)
    for summary in summaries:
        table.add_row(*_row(summary, modes))
    console.print(table)
    for summary in summaries:
        for remark in _remarks(summary):
            console.print(Text.assemble((summary.name, "bold"), f": {remark}"))


def _row(summary: Summary, modes: Sequence[str]) -> list[str | Text]:
    resolution = "" if summary.resolution is None else f"{summary.resolution:.0e}"
    verdicts = [_verdict(summary.verdicts.get(mode, Verdict.SKIPPED)) for mode in modes]
    cost = [str(summary.calls), words.seconds(summary.seconds)]
    return [summary.name, str(summary.reports), *verdicts, resolution, *cost]


def _verdict(verdict: Verdict) -> Text:
    shown = {Verdict.SKIPPED: "-", Verdict.INCONCLUSIVE: "unsure", Verdict.FAIL: "FAIL"}
    return Text(shown.get(verdict, verdict.value), COLOURS[verdict])


def _remarks(summary: Summary) -> Iterable[str]:
    if summary.worst is not None:
        entry = summary.worst
        yield f"worst entry: {entry} is {words.number(entry.derivative)}, finite differences give {words.bar(entry)}"
    for trouble, count in Counter(summary.troubles).items():
        yield f"{trouble} (in {count} sample{'' if count == 1 else 's'})"
    if summary.declared:
        yield f"PyTorch's own tests: {', '.join(summary.declared)}"
