"""Numbers, counts and sentences of a report."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from gradvet.core.results import Verdict
from gradvet.reports import wording
from tests.reports.samples import failed, worst


@pytest.mark.parametrize(
    ("derivative", "numerical", "error", "cells"),
    [
        (-0.0, 2.0, 1e-9, ["0", "2 ± 1e-09", "0"]),
        (1.0, 0.0, 1e-9, ["1", "0 ± 1e-09", "-"]),
        (1.0, 5e-14, 1e-12, ["1", "5e-14 ± 1e-12", "-"]),
        (math.nan, 2.0, 1e-9, ["nan", "2 ± 1e-09", "-"]),
        (1.0, 2.0, math.inf, ["1", "2 ± unknown", "-"]),
    ],
)
def test_numbers_without_meaning_are_not_shown(
    derivative: float, numerical: float, error: float, cells: list[str]
) -> None:
    entry = replace(worst(), derivative=derivative, numerical=numerical, error=error)
    assert [wording.number(entry.derivative), wording.numerical(entry), wording.ratio(entry)] == cells


@pytest.mark.parametrize(
    ("verdicts", "text"),
    [
        ([], "no checks"),
        ([Verdict.PASS], "1 check: 1 pass"),
        ([Verdict.PASS, Verdict.FAIL, Verdict.PASS], "3 checks: 1 fail, 2 pass"),
    ],
)
def test_tally_counts_verdicts_failures_first(verdicts: list[Verdict], text: str) -> None:
    assert wording.tally(verdicts) == text


def test_description_of_a_finding_has_the_worst_entry_and_the_advice() -> None:
    finding, entry = failed().failures[0], worst()
    assert wording.describe(finding).splitlines() == [
        "reverse mode disagrees in 1 of 12 entries",
        "  worst: d output [1] / d weight [2]",
        f"    reverse mode        {entry.derivative:#.10g}",
        f"    finite differences  {entry.numerical:#.10g} ± 2e-11",
        "    allowed difference  3e-11",
        "  The ratio is 1.5: look for a wrong constant factor.",
    ]


def test_matrix_has_one_line_per_input_element() -> None:
    assert wording.matrix([[1.0, -0.0, 2.5], [3.0, 4.0, 5.0]]) == "  [1, 3]\n  [0, 4]\n  [2.5, 5]"
