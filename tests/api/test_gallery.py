"""The gallery through `check` at its defaults: no right function fails, and every wrong one does."""

from __future__ import annotations

import warnings

import pytest

import gradvet
from gradvet.core.results import Report, Verdict
from tests.gallery import RIGHT, WRONG, right_autocast, right_training
from tests.gallery.case import Case

DEGENERATE = frozenset({"exponential_by_eigenvectors_of_unseen_zero"})
"""Equal eigenvalues at a point of gradvet's own choice: torch documents that it has no derivative there."""

SAID = frozenset({"detached_second_output", "second_output_marked_constant"})
"""Outputs without a graph beside one with it may be meant so: the report says that they were not exercised."""

ONCE = frozenset({"sine_frees_its_buffer", "exponential_mutates_saved_slope"})
"""A second backward pass through one graph is wrong. torch frees graphs after the first one, so that a note says it."""

UNDECIDED = frozenset(
    {
        "rms_norm_without_one_row_in_bfloat16",
        "growth_without_tail_block_in_bfloat16",
        "log_total_without_tail_block_in_bfloat16",
        "energy_every_second_lost_in_bfloat16",
        "one_steep_entry_and_the_others_lost_in_float32",
        "one_steep_entry_and_the_others_lost_in_bfloat16",
        "one_steep_entry_and_the_others_scaled_in_float16",
        "log_total_tangent_without_tail_in_float16",
    }
)
"""Low precision hides these faults in part: INCONCLUSIVE will do, PASS will not."""

RARE = frozenset({"mixed_halved_in_one_pass_of_100", "linear_lost_in_one_pass_of_100"})
"""Faults in one pass of a hundred: the report says how many passes were equal, and claims no more."""


def report_on(case: Case, order: int) -> Report:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Which piece of a module is to blame changes no verdict: tests/blame has those searches.
        return gradvet.check(*case.build(), order=order, seed=20, accuracy=case.accuracy or 0.0, blame=False)


DECIDED = frozenset({"sharp_softmax", "sharp_sigmoid", "pendulum_by_its_own_rule_in_bfloat16"})
"""Right functions that one mechanism decides, as its docstring says."""

TRAINED = frozenset(case.name for case in (*right_autocast.CASES, *right_training.CASES) if not case.accuracy)
"""Right functions of mixed precision and of training, which the wider version decides."""


@pytest.mark.parametrize("case", RIGHT, ids=str)
def test_right_function_is_not_failed(case: Case) -> None:
    report = report_on(case, 1)
    assert report.failures == ()
    assert report.passed or case.name not in DECIDED | TRAINED


@pytest.mark.parametrize(
    "case",
    [case for case in WRONG if case.name not in DEGENERATE | SAID | ONCE | UNDECIDED | RARE],
    ids=str,
)
def test_wrong_function_fails(case: Case) -> None:
    assert report_on(case, case.order).verdict is Verdict.FAIL


@pytest.mark.parametrize("case", [case for case in WRONG if case.name in UNDECIDED], ids=str)
def test_wrong_function_that_low_precision_hides_does_not_pass(case: Case) -> None:
    assert report_on(case, case.order).verdict in (Verdict.FAIL, Verdict.INCONCLUSIVE)


@pytest.mark.parametrize("case", [case for case in WRONG if case.name in RARE], ids=str)
def test_number_of_equal_passes_is_stated(case: Case) -> None:
    findings = [finding for finding in report_on(case, case.order).findings if finding.check == "determinism"]
    assert findings[0].verdict is Verdict.FAIL or "21 equal backward passes" in findings[0].headline


@pytest.mark.parametrize("case", [case for case in WRONG if case.name in SAID], ids=str)
def test_output_without_a_graph_is_said(case: Case) -> None:
    report = report_on(case, 1)
    assert any(line.startswith("not exercised: detached: output 1 varies") for line in report.coverage)
    assert any("is that meant so?" in note for note in report.notes)


@pytest.mark.parametrize("case", [case for case in WRONG if case.name in ONCE], ids=str)
def test_backward_pass_that_works_once_is_said_and_nothing_else_is_blamed_for_it(case: Case) -> None:
    report = report_on(case, 1)
    assert report.verdict is Verdict.PASS
    assert any("retain_graph=True must not be used" in note for note in report.notes)
