"""Entries 35 to 53: what a function may return, in which order, and what is said about the rest."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from .checker import Checker
from .functions import with_gradient_hook, with_offset_gradient, with_scaled_tangent
from .points import LAYOUTS, leaf, numbers, sparse

MISMATCH = "Jacobian mismatch for output 0 with respect to input 0"
NOT_ZERO = "Numerical gradient for function expected to be zero"


def test_035_function_without_outputs_passes(checker: Checker) -> None:
    checker.accepts(lambda x: (), leaf(3))


def test_036_varying_function_without_differentiable_output_is_rejected(checker: Checker) -> None:
    checker.rejects(NOT_ZERO, lambda x: x.detach(), leaf(3))
    checker.rejects(NOT_ZERO, lambda x: (x.detach().sin(), numbers(2)), leaf(3))


def test_036_slow_mode_wants_exactly_zero_and_fast_mode_up_to_nondet_tol(checker: Checker) -> None:
    def hardly_varying(x: Tensor) -> Tensor:
        return 1e-7 * x.detach()

    checker.rejects(NOT_ZERO, hardly_varying, leaf(3))
    if checker.mode == "slow":
        checker.rejects(NOT_ZERO, hardly_varying, leaf(3), nondet_tol=1e-5)
    else:
        checker.accepts(hardly_varying, leaf(3), nondet_tol=1e-5)


def test_037_constant_function_without_differentiable_output_passes(checker: Checker) -> None:
    checker.accepts(lambda x: numbers(2), leaf(3))
    checker.accepts(lambda x: (x.detach() > 0).to(x.dtype), leaf(3))


def test_038_list_of_outputs_is_accepted(checker: Checker) -> None:
    checker.accepts(lambda x: [x.sin(), x.cos()], leaf(3))
    wrong = with_offset_gradient(lambda x: [x.sin(), x.cos()])
    checker.rejects(MISMATCH, wrong, leaf(3))


OTHER_OUTPUTS: dict[str, Callable[[Tensor], Any]] = {
    "none_after": lambda y: (y, None),
    "none_before": lambda y: (None, y),
    "numbers": lambda y: (1, y, 2.5, True),
    "string": lambda y: ("label", y),
    "dict": lambda y: {"out": y},
    "dict_among_others": lambda y: (y, {"twice": 2 * y, "label": "a"}),
    "nested": lambda y: [(y, [None, {"inner": (y * 2, 1)}])],
}


@pytest.mark.parametrize("kind", OTHER_OUTPUTS)
@pytest.mark.upstream_differs("anything but tensors ends in an AttributeError")
def test_039_tensors_are_found_among_any_other_outputs(checker: Checker, kind: str) -> None:
    pack = OTHER_OUTPUTS[kind]
    checker.accepts(lambda x: pack(x.sin()), leaf(3))
    checker.rejects(MISMATCH, with_offset_gradient(pack), leaf(3))


@pytest.mark.upstream_differs("anything but tensors ends in an AttributeError")
def test_039_tensor_deep_in_a_container_is_checked(checker: Checker) -> None:
    doubled = with_gradient_hook(lambda gradient: 2 * gradient)

    def func(x: Tensor) -> Any:
        return x.sin(), {"inner": [None, doubled(x)]}

    checker.rejects("Jacobian mismatch for output 1 with respect to input 0", func, leaf(3))


def test_040_integer_output_after_the_differentiable_one_passes(checker: Checker) -> None:
    checker.accepts(lambda x: (x.sin(), x.argmax()), leaf(3))


@pytest.mark.upstream_differs("slow mode stops with an IndexError", mode="slow")
def test_041_integer_output_before_the_differentiable_one_passes(checker: Checker) -> None:
    checker.accepts(lambda x: (x.argmax(), x.sin()), leaf(3))
    checker.rejects(MISMATCH, lambda x: (x.argmax(), with_offset_gradient()(x)), leaf(3))


def test_042_detached_output_that_varies_passes_with_a_warning(checker: Checker) -> None:
    def func(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.sin(), x.detach().cos()

    if checker.name == "torch":
        checker.accepts(func, leaf(3))
    else:
        with pytest.warns(UserWarning, match=r"(?s)(?=.*output 1\b)(?=.*does not require grad)"):
            checker.accepts(func, leaf(3))


def test_042_constant_output_without_grad_passes_without_a_warning(checker: Checker) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        checker.accepts(lambda x: (x.sin(), numbers(2)), leaf(3))
        checker.accepts(lambda x: (x.sin(), (x.detach() > 0).to(x.dtype)), leaf(3))


@pytest.mark.upstream_differs("fast mode compares the wrong outputs with each other", mode="fast")
def test_043_output_without_grad_before_the_differentiable_one_passes(checker: Checker) -> None:
    checker.accepts(lambda x: (numbers(3, seed=2), x.sin()), leaf(3))
    checker.accepts(lambda x: (numbers(2), x.sin(), numbers(1), x.cos().sum()), leaf(3))
    checker.rejects(MISMATCH, lambda x: (numbers(3, seed=2), with_offset_gradient()(x)), leaf(3))


@pytest.mark.upstream_differs("fast mode stops with an IndexError", mode="fast")
def test_044_wrong_tangent_behind_an_output_without_grad_is_reported(checker: Checker) -> None:
    def func(x: Tensor) -> tuple[Tensor, Tensor]:
        return numbers(3, seed=2), with_scaled_tangent(x)

    options = {"check_forward_ad": True, "check_backward_ad": False}
    phrase = "Jacobian computed with forward mode mismatch for output 0 with respect to input 0"
    checker.rejects(phrase, func, leaf(3), **options)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.filterwarnings("ignore:Sparse")
def test_045_sparse_output_is_a_value_error(checker: Checker, layout: str) -> None:
    phrase = "Sparse output is not supported at gradcheck yet"
    checker.refuses(ValueError, phrase, lambda x: sparse(x, layout), leaf(2, 4))


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch is built without mkldnn")
def test_046_mkldnn_output_is_a_value_error(checker: Checker) -> None:
    x = leaf(3, dtype=torch.float32)
    with pytest.warns(UserWarning, match="is not a double precision"):
        checker.refuses(ValueError, "MKLDNN output is not supported at gradcheck yet", Tensor.to_mkldnn, x)


def test_047_shape_that_depends_on_the_values_is_an_assertion_error(checker: Checker) -> None:
    x = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    phrase = "outputs with the same shape when inputs are perturbed"
    checker.refuses(AssertionError, phrase, lambda y: torch.cat([y, y]) if (y > 0).any() else y.clone(), x)


def test_048_dtype_that_depends_on_the_values_is_an_assertion_error(checker: Checker) -> None:
    x = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    phrase = "outputs with the same dtype when inputs are perturbed"
    checker.refuses(AssertionError, phrase, lambda y: y.to(torch.float32) if (y > 0).any() else y.clone(), x)


def test_049_input_itself_or_a_view_of_it_is_a_good_output(checker: Checker) -> None:
    checker.accepts(lambda x: x, leaf(2, 3))
    checker.accepts(lambda x: x.t(), leaf(2, 3))
    checker.accepts(lambda x: (x[0], x), leaf(2, 3))


def test_050_output_that_requires_grad_but_does_not_depend_on_the_inputs_passes(checker: Checker) -> None:
    other = leaf(2, seed=2)
    checker.accepts(lambda x: (x.sin(), other.exp()), leaf(3))


@pytest.mark.parametrize("factor", [float("nan"), float("inf")], ids=str)
def test_051_derivative_that_is_not_finite_never_passes(checker: Checker, factor: float) -> None:
    checker.rejects(MISMATCH, lambda x: x * factor, leaf(3))


def test_051_single_nan_never_passes(checker: Checker) -> None:
    factors = torch.tensor([1.0, float("nan"), 1.0], dtype=torch.float64)
    checker.rejects(MISMATCH, lambda x: x * factors, leaf(3), atol=1.0)


@pytest.mark.upstream_differs("fast mode stops at an internal comparison of float32 with float64", mode="fast")
def test_052_float32_output_of_float64_input_is_a_mismatch(checker: Checker) -> None:
    checker.rejects(MISMATCH, lambda x: x.sin().float(), leaf(3))


def test_053_complex_and_real_outputs_may_come_together(checker: Checker) -> None:
    checker.accepts(lambda x: (x * (2 + 1j), x.sin()), leaf(3))
    checker.accepts(lambda z: (z * z, z.abs()), leaf(3, dtype=torch.complex128))
    checker.rejects("mismatch", with_offset_gradient(lambda z: (z * z, z.abs())), leaf(3, dtype=torch.complex128))
