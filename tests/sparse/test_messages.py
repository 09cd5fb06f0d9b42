"""Messages of failed and impossible checks of sparse tensors.

Also tests `frontends/torch/layouts/sparse.py`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import gradvet
from tests.functions import with_vjp
from tests.sparse.functions import sine, stored_numbers, with_doubled_gradient
from tests.sparse.tensors import LAYOUTS, coo, full, holed, numbers

TORCH = importlib.import_module("torch.autograd.gradcheck")
pytestmark = pytest.mark.filterwarnings("ignore:Sparse")
both_semantics = pytest.mark.parametrize("masked", [True, False], ids=["masked", "unmasked"])
with_notes = pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have no notes before Python 3.11")


def failure(function: Callable[..., Any], *inputs: Any, **options: Any) -> gradvet.GradcheckError:
    with pytest.raises(gradvet.GradcheckError) as caught:
        gradvet.gradcheck(function, inputs, **options)
    return caught.value


@pytest.mark.parametrize("layout", LAYOUTS)
@both_semantics
def test_failure_says_that_the_other_semantics_would_pass(layout: str, masked: bool) -> None:
    error = failure(sine(not masked), holed(layout).requires_grad_(), masked=masked)
    used, other = ("masked", "unmasked") if masked else ("unmasked", "masked")
    assert f"This is the verdict of {used} semantics" in str(error)
    assert f"with masked={not masked} ({other} semantics) the check passes" in str(error)
    facts = error.report.failures[0].facts
    assert (facts["masked"], facts["passes otherwise"]) == (masked, True)


@both_semantics
def test_failure_says_that_the_other_semantics_fails_too(masked: bool) -> None:
    error = failure(sine(masked, 1.5), holed("sparse_csr").requires_grad_(), masked=masked)
    assert "the check fails too" in str(error)
    # The diagnosis of the mistake stays.
    assert "The ratio is 1.5" in str(error)
    assert error.report.failures[0].facts["passes otherwise"] is False


@both_semantics
def test_without_holes_there_is_no_word_about_semantics(masked: bool) -> None:
    error = failure(sine(masked, 1.5), full("sparse_csr").requires_grad_(), masked=masked)
    assert "semantics" not in str(error)
    assert "passes otherwise" not in error.report.failures[0].facts


def test_verdict_without_message_does_not_run_the_other_semantics() -> None:
    specified = set()

    def function(x: Tensor) -> Tensor:
        specified.add(x._nnz())
        return sine(False)(x)

    x = holed("sparse_coo").requires_grad_()
    assert not gradvet.gradcheck(function, x, masked=True, raise_exception=False)
    assert specified == {x._nnz()}
    failure(function, x, masked=True)
    assert specified == {x._nnz(), x.numel()}


def test_entry_outside_the_pattern_is_named_as_such() -> None:
    error = failure(sine(masked=False), holed("sparse_csr").requires_grad_(), masked=True)
    mismatches = error.report.failures[0].mismatches
    assert {str(mismatch.input) for mismatch in mismatches} == {"input 0 outside its pattern"}
    assert {mismatch.numerical for mismatch in mismatches} == {0.0}
    # The derivative of a sine at the unspecified zeros is one.
    assert [mismatch.derivative for mismatch in mismatches] == pytest.approx([1.0] * len(mismatches))


def test_report_speaks_of_the_sparse_inputs_alone() -> None:
    wrong = with_doubled_gradient(lambda x, y: x.to_dense() * y)
    error = failure(wrong, holed("sparse_coo").requires_grad_(), numbers(4, 9).requires_grad_())
    remarks = [finding.headline for finding in error.report.findings if finding.check == "semantics"]
    assert remarks == [
        "input 0 is sparse_coo with 18 of 36 elements specified; unmasked semantics: the others count as zeros"
    ]


def wrong_kind(attribute: str) -> tuple[Tensor, Tensor, str]:
    """An input, its gradient with one attribute wrong, and what the check says about it."""
    ones, pairs = torch.ones(4, 6, dtype=torch.float64), torch.ones(4, 6, 2, dtype=torch.float64)
    if attribute == "layout":
        phrase = "grad is incorrect layout (torch.sparse_coo is not torch.sparse_csr)"
        return ones.to_sparse_csr(), ones.to_sparse(), phrase
    if attribute == "sparse_dim":
        phrase = "grad is sparse tensor, but has incorrect sparse_dim 1, expected 2"
        return ones.to_sparse(), ones.to_sparse(1), phrase
    phrase = "grad is sparse_csr tensor, but has incorrect dense_dim 0, expected 1"
    return pairs.to_sparse_csr(dense_dim=1), pairs.to_sparse_csr(dense_dim=0), phrase


@pytest.mark.parametrize("attribute", ["layout", "sparse_dim", "dense_dim"])
@both_semantics
def test_gradient_of_the_wrong_kind_is_found_although_its_numbers_are_right(attribute: str, masked: bool) -> None:
    x, gradient, phrase = wrong_kind(attribute)
    summed = with_vjp(lambda x: x.to_dense().sum(), lambda v, x: gradient * v)
    error = failure(summed, x.requires_grad_(), masked=masked)
    assert str(error).startswith(phrase)
    assert error.report.failures[0].check == "metadata"
    assert error.report.failures[0].facts["attribute"] == attribute


@pytest.mark.parametrize("layout", ["sparse_bsr", "sparse_bsc"])
@both_semantics
@with_notes
def test_missing_operator_is_the_error_of_torch_with_a_note(layout: str, masked: bool) -> None:
    def function(x: Tensor) -> Tensor:
        return torch.sparse.mm(x, numbers(9, 2))

    found = []
    for library in (gradvet, TORCH):
        with pytest.raises(RuntimeError) as caught:
            library.gradcheck(function, holed(layout).requires_grad_(), masked=masked, raise_exception=False)
        found.append(caught.value)
    own, upstream = found
    assert (type(own), str(own)) == (type(upstream), str(upstream))
    (note,) = own.__notes__
    assert note.startswith(f"The check had inputs of layout {layout}.")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.filterwarnings("ignore:`torch.jit.script`")
def test_forward_mode_fails_with_the_error_of_torch(layout: str) -> None:
    found = []
    for library in (gradvet, TORCH):
        with pytest.raises((RuntimeError, NotImplementedError)) as caught:
            library.gradcheck(torch.sum, full(layout).requires_grad_(), check_forward_ad=True)
        found.append((caught.type, str(caught.value)))
    assert found[0] == found[1]


@with_notes
def test_function_of_the_pattern_is_referred_to_masked_semantics() -> None:
    x = holed("sparse_csr").requires_grad_()
    assert gradvet.gradcheck(stored_numbers, x, masked=True)
    with pytest.raises(AssertionError, match="outputs with the same shape when inputs are perturbed") as caught:
        gradvet.gradcheck(stored_numbers, x, masked=False)
    assert "needs masked=True" in caught.value.__notes__[0]


def test_error_of_a_dense_function_has_no_note() -> None:
    def function(x: Tensor) -> Tensor:
        raise RuntimeError("of its own")

    with pytest.raises(RuntimeError, match="of its own") as caught:
        gradvet.gradcheck(function, numbers(3).requires_grad_())
    assert not getattr(caught.value, "__notes__", [])


def test_gradient_that_is_sparse_in_another_way_is_compared_number_by_number() -> None:
    """Right numbers in an uncoalesced gradient, where several entries add up, are no mistake."""

    def uncoalesced_vjp(gradient: Tensor, x: Tensor, share: float) -> Tensor:
        x = x.coalesce()
        indices, values = x.indices(), 2.0 * gradient * x.values()
        both = torch.cat([share * values, 0.75 * values])
        return torch.sparse_coo_tensor(torch.cat([indices, indices], 1), both, x.shape)

    uncoalesced = with_vjp(lambda x, share: (x.to_dense() ** 2).sum(), uncoalesced_vjp)

    x = coo([[0, 2, 2], [1, 0, 1]], (3, 2)).requires_grad_()
    for masked in (True, False):
        assert gradvet.gradcheck(lambda x: uncoalesced(x, 0.25), x, masked=masked)
        assert not gradvet.gradcheck(lambda x: uncoalesced(x, 0.5), x, masked=masked, raise_exception=False)
