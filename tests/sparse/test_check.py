"""`check` of sparse tensors: every layout and both semantics, which the report names."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import gradvet
from gradvet import Report, Verdict
from tests.functions import with_vjp

LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "coo": lambda dense: dense.to_sparse(),
    "csr": lambda dense: dense.to_sparse_csr(),
    "csc": lambda dense: dense.to_sparse_csc(),
    "bsr": lambda dense: dense.to_sparse_bsr((2, 1)),
    "bsc": lambda dense: dense.to_sparse_bsc((2, 1)),
}
HOLED = torch.tensor([[0.0, 1.0, 0.0], [3.0, 0.0, 0.0], [0.0, 5.0, 0.0], [0.0, 6.0, 0.0]], dtype=torch.float64)


def pattern_of(x: Tensor) -> Tensor:
    if x.layout is torch.sparse_coo:
        return torch.sparse_coo_tensor(x.coalesce().indices(), torch.ones(x.coalesce()._nnz()), x.shape).to_dense() != 0
    ones = x.detach().clone()
    ones.values().fill_(1.0)
    return ones.to_dense() != 0


@functools.cache
def planted(layout: str, masked: bool, inside: float, outside: float) -> Report:
    """A check of `to_dense` whose gradient is multiplied inside and outside the pattern; several tests read it."""
    x = LAYOUTS[layout](HOLED).requires_grad_()
    function = with_vjp(lambda x: x.to_dense(), lambda v, x: v * torch.where(pattern_of(x), inside, outside))
    return gradvet.check(function, (x,), masked=masked, seed=1)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradient_everywhere_is_right_unmasked_and_wrong_masked(layout: str) -> None:
    assert planted(layout, False, 1.0, 1.0).verdict is Verdict.PASS
    assert planted(layout, True, 1.0, 1.0).verdict is Verdict.FAIL


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradient_inside_the_pattern_alone_is_right_masked_and_wrong_unmasked(layout: str) -> None:
    assert planted(layout, True, 1.0, 0.0).verdict is Verdict.PASS
    report = planted(layout, False, 1.0, 0.0)
    assert report.verdict is Verdict.FAIL
    assert "with masked=True (masked semantics) the check passes" in report.failures[0].advice


@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_forward_pass_that_overwrites_stored_numbers_is_inconclusive(layout: str) -> None:
    def growing(x: Tensor) -> Tensor:
        stored = x.detach()._values() if layout == "coo" else x.detach().values()
        stored.mul_(1.01)
        return torch.sparse.mm(x, torch.ones(3, 2, dtype=torch.float64))

    report = gradvet.check(growing, (LAYOUTS[layout](HOLED).requires_grad_(),), masked=True, seed=1)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "the forward pass overwrites input 0" in str(report)


def test_inconclusive_report_says_that_the_other_semantics_pass() -> None:
    sparse = torch.tensor([[0.0, 2.0, 0.0], [1.0, 0.0, 3.0]], dtype=torch.float64).to_sparse()
    report = gradvet.check(torch.sparse.mm, (sparse, torch.ones(3, 2, dtype=torch.float64)), seed=1, checks=["reverse"])
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "with masked=True (masked semantics) the check passes" in str(report)
    assert [row.reasons for row in report.open_rows] == [("undecided in unmasked semantics",)]
    assert "kink" not in str(report)  # a product has none


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_fault_inside_the_pattern_is_found_in_both_semantics(layout: str, masked: bool) -> None:
    report = planted(layout, masked, 1.5, 0.0 if masked else 1.0)
    assert "reverse" in {finding.check for finding in report.failures}
    assert "fails too" in report.failures[0].advice


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_report_names_the_semantics(layout: str, masked: bool) -> None:
    report = planted(layout, masked, 1.0, 0.0 if masked else 1.0)
    word = "masked semantics: only those count" if masked else "unmasked semantics: the others count as zeros"
    assert any(word in note for note in report.notes), report.notes


@pytest.mark.parametrize("layout", LAYOUTS)
def test_forward_mode_that_a_layout_does_not_offer_is_skipped(layout: str) -> None:
    report = planted(layout, True, 1.0, 0.0)
    assert [f.verdict for f in report.findings if f.check == "forward"] == [Verdict.SKIPPED]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_sparse_output_is_accepted(layout: str, masked: bool) -> None:
    x = LAYOUTS[layout](HOLED).requires_grad_()
    assert gradvet.check(lambda x: x * 2.0, (x,), masked=masked, seed=1).verdict is Verdict.PASS


@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_right_product_passes_whatever_comes_between_forward_and_backward(layout: str) -> None:
    x = LAYOUTS[layout](HOLED).requires_grad_()
    dense = torch.ones(3, 2, dtype=torch.float64, requires_grad=True)
    assert gradvet.check(torch.mm, (x, dense), seed=1).verdict is Verdict.PASS


def test_second_order_on_a_sparse_input() -> None:
    x = HOLED.to_sparse().requires_grad_()

    def cubed(x: Tensor) -> Tensor:
        return x.to_dense(masked_grad=False) ** 3

    report = gradvet.check(cubed, (x,), order=2, seed=1)
    assert report.verdict is Verdict.PASS
    assert "reverse-over-reverse" in {f.check for f in report.findings if f.verdict is Verdict.PASS}


squared = with_vjp(lambda x: x * x, lambda g, x: 2.0 * x.detach() * g)
"""Its gradient is right and forgets that it depends on the input."""


def test_second_order_fault_behind_a_sparse_input_is_found() -> None:
    x = HOLED.to_sparse().requires_grad_()
    function: Any = squared
    report = gradvet.check(lambda x: function(x.to_dense(masked_grad=False)), (x,), order=2, seed=1)
    assert "reverse-over-reverse" in {finding.check for finding in report.failures}
