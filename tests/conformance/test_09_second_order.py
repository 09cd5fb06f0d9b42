"""Entries 107 to 114: gradgradcheck, which checks the gradient as a function of the inputs and of grad_outputs."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from tests.functions import with_vjp

from .checker import Checker
from .functions import (
    product,
    square_differentiable_once,
    square_without_second_derivative,
    with_gradient_hook,
    with_scaled_tangent,
)
from .points import LAYOUTS, leaf, numbers, sparse

MISMATCH = "Jacobian mismatch for output 0"


def _first_grad_output(checker: Checker, x: Tensor, **options: bool) -> Tensor:
    """The first grad_output that the backward of the square gets."""
    seen = []

    def vjp(gradient: Tensor, x: Tensor) -> Tensor:
        seen.append(gradient)
        return gradient * 2 * x.conj()

    checker.second_order.accepts(with_vjp(torch.square, vjp), x, **options)
    return seen[0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=["real", "complex"])
def test_107_grad_outputs_are_random_when_left_out(checker: Checker, dtype: torch.dtype) -> None:
    grad_output = _first_grad_output(checker, leaf(4, 5, dtype=dtype))
    assert grad_output.dtype is dtype
    assert grad_output.requires_grad
    parts = torch.view_as_real(grad_output) if dtype.is_complex else grad_output
    assert bool((parts.abs() <= 1).all())
    assert parts.unique().numel() == parts.numel()


@pytest.mark.upstream_differs("grad_outputs come from the global generator")
def test_107_random_state_is_untouched_by_gradgradcheck(checker: Checker) -> None:
    before = torch.get_rng_state(), random.getstate()
    checker.second_order.accepts(torch.sin, leaf(3))
    checker.second_order.accepts(torch.sin, leaf(3), check_batched_grad=True, check_fwd_over_rev=True)
    assert torch.get_rng_state().equal(before[0])
    assert random.getstate() == before[1]


def test_108_grad_outputs_are_non_contiguous_on_request(checker: Checker) -> None:
    x = leaf(4, 5)
    assert _first_grad_output(checker, x).is_contiguous()
    assert not _first_grad_output(checker, x, gen_non_contig_grad_outputs=True).is_contiguous()


detached_grad_output = with_vjp(lambda x: x * x, lambda gradient, x: gradient.detach() * 2 * x)
"""The square; its backward is differentiable in x, and not in grad_output."""


def test_109_grad_outputs_without_requires_grad_are_held_fixed(checker: Checker) -> None:
    x, grad_outputs = leaf(3), numbers(3, seed=2)
    copy = grad_outputs.clone()
    checker.second_order.accepts(torch.sin, x, grad_outputs)
    checker.second_order.accepts(torch.sin, x, (grad_outputs,))
    checker.second_order.accepts(detached_grad_output, x, grad_outputs)
    assert grad_outputs.equal(copy)


def test_109_grad_outputs_with_requires_grad_are_checked(checker: Checker) -> None:
    x, grad_outputs = leaf(3), leaf(3, seed=2)
    copy = grad_outputs.detach().clone()
    checker.second_order.accepts(torch.sin, x, grad_outputs)
    phrase = f"{MISMATCH} with respect to input 1"
    checker.second_order.rejects(phrase, detached_grad_output, x, grad_outputs)
    assert grad_outputs.equal(copy)


def test_110_backward_that_is_detached_from_the_graph_is_a_mismatch(checker: Checker) -> None:
    checker.accepts(square_without_second_derivative, leaf(3))
    checker.second_order.rejects(MISMATCH, square_without_second_derivative, leaf(3))


def test_110_backward_that_is_differentiable_once_is_a_mismatch(checker: Checker) -> None:
    checker.accepts(square_differentiable_once, leaf(3))
    checker.second_order.rejects(MISMATCH, square_differentiable_once, leaf(3))


def test_111_missing_double_backward_is_the_error_of_the_operator(checker: Checker) -> None:
    def total_of_two_rows(table: Tensor) -> Tensor:
        return torch.nn.functional.embedding_bag(torch.tensor([[0, 2]]), table, mode="sum")

    x = leaf(3, 2)
    checker.accepts(total_of_two_rows, x)
    checker.second_order.refuses(RuntimeError, "derivative for .* is not implemented", total_of_two_rows, x)


def test_112_linear_function_passes(checker: Checker) -> None:
    checker.second_order.accepts(lambda x: 3 * x, leaf(3))
    checker.second_order.accepts(torch.add, (leaf(3), leaf(3, seed=2)))
    checker.second_order.accepts(lambda x: x.sum(), leaf(2, 3))


FORWARD_OVER_REVERSE = [
    {"check_fwd_over_rev": True},
    {
        "check_fwd_over_rev": True,
        "check_rev_over_rev": False,
        "check_undefined_grad": False,
        "check_batched_grad": False,
    },
]


@pytest.mark.parametrize("options", FORWARD_OVER_REVERSE, ids=["both", "alone"])
def test_113_forward_over_reverse_is_checked(checker: Checker, options: dict[str, bool]) -> None:
    inputs = (leaf(3), leaf(3, seed=2))
    checker.second_order.accepts(product, inputs, **options)
    wrong = with_gradient_hook(with_scaled_tangent, torch.square)
    checker.second_order.accepts(wrong, leaf(3))
    phrase = "Jacobian computed with forward mode mismatch for output 0 with respect to input 0"
    checker.second_order.rejects(phrase, wrong, leaf(3), **options)


def test_113_operator_without_forward_over_reverse_is_a_not_implemented_error(checker: Checker) -> None:
    alone = FORWARD_OVER_REVERSE[1]
    phrase = "Trying to use forward AD with"
    checker.second_order.refuses(NotImplementedError, phrase, torch.nn.functional.pdist, leaf(3, 2), **alone)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.filterwarnings("ignore:Sparse")
def test_114_sparse_input_is_a_value_error(checker: Checker, layout: str) -> None:
    x = sparse(numbers(2, 4), layout).requires_grad_()
    phrase = "Sparse output is not supported at gradcheck yet"
    checker.second_order.refuses(ValueError, phrase, Tensor.to_dense, x, masked=True)
