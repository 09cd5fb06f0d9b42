"""Entries 83 to 88: gradients and tangents under vmap against the same ones by a loop."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from .checker import Checker
from .functions import identity_with, with_batched_derivative_scaled, with_unbatchable_backward
from .points import leaf, numbers, sparse

BATCHED = {"check_batched_grad": True}
BATCHED_FORWARD = {"check_forward_ad": True, "check_batched_forward_grad": True}
FORWARD_ONLY = BATCHED_FORWARD | {"check_backward_ad": False, "check_undefined_grad": False}


def test_083_backward_that_vmap_cannot_follow_is_rejected(checker: Checker) -> None:
    text = checker.rejects("While computing batched gradients, got: ", with_unbatchable_backward(), leaf(3), **BATCHED)
    assert "gradcheck or gradgradcheck failed while testing batched gradient computation" in text


@pytest.mark.filterwarnings("ignore:Sparse")
def test_083_sparse_input_cannot_be_followed_by_vmap(checker: Checker) -> None:
    x = sparse(numbers(2, 3), "sparse_coo").requires_grad_()
    phrase = "gradcheck or gradgradcheck failed while testing batched gradient computation"
    checker.rejects(phrase, Tensor.to_dense, x, masked=True, **BATCHED)


def test_084_batched_gradient_that_differs_from_the_loop_is_rejected(checker: Checker) -> None:
    text = checker.rejects("For output 0 and input 0:", with_batched_derivative_scaled(1.1), leaf(3), **BATCHED)
    assert "gradcheck or gradgradcheck failed while testing batched gradient computation" in text
    assert "Got" in text
    assert "Expected" in text


def test_084_batched_tangent_that_differs_from_the_loop_is_rejected(checker: Checker) -> None:
    wrong = with_batched_derivative_scaled(1.1)
    text = checker.rejects("For output 0 and input 0:", wrong, leaf(3), **FORWARD_ONLY)
    assert "check_batched_forward_grad" in text, "the advice"


def test_085_batched_check_is_off_by_default(checker: Checker) -> None:
    for func in (with_unbatchable_backward(), with_batched_derivative_scaled(1.1)):
        checker.accepts(func, leaf(3))
    checker.accepts(with_batched_derivative_scaled(1.1), leaf(3), check_forward_ad=True)


def test_086_random_operation_in_a_batched_tangent_is_rejected(checker: Checker) -> None:
    noisy = identity_with(torch.clone, jvp=lambda tangent: tangent + 0 * torch.rand_like(tangent))
    phrase = "vmap: We do not yet support calling random operations inside of vmap"
    checker.rejects(phrase, noisy, leaf(3), **BATCHED_FORWARD)
    checker.accepts(noisy, leaf(3), check_forward_ad=True)


def test_087_missing_tangent_counts_as_zero_in_the_batched_forward_check(checker: Checker) -> None:
    def func(x: Tensor, y: Tensor, scale: int, name: None) -> tuple[Tensor, Tensor]:
        return x * scale, y.sin()

    checker.accepts(func, (leaf(3), leaf(3, seed=2), 5, None), **FORWARD_ONLY)


def test_088_batched_comparison_has_its_own_tolerance(checker: Checker) -> None:
    generous = {"atol": 10.0, "rtol": 10.0}
    checker.rejects("For output 0 and input 0:", with_batched_derivative_scaled(1.001), leaf(3), **BATCHED, **generous)
    strict = {"atol": 1e-8, "rtol": 1e-8}
    checker.accepts(with_batched_derivative_scaled(1 + 1e-7), leaf(3), **BATCHED, **strict)
