"""Sparse outputs: the engine compares them in coordinates of their own; the drop-in functions refuse them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import gradvet
from gradvet.core.results import Verdict
from gradvet.frontends.torch.layouts import coordinates_of
from tests.functions import with_vjp
from tests.sparse.functions import twice
from tests.sparse.native import run_pipeline
from tests.sparse.tensors import KINDS, LAYOUTS, SHAPE, holed, mask, numbers, specified, stored

HOME = torch.device("cpu")
pytestmark = pytest.mark.filterwarnings("ignore:Sparse")
both_semantics = pytest.mark.parametrize("masked", [True, False], ids=["masked", "unmasked"])


@pytest.mark.parametrize("kind", KINDS)
@both_semantics
def test_sparse_function_of_every_kind_passes_if_right_and_fails_if_wrong(kind: str, masked: bool) -> None:
    x = KINDS[kind]().requires_grad_()
    counted = int(specified(x.detach()).sum()) if masked else x.numel()
    assert run_pipeline(twice(), x, masked=masked).verdict is Verdict.PASS
    wrong = run_pipeline(twice(1.0), x, masked=masked)
    assert [finding.check for finding in wrong.failures] == (["reverse"] if counted else [])


@pytest.mark.parametrize("kind", KINDS)
@both_semantics
def test_cotangent_has_the_layout_of_the_output_and_the_pattern_of_the_semantics(kind: str, masked: bool) -> None:
    y = KINDS[kind]()
    coordinates = coordinates_of(y, masked, HOME)
    cotangent = coordinates.unflatten(torch.ones(coordinates.size, dtype=torch.float64))
    assert (cotangent.layout, cotangent.shape, cotangent.dtype) == (y.layout, y.shape, y.dtype)
    assert (cotangent.sparse_dim(), cotangent.dense_dim()) == (y.sparse_dim(), y.dense_dim())
    assert torch.equal(specified(cotangent), specified(y) if masked else torch.ones(y.shape, dtype=torch.bool))


@pytest.mark.parametrize("layout", LAYOUTS)
@both_semantics
def test_dense_input_and_sparse_output_are_compared(layout: str, masked: bool) -> None:
    # Conversion drops zeros, so there are none here: next to the point the pattern must be what it is at the point.
    x = numbers(*SHAPE).requires_grad_()
    assert run_pipeline(lambda x: stored(x, layout), x, masked=masked).verdict is Verdict.PASS
    wrong = run_pipeline(lambda x: twice(1.0)(stored(x, layout)), x, masked=masked)
    assert [finding.check for finding in wrong.failures] == ["reverse"]


@pytest.mark.parametrize("layout", LAYOUTS)
@both_semantics
def test_transposed_gradient_of_a_transposed_output_passes(layout: str, masked: bool) -> None:
    assert run_pipeline(Tensor.t, holed(layout).requires_grad_(), masked=masked).verdict is Verdict.PASS


@both_semantics
def test_mismatch_in_a_sparse_output_names_the_element(masked: bool) -> None:
    def one_wrong_vjp(gradient: Tensor, x: Tensor) -> Tensor:
        wrong = torch.zeros(SHAPE, dtype=torch.float64)
        wrong[3, 4] = 1.0
        return (gradient.to_dense() * (1.0 + wrong)).sparse_mask(gradient)

    one_wrong = with_vjp(torch.clone, one_wrong_vjp)

    (failure,) = run_pipeline(one_wrong, holed("sparse_csr").requires_grad_(), masked=masked).failures
    assert str(failure.mismatches[0]) == "d output 0 [3, 4] / d input 0 [3, 4]"
    assert failure.mismatches[0].derivative == pytest.approx(2.0)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("raise_exception", [True, False])
@both_semantics
def test_drop_in_refuses_sparse_outputs_and_sparse_gradients_at_second_order(
    layout: str, raise_exception: bool, masked: bool
) -> None:
    x, options = holed(layout).requires_grad_(), {"masked": masked, "raise_exception": raise_exception}
    phrase = "Sparse output is not supported at gradcheck yet"
    with pytest.raises(ValueError, match=phrase):
        gradvet.gradcheck(lambda x: x * 2, x, **options)
    with pytest.raises(ValueError, match=phrase):
        gradvet.gradgradcheck(lambda x: x.to_dense() ** 2, x, **options)


def test_output_that_is_sparse_but_not_differentiable_is_no_matter() -> None:
    x = numbers(*SHAPE).requires_grad_()
    assert gradvet.gradcheck(lambda x: (x.sin(), stored(mask().double(), "sparse_csr")), x)
