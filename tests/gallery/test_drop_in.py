"""The drop-in functions on the gallery: both modes give the verdict of a check of every entry."""

from __future__ import annotations

import warnings

import pytest

from tests.gallery import RIGHT, WRONG, Case

pytest.importorskip("gradvet.compat")

FAST_MODE_ACCEPTS = frozenset(
    {
        "sine_of_active_rows_not_scattered_back",
        "sine_of_active_columns_not_scattered_back",
        "linear_of_active_rows_against_first_rows",
        "linear_weight_averaged_over_active_rows",
        "embedding_of_first_active_tokens",
        "squash_stops_at_first_empty_row",
        "identity_behind_1e10_detached",
        "identity_behind_1e10_lost",
        "wide_wave_behind_1e9_lost",  # in about half of the draws: roundoff exceeds the tolerance
        "faint_entries_lost_over_eight_decades",
        "mixed_lost_in_one_pass_of_20",
        "mixed_halved_in_one_pass_of_100",
    }
)
"""Wrong functions that fast mode accepts: it has torch's guarantee there, and its bound on evaluations."""

RARE = frozenset({"mixed_lost_in_one_pass_of_20", "mixed_halved_in_one_pass_of_100"})
"""Faults in few passes, of which slow mode runs fewer than it would take to be sure."""


def verdict(case: Case, order: int, fast_mode: bool) -> bool:
    """The verdict of the drop-in function: True, or the GradcheckError that it raises. Other exceptions go up."""
    import gradvet

    check = gradvet.gradcheck if order == 1 else gradvet.gradgradcheck
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return check(*case.build(), fast_mode=fast_mode)


@pytest.mark.parametrize("case", [case for case in WRONG if case.drop_in], ids=str)
def test_wrong_function_is_rejected(case: Case) -> None:
    import gradvet

    for fast_mode, accepted in ((False, RARE), (True, FAST_MODE_ACCEPTS)):
        if case.name not in accepted:
            with pytest.raises(gradvet.GradcheckError):
                verdict(case, case.order, fast_mode)


@pytest.mark.parametrize("case", [case for case in RIGHT if case.drop_in], ids=str)
def test_right_function_is_accepted(case: Case) -> None:
    for order in range(1, case.order + 1):
        assert verdict(case, order, fast_mode=False) is True
        assert verdict(case, order, fast_mode=True) is True


@pytest.mark.parametrize("case", [case for case in WRONG if case.order == 2], ids=str)
def test_fault_of_second_order_passes_at_first_order(case: Case) -> None:
    assert verdict(case, 1, False) is True
