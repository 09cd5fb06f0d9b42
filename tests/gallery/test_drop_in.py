"""The drop-in functions on the gallery: slow and fast mode say what the classical check of every entry says."""

from __future__ import annotations

import warnings

import pytest

from tests.gallery import RIGHT, WRONG, Case

pytest.importorskip("gradvet.compat")

MODES = pytest.mark.parametrize("fast_mode", [False, True], ids=["slow", "fast"])


def verdict(case: Case, order: int, fast_mode: bool) -> bool:
    """The verdict of the drop-in function: True, or the GradcheckError that it raises. Other exceptions go up."""
    import gradvet

    check = gradvet.gradcheck if order == 1 else gradvet.gradgradcheck
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return check(*case.build(), fast_mode=fast_mode)


@MODES
@pytest.mark.parametrize("case", [case for case in WRONG if case.drop_in], ids=str)
def test_wrong_function_is_rejected(case: Case, fast_mode: bool) -> None:
    import gradvet

    with pytest.raises(gradvet.GradcheckError):
        verdict(case, case.order, fast_mode)


@MODES
@pytest.mark.parametrize("case", [case for case in RIGHT if case.drop_in], ids=str)
def test_right_function_is_accepted(case: Case, fast_mode: bool) -> None:
    assert verdict(case, 1, fast_mode) is True


@MODES
@pytest.mark.parametrize("case", [case for case in RIGHT if case.drop_in and case.order == 2], ids=str)
def test_right_function_of_order_two_is_accepted_twice(case: Case, fast_mode: bool) -> None:
    assert verdict(case, 2, fast_mode) is True


@pytest.mark.parametrize("case", [case for case in WRONG if case.order == 2], ids=str)
def test_fault_of_second_order_passes_at_first_order(case: Case) -> None:
    assert verdict(case, 1, False) is True
