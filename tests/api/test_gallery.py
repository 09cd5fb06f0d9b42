"""The gallery through `check` at its defaults: no right function fails, and every wrong one does."""

from __future__ import annotations

import warnings

import pytest

import gradvet
from gradvet.core.results import Report, Verdict
from tests.gallery import RIGHT, WRONG
from tests.gallery.case import Case

DEGENERATE = frozenset({"exponential_by_eigenvectors_of_unseen_zero"})
"""Equal eigenvalues at a point of gradvet's own choice: torch documents that it has no derivative there."""

SAID = frozenset({"detached_second_output", "second_output_marked_constant"})
"""Outputs without a graph beside one with it may be meant so: the report says that they were not exercised."""


def report_on(case: Case, order: int) -> Report:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return gradvet.check(*case.build(), order=order, seed=20)


@pytest.mark.parametrize("case", RIGHT, ids=str)
def test_right_function_is_not_failed(case: Case) -> None:
    assert report_on(case, 1).failures == ()


@pytest.mark.parametrize(
    "case",
    [case for case in WRONG if case.name not in DEGENERATE | SAID],
    ids=str,
)
def test_wrong_function_fails(case: Case) -> None:
    assert report_on(case, case.order).verdict is Verdict.FAIL


@pytest.mark.parametrize("case", [case for case in WRONG if case.name in SAID], ids=str)
def test_output_without_a_graph_is_said(case: Case) -> None:
    report = report_on(case, 1)
    assert any(line.startswith("not exercised: detached: output 1 varies") for line in report.coverage)
    assert any("is that meant so?" in note for note in report.notes)
