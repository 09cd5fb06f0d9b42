"""Several reports in one table row: the worst verdict of each mode."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace

from gradvet.cli.ops import Summary, show
from gradvet.core.results import Finding, Report, Verdict
from gradvet.reports.terminal import console_for
from tests.reports.samples import doubtful, errored, failed, passed


def summary_of(name: str, reports: Sequence[Report], marks: Sequence[str] = ()) -> Summary:
    summary = Summary(name, marks)
    for report in reports:
        summary.add(report)
    return summary


def shown(*summaries: Summary) -> str:
    stream = io.StringIO()
    show(summaries, console_for(stream))
    return stream.getvalue()


def test_worst_verdict_of_a_mode_is_the_summarys() -> None:
    assert summary_of("op", [passed(), failed(), doubtful()]).verdicts["reverse"] is Verdict.FAIL
    assert summary_of("op", [passed(), doubtful()]).verdict is Verdict.INCONCLUSIVE
    assert summary_of("op", [passed(), passed()]).verdict is Verdict.PASS
    assert summary_of("op", []).verdict is Verdict.SKIPPED


def test_mode_that_was_exercised_somewhere_is_not_skipped() -> None:
    skipped = replace(passed(), findings=(Finding("reverse", Verdict.SKIPPED, "not offered"),))
    assert summary_of("op", [skipped, passed()]).verdicts["reverse"] is Verdict.PASS
    assert summary_of("op", [skipped]).verdicts == {"reverse": Verdict.SKIPPED}


def test_costs_add_up_and_resolution_is_the_worst() -> None:
    sharp = replace(passed(), resolution=1e-9)
    summary = summary_of("op", [sharp, passed()])
    assert (summary.calls, summary.seconds, summary.resolution) == (34, 0.5, 2e-6)


def test_line_has_verdicts_worst_entry_errors_and_upstream_marks() -> None:
    text = shown(
        summary_of("addmm/float64", [passed(), failed(), errored(), errored()], ["reverse skipped"]),
        summary_of("sin/float64", [passed()]),
        summary_of("floor/float64", [doubtful(), doubtful()]),
    )
    lines = text.splitlines()
    assert lines[0].split() == ["operator", "samples", "reverse", "others", "resolution", "calls", "time"]
    assert lines[2].split() == ["addmm/float64", "4", "FAIL", "ERROR", "2e-06", "34", "500", "ms"]
    assert lines[3].split() == ["sin/float64", "1", "pass", "-", "2e-06", "17", "250", "ms"]
    assert lines[4].split()[:4] == ["floor/float64", "2", "inconclusive", "-"]
    assert lines[5].startswith("addmm/float64: worst entry: d output [1] / d weight [2] is ")
    assert lines[6:] == [
        "addmm/float64: died: was ended by SIGSEGV (in 2 samples)",
        "addmm/float64: PyTorch's own tests: reverse skipped",
        "floor/float64: inconclusive: the function jumps at the point (in 2 samples)",
    ]
