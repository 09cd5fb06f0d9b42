"""The ledger: which elements of which input were compared, at which resolution, and which were not."""

from __future__ import annotations

import math

import pytest

from gradvet.core.ledger import LedgerRow, Record

ROW = ("x", "reverse", "given")
ASKED = 1e-2


def opened(elements: int = 4, asked: float = ASKED) -> Record:
    """A ledger with one row."""
    ledger = Record()
    ledger.open(*ROW, elements, asked)
    return ledger


def only_row(ledger: Record) -> LedgerRow:
    (row,) = ledger.rows()
    return row


def test_row_in_which_nothing_was_entered_is_not_compared_and_not_complete() -> None:
    ledger = opened(asked=math.inf)
    assert only_row(ledger) == LedgerRow(*ROW, elements=4, compared=0, resolution=None, asked=math.inf)
    assert not only_row(ledger).is_complete
    assert ledger.resolution(*ROW) == math.inf


def test_compared_row_covers_all_elements() -> None:
    ledger = opened()
    ledger.compared(*ROW, 1e-3)
    assert only_row(ledger) == LedgerRow(*ROW, elements=4, compared=4, resolution=1e-3, asked=ASKED)


@pytest.mark.parametrize("resolutions", [(1e-3, 1e-6, 1e-2), (1e-6, 1e-3), (1e-2, 1e-6)])
def test_best_resolution_counts(resolutions: tuple[float, ...]) -> None:
    ledger = opened()
    for resolution in resolutions:
        ledger.compared(*ROW, resolution)
    assert ledger.resolution(*ROW) == 1e-6
    assert only_row(ledger).resolution == 1e-6


@pytest.mark.parametrize("resolution", [math.inf, 2.0, 1.0])
def test_resolution_of_one_or_more_compares_nothing(resolution: float) -> None:
    ledger = opened(asked=math.inf)
    ledger.compared(*ROW, resolution)
    assert (only_row(ledger).compared, only_row(ledger).resolution) == (0, None)
    assert not only_row(ledger).is_complete


def test_resolution_below_one_compares() -> None:
    ledger = opened(asked=1.0)
    ledger.compared(*ROW, 0.999)
    assert (only_row(ledger).compared, only_row(ledger).resolution) == (4, 0.999)
    assert only_row(ledger).is_complete


@pytest.mark.parametrize(("resolution", "complete"), [(ASKED / 2, True), (ASKED, True), (1.01 * ASKED, False)])
def test_row_is_complete_from_the_resolution_asked_for_on(resolution: float, complete: bool) -> None:
    ledger = opened()
    ledger.compared(*ROW, resolution)
    assert only_row(ledger).is_complete is complete


def test_elements_left_out_for_two_reasons_may_be_the_same_and_the_row_has_both() -> None:
    ledger = opened(4, math.inf)
    ledger.compared(*ROW, 1e-6)
    ledger.left_out(*ROW, 1, "not finite")
    ledger.left_out(*ROW, 2, "no time")
    assert only_row(ledger) == LedgerRow(*ROW, 4, 2, 1e-6, math.inf, reasons=("not finite", "no time"))
    assert not only_row(ledger).is_complete


def test_elements_left_out_twice_for_one_reason_count_once() -> None:
    ledger = opened(4)
    ledger.compared(*ROW, 1e-6)
    for _ in range(2):
        ledger.left_out(*ROW, 1, "not finite")
    assert only_row(ledger).compared == 3
    assert only_row(ledger).reasons == ("not finite",)


def test_no_more_elements_are_left_out_than_there_are() -> None:
    ledger = opened(4)
    ledger.compared(*ROW, 1e-6)
    ledger.left_out(*ROW, 3, "not finite")
    ledger.left_out(*ROW, 4, "no time")
    assert only_row(ledger).compared == 0


def test_row_in_which_elements_were_left_out_and_nothing_compared_has_no_resolution() -> None:
    ledger = opened(4, math.inf)
    ledger.left_out(*ROW, 1, "not finite")
    assert only_row(ledger) == LedgerRow(*ROW, 4, 0, None, math.inf, reasons=("not finite",))
    assert not only_row(ledger).is_complete


def test_row_without_elements_is_complete() -> None:
    assert only_row(opened(0)) == LedgerRow(*ROW, elements=0, compared=0, resolution=None, asked=ASKED)
    assert only_row(opened(0)).is_complete


def test_row_that_is_withdrawn_is_gone_and_can_be_opened_again() -> None:
    ledger = opened()
    ledger.compared(*ROW, 1e-3)
    ledger.withdraw(*ROW)
    assert list(ledger.rows()) == []
    assert ledger.resolution(*ROW) == math.inf
    ledger.withdraw(*ROW)
    ledger.open(*ROW, 4, ASKED)
    assert only_row(ledger).resolution is None


def test_rows_are_told_apart_by_input_mode_and_precision_and_keep_their_order() -> None:
    ledger = Record()
    keys = [("y", "reverse", "given"), ROW, ("x", "forward", "given"), ("x", "reverse", "float64")]
    for number, key in enumerate(keys):
        ledger.open(*key, 4, ASKED)
        ledger.compared(*key, 10.0**-number)
    assert [(row.input, row.mode, row.precision) for row in ledger.rows()] == keys
    assert [ledger.resolution(*key) for key in keys] == [1.0, 0.1, 0.01, 0.001]


def test_opening_a_row_again_keeps_what_was_entered() -> None:
    ledger = opened()
    ledger.compared(*ROW, 1e-3)
    ledger.left_out(*ROW, 1, "not finite")
    before = only_row(ledger)
    ledger.open(*ROW, 5, ASKED / 2)
    assert only_row(ledger) == before


def test_unopened_row_has_no_resolution_and_takes_no_entries() -> None:
    ledger = Record()
    assert ledger.resolution(*ROW) == math.inf
    with pytest.raises(KeyError):
        ledger.compared(*ROW, 1e-3)
    with pytest.raises(KeyError):
        ledger.left_out(*ROW, 1, "not finite")
    assert list(ledger.rows()) == []
