"""Entries 89 to 102: forward mode, its failures and its number of calls."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from tests.functions import with_jvp, with_vjp

from .checker import Checker
from .functions import product, with_broken_backward, with_offset_gradient, with_scaled_tangent
from .points import leaf, numbers

FORWARD = {"check_forward_ad": True}
FORWARD_ONLY = {"check_forward_ad": True, "check_backward_ad": False}
MISMATCH = "Jacobian computed with forward mode mismatch"
DTYPES = [(torch.float64, torch.float64), (torch.float64, torch.complex128), (torch.complex128, torch.complex128)]


@pytest.mark.parametrize("dtypes", DTYPES, ids=["real", "mixed", "complex"])
def test_089_right_tangents_pass(checker: Checker, dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    first, second = dtypes
    checker.accepts(product, (leaf(3, dtype=first), leaf(3, dtype=second, seed=2)), **FORWARD)


def _scaled_in_the_second(x: Tensor, y: Tensor) -> Tensor:
    return x.sin() + with_scaled_tangent(y)


def test_090_scaled_tangent_of_the_second_input_is_a_mismatch(checker: Checker) -> None:
    inputs = (leaf(3), leaf(3, seed=2))
    checker.rejects(f"^{MISMATCH} for output 0 with respect to input 1", _scaled_in_the_second, inputs, **FORWARD)


def test_091_scaled_tangent_of_a_complex_input_names_the_imaginary_part(checker: Checker) -> None:
    inputs = (leaf(3), leaf(3, dtype=torch.complex128, seed=2))
    phrase = f"^While considering the imaginary part of complex inputs only, {MISMATCH} for output 0"
    checker.rejects(f"{phrase} with respect to input 1", _scaled_in_the_second, inputs, **FORWARD)


@pytest.mark.parametrize("undefined", [False, True], ids=["defined", "undefined"])
@pytest.mark.parametrize("batched", [False, True], ids=["looped", "batched"])
def test_092_no_input_requires_grad_while_forward_mode_runs(checker: Checker, undefined: bool, batched: bool) -> None:
    seen: set[bool] = set()

    def func(x: Tensor, y: Tensor) -> Tensor:
        if forward_ad._current_level >= 0:
            seen.update((x.requires_grad, y.requires_grad))
        return product(x, y)

    options = {"check_undefined_grad": undefined, "check_batched_forward_grad": batched}
    checker.accepts(func, (leaf(3), leaf(3, seed=2)), **FORWARD, **options)
    assert seen == {False}


def _jvp_calls(checker: Checker, second: Tensor, **options: bool) -> int:
    """Calls of the JVP in a check of x + y."""
    calls = 0

    def jvp(x_tangent: Tensor, y_tangent: Tensor, x: Tensor, y: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return x_tangent + y_tangent

    checker.accepts(with_jvp(torch.add, jvp), (leaf(1), second), **FORWARD_ONLY, **options)
    return calls


def _assert_at_most(checker: Checker, calls: int, known: int) -> None:
    """torch needs exactly the `known` number, and nothing that replaces it may need more."""
    assert calls == known if checker.name == "torch" else 0 < calls <= known


def test_093_one_jvp_for_each_of_two_elements(checker: Checker) -> None:
    calls = _jvp_calls(checker, leaf(1, seed=2), check_undefined_grad=False)
    _assert_at_most(checker, calls, 2)


def test_094_undefined_tangents_take_four_more_jvps(checker: Checker) -> None:
    calls = _jvp_calls(checker, leaf(1, seed=2), check_undefined_grad=True)
    _assert_at_most(checker, calls, 6)


def test_095_batched_tangents_take_six_more_jvps(checker: Checker) -> None:
    calls = _jvp_calls(checker, leaf(1, seed=2), check_undefined_grad=True, check_batched_forward_grad=True)
    _assert_at_most(checker, calls, 12)


def test_096_input_without_requires_grad_costs_no_jvp(checker: Checker) -> None:
    calls = _jvp_calls(checker, numbers(1, seed=2), check_undefined_grad=True, check_batched_forward_grad=True)
    _assert_at_most(checker, calls, 5)


def test_097_backward_failure_comes_before_the_forward_one(checker: Checker) -> None:
    both_wrong = with_offset_gradient(with_scaled_tangent)
    checker.rejects("^Jacobian mismatch for output 0 with respect to input 0", both_wrong, leaf(3), **FORWARD)
    checker.rejects(f"^{MISMATCH}", both_wrong, leaf(3), **FORWARD_ONLY)


def test_098_broken_backward_that_is_not_asked_for_passes(checker: Checker) -> None:
    options = {"check_undefined_grad": False, "check_batched_grad": False}
    checker.accepts(with_broken_backward, leaf(3), **FORWARD_ONLY, **options)


def test_099_wrong_tangent_that_is_not_asked_for_passes(checker: Checker) -> None:
    checker.accepts(with_scaled_tangent, leaf(3))


without_jvp = with_vjp(torch.clone, lambda gradient, x: gradient.clone())
"""The identity with a backward alone."""


def test_100_missing_jvp_is_a_not_implemented_error(checker: Checker) -> None:
    phrase = "You must implement the jvp function"
    checker.refuses(NotImplementedError, phrase, without_jvp, leaf(3), **FORWARD)


def test_100_operator_without_forward_formula_is_a_not_implemented_error(checker: Checker) -> None:
    phrase = "Trying to use forward AD with .* that does not support it"
    checker.refuses(NotImplementedError, phrase, torch.nn.functional.pdist, leaf(3, 2), **FORWARD)


def _tangent_of_sum(x_tangent: Tensor | None, y_tangent: Tensor | None, x: Tensor, y: Tensor) -> Tensor | None:
    """The tangent of x + y; a missing tangent of y is taken for one."""
    if x_tangent is None:
        return y_tangent
    return x_tangent + (1.0 if y_tangent is None else y_tangent)


def test_101_missing_tangent_that_differs_from_a_zero_one_is_rejected(checker: Checker) -> None:
    phrase = "Mismatch in tangent values for output with index: "
    function = with_jvp(torch.add, _tangent_of_sum, materialize=False)
    checker.rejects(phrase, function, (leaf(3), leaf(3, seed=2)), **FORWARD_ONLY)


rounded_tangent = with_jvp(lambda x: x.sum(), lambda tangent, x: tangent.sum() + 1e-12)
"""The sum of x, with a tangent that is off by a rounding error even where there is nothing to add up."""


@pytest.mark.upstream_differs("fast mode looks for the largest of no entries", mode="fast")
def test_102_zero_element_input_with_a_rounded_tangent_passes(checker: Checker) -> None:
    checker.accepts(rounded_tangent, leaf(0), **FORWARD_ONLY, check_undefined_grad=False)


def test_102_zero_element_input_passes(checker: Checker) -> None:
    checker.accepts(lambda x: x.sum(), leaf(0), **FORWARD)
    checker.accepts(lambda x, y: x.sum() + y.sin(), (leaf(0, 3), leaf(2)), **FORWARD)
