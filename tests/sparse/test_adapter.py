"""`as_sparse_gradcheck` gives a checker the stored numbers of sparse inputs and dense outputs, and nothing else.

Also tests `compat/helpers.py`.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import gradvet
from tests.sparse.functions import decision, sine, twice
from tests.sparse.tensors import KINDS, LAYOUTS, holed, numbers, specified

pytestmark = pytest.mark.filterwarnings("ignore:Sparse")
both_semantics = pytest.mark.parametrize("masked", [True, False], ids=["masked", "unmasked"])


@both_semantics
def test_none_means_the_own_checker(masked: bool) -> None:
    check = gradvet.as_sparse_gradcheck()
    x = holed("sparse_csr").requires_grad_()
    assert check(twice(), x, masked=masked) is True
    with pytest.raises(gradvet.GradcheckError, match="Jacobian mismatch for output 0 with respect to input 0"):
        check(twice(1.0), x, masked=masked)


@pytest.mark.parametrize("kind", KINDS)
@both_semantics
def test_checker_sees_the_stored_numbers_and_the_function_a_tensor_of_the_same_kind(kind: str, masked: bool) -> None:
    x, seen = KINDS[kind]().requires_grad_(), []

    def checker(function: Any, inputs: tuple[Tensor, ...], **options: Any) -> bool:
        (numbers_,) = inputs
        assert (numbers_.layout, numbers_.requires_grad, numbers_.is_leaf) == (torch.strided, True, True)
        with torch.no_grad():  # torch cannot differentiate the building of complex compressed tensors
            function(*inputs)
        return True

    def function(x: Tensor) -> Tensor:
        seen.append(x)
        return x.to_dense()

    assert gradvet.as_sparse_gradcheck(checker)(function, x, masked=masked)
    (found,) = seen
    assert (found.layout, found.shape, found.dtype) == (x.layout, x.shape, x.dtype)
    assert (found.sparse_dim(), found.dense_dim()) == (x.sparse_dim(), x.dense_dim())
    assert torch.equal(found.detach().to_dense(), x.detach().to_dense())
    pattern = specified(x.detach()) if masked else torch.ones(x.shape, dtype=torch.bool)
    assert torch.equal(specified(found.detach()), pattern)


def test_other_arguments_and_options_pass_through() -> None:
    given: dict[str, Any] = {}

    def checker(function: Any, inputs: tuple[Any, ...], *args: Any, **options: Any) -> bool:
        given.update(inputs=inputs, args=args, options=options)
        return True

    dense, constant = numbers(3).requires_grad_(), holed("sparse_coo")
    check = gradvet.as_sparse_gradcheck(checker)
    check(lambda *_: None, (dense, constant, "a word", None), 7, masked=True, fast_mode=True)
    assert all(a is b for a, b in zip(given["inputs"], (dense, constant, "a word", None), strict=True))
    assert (given["args"], given["options"]) == ((7,), {"fast_mode": True})


def test_outputs_keep_their_containers() -> None:
    x = holed("sparse_coo").requires_grad_()
    check = gradvet.as_sparse_gradcheck()
    assert check(lambda x: {"twice": x * 2, "more": [None, x.sum(), 3]}, x, masked=True)


def test_old_name_of_masked_chooses_the_semantics() -> None:
    x, check = holed("sparse_coo").requires_grad_(), gradvet.as_sparse_gradcheck()
    seen = []

    def function(x: Tensor) -> Tensor:
        seen.append(x._nnz())
        return x * 2

    with pytest.warns(FutureWarning, match="check_sparse_nnz"):
        assert check(function, x, check_sparse_nnz=True)
    assert set(seen) == {x._nnz()}


@pytest.mark.parametrize("layout", LAYOUTS)
@both_semantics
def test_planted_fault_is_found_behind_the_adapter_of_torch_too(layout: str, masked: bool) -> None:
    check = torch.sparse.as_sparse_gradcheck(gradvet.gradcheck)
    x = holed(layout).requires_grad_()
    assert decision(check, sine(masked), x, masked=masked) == "pass"
    assert decision(check, sine(masked, 1.01), x, masked=masked) == "fail"
