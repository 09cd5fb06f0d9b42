"""Entries 115 to 127: sparse inputs of every layout, with masked and unmasked semantics, and sparse outputs.

A gradient is masked if it has entries only where the input has them. An input with holes tells the two semantics
apart: the unmasked derivative of `to_dense` is one in a hole as well.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.functions import with_vjp

from .checker import Checker, Library
from .functions import with_gradient_hook
from .points import LAYOUTS, leaf, numbers, sparse

pytestmark = pytest.mark.filterwarnings("ignore:Sparse")
both_semantics = pytest.mark.parametrize("masked", [True, False], ids=["masked", "unmasked"])
every_layout = pytest.mark.parametrize("layout", LAYOUTS)
MISMATCH = "Jacobian mismatch for output 0 with respect to input 0"


def holed(layout: str = "sparse_coo", dtype: torch.dtype = torch.float64) -> Tensor:
    """A 4 x 6 leaf with three of its six 2 x 2 blocks empty."""
    pattern = torch.tensor([[1, 0, 1], [0, 1, 0]]).repeat_interleave(2, 0).repeat_interleave(2, 1)
    return sparse(numbers(4, 6, dtype=dtype) * pattern, layout).requires_grad_()


def to_dense(masked: bool) -> Callable[[Tensor], Tensor]:
    """`to_dense` whose gradient has the given semantics."""
    return lambda x: x.to_dense(masked_grad=masked)


@every_layout
@both_semantics
def test_115_sum_of_a_sparse_input_without_holes_passes(checker: Checker, layout: str, masked: bool) -> None:
    checker.accepts(torch.sum, sparse(numbers(4, 6), layout).requires_grad_(), masked=masked)


@every_layout
def test_115_sum_of_a_sparse_input_with_holes_passes_as_unmasked(checker: Checker, layout: str) -> None:
    checker.accepts(torch.sum, holed(layout), masked=False)


@every_layout
def test_116_masked_gradient_of_to_dense_passes_as_masked(checker: Checker, layout: str) -> None:
    checker.accepts(to_dense(masked=True), holed(layout), masked=True)


def test_117_float32_fails_at_the_default_tolerance(checker: Checker) -> None:
    x = torch.tensor([0.9, 0.7, 0.8, 0.6], dtype=torch.float32).to_sparse().requires_grad_()
    with pytest.warns(UserWarning, match="is not a double precision"):
        assert checker(to_dense(masked=True), x, masked=False, raise_exception=False) is False


@every_layout
@pytest.mark.upstream_differs("fast mode looks at the specified entries alone", mode="fast")
def test_117_masked_gradient_of_an_input_with_holes_fails_as_unmasked(checker: Checker, layout: str) -> None:
    checker.rejects(MISMATCH, to_dense(masked=True), holed(layout), masked=False)


@every_layout
def test_118_unmasked_gradient_of_to_dense_passes_as_unmasked(checker: Checker, layout: str) -> None:
    checker.accepts(to_dense(masked=False), holed(layout), masked=False)


@every_layout
@pytest.mark.upstream_differs("fast mode looks at the specified entries alone", mode="fast")
def test_119_unmasked_gradient_of_an_input_with_holes_fails_as_masked(checker: Checker, layout: str) -> None:
    checker.rejects(MISMATCH, to_dense(masked=False), holed(layout), masked=True)


def test_120_masked_none_is_unmasked(checker: Checker) -> None:
    checker.accepts(to_dense(masked=False), holed(), masked=None)
    checker.accepts(to_dense(masked=False), holed())


@pytest.mark.upstream_differs("fast mode looks at the specified entries alone", mode="fast")
def test_120_masked_none_rejects_a_masked_gradient(checker: Checker) -> None:
    checker.rejects(MISMATCH, to_dense(masked=True), holed(), masked=None)
    checker.rejects(MISMATCH, to_dense(masked=True), holed())


@pytest.mark.upstream_differs("the name is gone since torch 2.2; code written before it still uses it")
def test_003_check_sparse_nnz_chooses_the_semantics(checker: Checker) -> None:
    with pytest.warns(FutureWarning, match="check_sparse_nnz"):
        checker.accepts(to_dense(masked=True), holed(), check_sparse_nnz=True)
    with pytest.warns(FutureWarning, match="check_sparse_nnz"):
        checker.rejects(MISMATCH, to_dense(masked=True), holed(), check_sparse_nnz=False)


@every_layout
def test_121_dense_and_sparse_inputs_may_come_together(checker: Checker, layout: str) -> None:
    def func(x: Tensor, y: Tensor) -> Tensor:
        return x.to_dense() * y

    inputs = (holed(layout), leaf(4, 6, seed=2))
    checker.accepts(func, inputs, masked=True)
    doubled = with_gradient_hook(lambda gradient: 2 * gradient)
    phrase = "Jacobian mismatch for output 0 with respect to input 1"
    checker.rejects(phrase, lambda x, y: func(x, doubled(y)), inputs, masked=True)


def _uncoalesced() -> Tensor:
    x = torch.sparse_coo_tensor(torch.tensor([[0, 0, 1, 0], [1, 2, 0, 1]]), numbers(4), (2, 3), is_coalesced=False)
    assert not x.is_coalesced()
    return x


COO_KINDS: dict[str, Callable[[], Tensor]] = {
    "coalesced": lambda: _uncoalesced().coalesce(),
    "uncoalesced": _uncoalesced,
    "hybrid": lambda: torch.sparse_coo_tensor(torch.tensor([[0, 2]]), numbers(2, 2), (4, 2)).coalesce(),
    "hybrid_uncoalesced": lambda: torch.sparse_coo_tensor(torch.tensor([[0, 2, 0]]), numbers(3, 2), (4, 2)),
    "no_entries": lambda: torch.zeros(2, 3, dtype=torch.float64).to_sparse(),
    "values_of_size_zero": lambda: torch.sparse_coo_tensor(torch.tensor([[0, 2]]), numbers(2, 0), (4, 0)),
}


@pytest.mark.parametrize("kind", COO_KINDS)
@both_semantics
def test_122_every_kind_of_coo_tensor_passes_with_its_semantics(checker: Checker, kind: str, masked: bool) -> None:
    checker.accepts(to_dense(masked), COO_KINDS[kind]().requires_grad_(), masked=masked)


def test_123_values_are_the_input_of_a_function_that_builds_a_sparse_tensor(checker: Checker) -> None:
    def func(indices: Tensor, values: Tensor, size: tuple[int, ...], coalesced: bool) -> Tensor:
        built = torch.sparse_coo_tensor(indices, values, size, is_coalesced=coalesced, check_invariants=True)
        return built.to_dense(masked_grad=True)

    sorted_indices, repeated = torch.tensor([[0, 0, 1], [0, 2, 1]]), torch.tensor([[0, 0, 1], [0, 0, 1]])
    checker.accepts(func, (sorted_indices, leaf(3), (2, 3), True), masked=True)
    checker.accepts(func, (repeated, leaf(3), (2, 3), False), masked=True)
    phrase = "cannot set is_coalesced to true"
    checker.refuses(RuntimeError, phrase, func, (repeated, leaf(3), (2, 3), True), masked=True)


@pytest.mark.parametrize(
    ("layout", "masked"),
    [
        ("sparse_coo", True),
        ("sparse_coo", False),
        ("sparse_csr", True),
        ("sparse_csr", False),
        ("sparse_csc", False),
    ],
)
def test_124_product_of_sparse_and_dense_passes(checker: Checker, layout: str, masked: bool) -> None:
    multiply = torch.sparse.mm if masked else torch.mm
    checker.accepts(multiply, (holed(layout), leaf(6, 3, seed=2)), masked=masked)


@pytest.mark.parametrize("layout", ["sparse_bsr", "sparse_bsc"])
@both_semantics
def test_124_product_without_a_kernel_is_the_error_of_the_operator(checker: Checker, layout: str, masked: bool) -> None:
    multiply = torch.sparse.mm if masked else torch.mm
    phrase = "not implemented|unsupported combination of layouts"
    checker.refuses(RuntimeError, phrase, multiply, (holed(layout), leaf(6, 3, seed=2)), masked=masked)


@pytest.mark.parametrize("contiguous", [True, False], ids=["contiguous", "transposed"])
def test_125_dense_operand_beside_a_captured_csr_matrix_is_checked(checker: Checker, contiguous: bool) -> None:
    matrix = holed("sparse_csr").detach()
    x = leaf(6, 3) if contiguous else numbers(3, 6).t().requires_grad_()
    checker.accepts(lambda y: matrix @ y, x)
    checker.rejects(MISMATCH, with_gradient_hook(lambda gradient: 2 * gradient, lambda y: matrix @ y), x)


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": lambda x: x,
    "to_dense": lambda x: x.to_dense(),
    "sum": torch.sum,
    "to_sparse": Tensor.to_sparse,
    "values": lambda x: x.coalesce().values() if x.layout is torch.sparse_coo else x.values(),
}


halved_gradient = with_vjp(lambda x: x * 2, lambda gradient, x: gradient.clone())
"""Twice its sparse argument; the gradient lacks the factor."""


def _adapted(checker: Checker, adapter: Callable[..., Any]) -> Checker:
    """`checker` behind an adapter that hands it the values of sparse tensors alone."""
    check = SimpleNamespace(gradcheck=adapter(checker.library.gradcheck), GradcheckError=checker.library.error)
    return replace(checker, library=Library(checker.name, check))


def _own_adapter() -> Callable[..., Any]:
    adapter: Callable[..., Any] = importlib.import_module("gradvet").as_sparse_gradcheck
    return adapter


@every_layout
@both_semantics
def test_126_sparse_functions_pass_through_the_adapter(checker: Checker, layout: str, masked: bool) -> None:
    for function in FUNCTIONS.values():
        _adapted(checker, torch.sparse.as_sparse_gradcheck).accepts(function, holed(layout), masked=masked)


@every_layout
@both_semantics
@pytest.mark.upstream_differs("this adapter is gradvet's own")
def test_126_sparse_functions_pass_through_the_own_adapter(checker: Checker, layout: str, masked: bool) -> None:
    for function in FUNCTIONS.values():
        _adapted(checker, _own_adapter()).accepts(function, holed(layout), masked=masked)


@every_layout
def test_127_sparse_output_is_allowed_and_checked_by_the_adapter(checker: Checker, layout: str) -> None:
    adapted = _adapted(checker, torch.sparse.as_sparse_gradcheck)
    adapted.accepts(lambda x: x * 2, holed(layout), masked=True)
    adapted.rejects("mismatch", halved_gradient, holed(layout), masked=True)


@every_layout
@pytest.mark.upstream_differs("this adapter is gradvet's own")
def test_127_sparse_output_is_allowed_and_checked_by_the_own_adapter(checker: Checker, layout: str) -> None:
    adapted = _adapted(checker, _own_adapter())
    adapted.accepts(lambda x: x * 2, holed(layout), masked=True)
    adapted.rejects("mismatch", halved_gradient, holed(layout), masked=True)
