"""Second order on sparse inputs: the gradient is a sparse function of a sparse tensor and of its cotangent."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gradvet.core.results import Report, Verdict
from gradvet.frontends.torch.layouts import coordinates_of
from gradvet.frontends.torch.second_order import drop_in_gradient
from tests.functions import with_vjp
from tests.sparse.functions import Function
from tests.sparse.native import run_pipeline
from tests.sparse.tensors import LAYOUTS, holed, mask

pytestmark = pytest.mark.filterwarnings("ignore:Sparse")
both_semantics = pytest.mark.parametrize("masked", [True, False], ids=["masked", "unmasked"])


def examine_gradient(function: Function, x: Tensor, masked: bool) -> Report:
    """The gradient as a function of x and a random cotangent, which is as sparse as the output."""
    coordinates = coordinates_of(function(x), masked, torch.device("cpu"))
    vector = torch.randn(coordinates.size, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    cotangent = coordinates.unflatten(vector).requires_grad_()
    return run_pipeline(drop_in_gradient(function, (x,), (cotangent,)), x, cotangent, masked=masked)


def cube_vjp(gradient: Tensor, x: Tensor, detached: bool) -> Tensor:
    x = x.detach() if detached else x
    return gradient * 3 * x.to_dense(masked_grad=False) ** 2


cube = with_vjp(lambda x, detached: x.to_dense() ** 3, cube_vjp)
"""x³ as a dense tensor; `detached` backward has the right value but forgets that it depends on x."""


@pytest.mark.parametrize("layout", LAYOUTS)
@both_semantics
def test_gradient_of_a_dense_function_passes_under_its_semantics(layout: str, masked: bool) -> None:
    x = holed(layout).requires_grad_()
    report = examine_gradient(lambda x: x.to_dense(masked_grad=masked) ** 3, x, masked)
    assert report.verdict is Verdict.PASS
    # The gradient is sparse, and the report says what of it counted.
    assert sum(finding.check == "semantics" for finding in report.findings) == 2


@pytest.mark.parametrize("layout", ["sparse_coo", "sparse_csr"])
@both_semantics
def test_gradient_of_a_sparse_function_passes(layout: str, masked: bool) -> None:
    assert examine_gradient(lambda x: x * x, holed(layout).requires_grad_(), masked).verdict is Verdict.PASS


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradient_that_is_detached_from_its_input_is_found(layout: str) -> None:
    x = holed(layout).requires_grad_()
    assert examine_gradient(lambda x: cube(x, False), x, masked=False).verdict is Verdict.PASS
    (failure,) = examine_gradient(lambda x: cube(x, True), x, masked=False).failures
    assert failure.check == "reverse"
    assert (failure.facts["output"], failure.facts["input"]) == (0, 0)
    assert failure.facts["wrong"] == int(mask().sum())
