"""Cases that are called wrong are wrong, cases that are called right are right: proved without gradvet.

`make gallery` runs these tests; `make test` runs `test_cases.py` alone.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.autograd.gradcheck import GradcheckError

from tests.gallery import RIGHT, WRONG, proofs
from tests.gallery.case import CHECKS, FAULTS, NOT_CLASSICAL, Case
from tests.gallery.derivatives import dense, directions, flat, gradients, live, outputs, slope

pytestmark = pytest.mark.gallery

CASES = (*WRONG, *RIGHT)
LARGEST_JACOBIAN = 10**7
"""Entries up to which torch's slow mode is run."""
SMOOTH_REFERENCES = [case for case in WRONG if case.reference and case.proof is not proofs.one_sided_slopes]


def accepted_by_torch(case: Case) -> bool:
    """The verdict of torch's slow mode at its default flags."""
    check = gradcheck if case.order == 1 or case.fault is None else gradgradcheck
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return check(*case.build())
        except GradcheckError:
            return False
        except Exception:
            if case.fault is None and (case.beyond or not case.drop_in):
                return False  # a right function that torch refuses with another error
            raise


def test_there_are_at_least_120_of_each() -> None:
    assert len(WRONG) >= 120
    assert len(RIGHT) >= 120


def test_every_class_of_faults_has_a_case() -> None:
    assert {case.fault for case in WRONG} == FAULTS


def test_every_check_has_a_wrong_function_that_it_must_report() -> None:
    assert frozenset().union(*(case.findings for case in WRONG)) == CHECKS


@pytest.mark.parametrize("case", CASES, ids=str)
def test_build_gives_new_inputs_with_the_same_values(case: Case) -> None:
    first, second = live(case.build()[1]), live(case.build()[1])
    assert first
    for one, other in zip(first, second, strict=True):
        assert one is not other
        assert one.dtype == case.dtype
        if one.layout == torch.strided and one.numel():
            assert one.data_ptr() != other.data_ptr()
        assert torch.equal(one.to_dense().detach(), other.to_dense().detach())


@pytest.mark.parametrize("case", WRONG, ids=str)
def test_wrong_function_is_wrong_under_its_condition(case: Case) -> None:
    evidence = (case.proof or proofs.reverse)(case)
    assert bool(torch.isfinite(evidence.true).all())
    assert not evidence.error <= case.threshold


@pytest.mark.parametrize("case", WRONG, ids=str)
def test_proof_finds_nothing_wrong_with_the_reference(case: Case) -> None:
    sound = replace(case, build=lambda: (proofs.reference(case), dense(case.build()[1])))
    assert (case.proof or proofs.reverse)(sound).error <= case.threshold


@pytest.mark.parametrize("case", SMOOTH_REFERENCES, ids=str)
def test_reference_has_the_values_of_the_wrong_function_and_the_slope_of_its_own(case: Case) -> None:
    reference = proofs.reference(case)
    function, inputs = case.subject()
    value, expected = flat(outputs(function(*inputs))), flat(outputs(reference(*dense(case.subject()[1]))))
    assert torch.allclose(value, expected, rtol=case.threshold, atol=case.threshold)
    inputs = tuple(_in_double(x) for x in dense(case.subject()[1]))
    tangents = directions(live(inputs))
    cotangents = flat(directions(outputs(reference(*inputs)), scale=3.0))
    numerical = float(torch.dot(cotangents, slope(reference, inputs, tangents, case.step)))
    analytical = float(torch.dot(flat(gradients(reference, inputs)), flat(tangents)))
    assert math.isclose(analytical, numerical, rel_tol=1e-5, abs_tol=1e-10)


def _in_double(value: object) -> object:
    if not (isinstance(value, Tensor) and value.requires_grad) or value.is_complex():
        return value
    return value.detach().double().requires_grad_()


@pytest.mark.parametrize("case", WRONG, ids=str)
def test_torch_slow_mode_rejects_a_wrong_function_where_the_case_says_so(case: Case) -> None:
    if case.dtype not in (torch.float64, torch.complex128) or case.special == NOT_CLASSICAL:
        pytest.skip(NOT_CLASSICAL)
    assert accepted_by_torch(case) == (not case.drop_in)


@pytest.mark.parametrize("case", [case for case in WRONG if case.order == 2], ids=str)
def test_fault_of_second_order_leaves_the_first_derivative_right(case: Case) -> None:
    assert gradcheck(*case.build())
    assert proofs.reverse(case).error <= case.threshold


@pytest.mark.parametrize("case", RIGHT, ids=str)
def test_torch_slow_mode_accepts_a_right_function_where_the_case_says_so(case: Case) -> None:
    if not case.drop_in and _jacobian_of(case) > LARGEST_JACOBIAN:
        pytest.skip("too many entries for torch's slow mode")
    assert accepted_by_torch(case) == (case.drop_in and not case.beyond)


def _jacobian_of(case: Case) -> int:
    function, inputs = case.build()
    sizes = sum(x.numel() for x in live(inputs)), sum(y.numel() for y in outputs(function(*inputs)))
    return sizes[0] * sizes[1]


@pytest.mark.parametrize("case", [case for case in RIGHT if case.reference or case.proof], ids=str)
def test_right_function_has_the_derivative_of_its_reference(case: Case) -> None:
    assert (case.proof or proofs.reverse)(case).error <= case.threshold


def test_right_function_that_torch_does_not_accept_has_a_reference_or_a_proof() -> None:
    unproved = [case.name for case in RIGHT if case.beyond or not case.drop_in]
    assert [name for name in unproved if not _has_proof(name)] == []


def _has_proof(name: str) -> bool:
    return any(case.name == name and (case.reference or case.proof) for case in RIGHT)


@pytest.mark.parametrize("case", [case for case in RIGHT if case.order == 2 and case.drop_in], ids=str)
def test_second_derivative_of_a_right_function_of_order_two_is_right(case: Case) -> None:
    assert gradgradcheck(*case.build())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_case_is_described(case: Case) -> None:
    assert case.why.endswith(".")
    assert case.findings <= CHECKS
    assert bool(case.findings) == (case.fault is not None)
    assert case.special or case.fault is None or case.drop_in or case.proof is not None or _hides_in_tolerance(case)


def _hides_in_tolerance(case: Case) -> bool:
    """Wrong in every call, by less than the classical tolerance."""
    return float((proofs.reverse(case).found - proofs.reverse(case).true).abs().max()) < 3e-3
