"""Entries 1 to 11: how the two functions are called, and which requests they refuse."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch

from .checker import Checker, Library
from .functions import product, with_unbatchable_backward
from .points import leaf, numbers

SHARED_DEFAULTS = {
    "eps": 1e-6,
    "atol": 1e-5,
    "rtol": 1e-3,
    "nondet_tol": 0.0,
    "raise_exception": True,
    "check_undefined_grad": True,
    "check_grad_dtypes": False,
    "check_batched_grad": False,
    "fast_mode": False,
}
FIRST_ORDER_DEFAULTS = SHARED_DEFAULTS | {
    "check_batched_forward_grad": False,
    "check_forward_ad": False,
    "check_backward_ad": True,
    "masked": None,
}
SECOND_ORDER_DEFAULTS = SHARED_DEFAULTS | {
    "gen_non_contig_grad_outputs": False,
    "check_fwd_over_rev": False,
    "check_rev_over_rev": True,
    "masked": False,
}


def test_001_options_are_keyword_only(checker: Checker) -> None:
    with pytest.raises(TypeError, match="takes 2 positional arguments"):
        checker(torch.sin, leaf(3), 1e-6)


def test_002_third_positional_argument_of_gradgradcheck_is_grad_outputs(checker: Checker) -> None:
    checker.second_order.accepts(torch.sin, leaf(3), numbers(3, seed=2).requires_grad_())
    with pytest.raises(RuntimeError, match=r"(?i)shape"):
        checker.second_order(torch.sin, leaf(3), numbers(2, seed=2).requires_grad_())


@pytest.mark.upstream_differs("the name is gone since torch 2.2; code written before it still uses it")
def test_003_check_sparse_nnz_is_the_deprecated_name_of_masked(checker: Checker) -> None:
    x = leaf(3)
    with pytest.warns(FutureWarning, match=r"check_sparse_nnz.*masked"):
        checker.accepts(torch.sin, x, check_sparse_nnz=True)
    with pytest.warns(FutureWarning, match="check_sparse_nnz"):
        checker.accepts(torch.sin, x, check_sparse_nnz=True, masked=True)


@pytest.mark.upstream_differs("the name is gone since torch 2.2; code written before it still uses it")
@pytest.mark.filterwarnings("ignore:check_sparse_nnz:FutureWarning")
def test_003_check_sparse_nnz_that_differs_from_masked_is_a_value_error(checker: Checker) -> None:
    both_names = r"(?s)(?=.*check_sparse_nnz)(?=.*\bmasked)"
    checker.refuses(ValueError, both_names, torch.sin, leaf(3), check_sparse_nnz=True, masked=False)
    checker.refuses(ValueError, both_names, torch.sin, leaf(3), check_sparse_nnz=False, masked=True)


def test_003_unknown_keyword_is_a_type_error(checker: Checker) -> None:
    for check in (checker, checker.second_order):
        with pytest.raises(TypeError, match="check_everything"):
            check(torch.sin, leaf(3), check_everything=True)


def test_004_success_is_the_python_bool_true(checker: Checker) -> None:
    inputs = (leaf(3), leaf(3, seed=2))
    checker.accepts(product, inputs)
    checker.second_order.accepts(product, inputs)


def test_005_neither_forward_nor_backward_is_an_assertion_error(checker: Checker) -> None:
    phrase = "Expected at least one of check_forward_ad or check_backward_ad to be True"
    checker.refuses(AssertionError, phrase, torch.sin, leaf(3), check_backward_ad=False)


def test_006_batched_grad_needs_backward(checker: Checker) -> None:
    options = {"check_batched_grad": True, "check_backward_ad": False, "check_forward_ad": True}
    phrase = "check_batched_grad=True requires check_backward_ad"
    checker.refuses(AssertionError, phrase, torch.sin, leaf(3), **options)


def test_007_batched_forward_grad_needs_forward_ad(checker: Checker) -> None:
    phrase = "check_batched_forward_grad=True requires check_forward_ad"
    checker.refuses(AssertionError, phrase, torch.sin, leaf(3), check_batched_forward_grad=True)


def test_008_gradgradcheck_needs_one_of_the_two_orders(checker: Checker) -> None:
    phrase = "at least one of check_fwd_over_rev or check_rev_over_rev"
    checker.second_order.refuses(AssertionError, phrase, torch.sin, leaf(3), check_rev_over_rev=False)


def test_009_undefined_check_of_gradgradcheck_needs_reverse_over_reverse(checker: Checker) -> None:
    options = {"check_fwd_over_rev": True, "check_rev_over_rev": False}
    phrase = "check_undefined_grad=True requires check_rev_over_rev"
    checker.second_order.refuses(AssertionError, phrase, torch.sin, leaf(3), **options)


def test_010_defaults(implementation: Library) -> None:
    assert _keyword_defaults(implementation.gradcheck).items() >= FIRST_ORDER_DEFAULTS.items()
    assert _keyword_defaults(implementation.gradgradcheck).items() >= SECOND_ORDER_DEFAULTS.items()


def _keyword_defaults(function: Callable[..., bool]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    return {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}


def test_011_wrapper_of_the_internal_tests_is_fast_and_batched(implementation: Library) -> None:
    before = torch.autograd.gradcheck, torch.autograd.gradgradcheck
    with _installed(implementation):
        _assert_wrapper_is_batched(implementation.error)
    assert (torch.autograd.gradcheck, torch.autograd.gradgradcheck) == before


def _installed(implementation: Library) -> AbstractContextManager[Any]:
    """While it lasts, `torch.autograd.gradcheck` is the one of `implementation`."""
    if implementation.name == "torch":
        return nullcontext()
    context: AbstractContextManager[Any] = importlib.import_module("gradvet").replace_torch_gradcheck()
    return context


def _assert_wrapper_is_batched(error: type[RuntimeError]) -> None:
    """The wrapper asks for batched gradients, takes None for "not given", and reports with `error`."""
    from torch.testing._internal.common_utils import gradcheck, gradgradcheck

    x = leaf(3)
    assert gradcheck(torch.sin, x) is True
    assert gradgradcheck(torch.sin, x, fast_mode=None, check_batched_grad=None) is True
    unbatchable = with_unbatchable_backward()
    assert gradcheck(unbatchable, x, check_batched_grad=False) is True
    for options in ({}, {"fast_mode": None, "check_batched_grad": None}):
        with pytest.raises(error, match="While computing batched gradients"):
            gradcheck(unbatchable, x, **options)
