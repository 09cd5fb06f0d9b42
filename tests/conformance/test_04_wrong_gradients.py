"""Entries 54 to 70: wrong gradients are found, and the message says what is wrong and where."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from .checker import Checker, library
from .functions import identity_with, linear, with_gradient_hook, with_offset_gradient
from .points import leaf, numbers, sparse

MISMATCH = "Jacobian mismatch for output 0 with respect to input 0"
IMAGINARY = f"While considering the imaginary part of complex outputs only, {MISMATCH}"


def test_054_offset_gradient_is_a_mismatch(checker: Checker) -> None:
    checker.rejects(MISMATCH, with_offset_gradient(), leaf(3))
    checker.rejects(MISMATCH, with_offset_gradient(torch.sin), leaf(2, 3))


def test_054_error_is_caught_by_code_that_was_written_for_upstream(checker: Checker) -> None:
    for expected in (RuntimeError, library("torch").error):
        with pytest.raises(expected, match=MISMATCH):
            checker(with_offset_gradient(), leaf(3))


# A linear function from R^3 to R^2 whose backward is wrong in one entry: d output 1 / d input 2 is 0.5 too large.
MATRIX = torch.tensor([[1.0, 2.0, 3.0], [5.0, 7.0, 11.0]], dtype=torch.float64)
WRONG = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 0.5]], dtype=torch.float64)


@pytest.mark.upstream_differs("fast mode shows two projected numbers first", mode="fast")
def test_055_message_shows_both_matrices_inputs_by_outputs(checker: Checker) -> None:
    text = checker.rejects(MISMATCH, linear(MATRIX, MATRIX + WRONG), leaf(3))
    numerical, analytical = _matrix_after("numerical:", text), _matrix_after("analytical:", text)
    torch.testing.assert_close(numerical, MATRIX.t(), rtol=0, atol=1e-3)
    torch.testing.assert_close(analytical, (MATRIX + WRONG).t(), rtol=0, atol=1e-3)


def _matrix_after(label: str, text: str) -> Tensor:
    """The rows in square brackets behind `label`, up to the next label or sentence."""
    rows = re.match(r"[^\[]*((?:\[+[^\[\]]*\]+[\s,]*)+)", text.partition(label)[2])
    assert rows is not None
    return torch.tensor(
        [[float(number) for number in row.split(",")] for row in re.findall(r"\[([^\[\]]+)\]", rows[1])],
        dtype=torch.float64,
    )


def test_056_message_gives_the_largest_difference_of_the_entries(checker: Checker) -> None:
    text = checker.rejects(MISMATCH, linear(MATRIX, MATRIX + WRONG), leaf(3))
    if (checker.name, checker.mode) != ("torch", "slow"):
        largest = re.search(r"The max per-element difference \(slow mode\) is: ([\d.e+-]*\d)", text)
        assert largest is not None
        assert float(largest[1]) == pytest.approx(0.5, abs=1e-6)
    assert "might've passed in slow_mode" not in text


@pytest.mark.upstream_differs("the message names no entry and has no error bar")
def test_056_message_names_the_worst_entry_with_its_error_bar(checker: Checker) -> None:
    text = checker.rejects(MISMATCH, linear(MATRIX, MATRIX + WRONG), leaf(3))
    head, _, rest = text.partition("\n")
    assert MISMATCH in head
    assert re.search(r"\b1 of 6\b", rest), "how many entries disagree"
    assert re.search(r"output 0 \[1\].*input 0 \[2\]", rest), "which one is the worst"
    assert re.search(r"\b11\.5", rest), "the value under test"
    assert re.search(r"\b(11(\.0+\d*)?|10\.99\d*)\s*±", rest), "the numerical value with its error bar"


_doubled = with_gradient_hook(lambda gradient: 2 * gradient)


def test_057_indices_count_differentiable_inputs_and_outputs_only(checker: Checker) -> None:
    def func(index: Tensor, fixed: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return x.sin(), _doubled(y), fixed

    inputs = (torch.tensor([1, 2]), numbers(3), leaf(3), leaf(3, seed=2))
    checker.rejects("Jacobian mismatch for output 1 with respect to input 1", func, inputs)


@pytest.mark.upstream_differs("fast mode compares outputs of different shapes with each other", mode="fast")
def test_057_output_without_grad_in_front_does_not_count(checker: Checker) -> None:
    def func(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return numbers(2), x.sin(), numbers(1), _doubled(y)

    checker.rejects("Jacobian mismatch for output 1 with respect to input 1", func, (leaf(3), leaf(3, seed=2)))


def test_057_output_that_ignores_grad_output_is_not_blamed_on_another_one(checker: Checker) -> None:
    def func(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return x.sin(), with_offset_gradient()(y)

    checker.rejects("Jacobian mismatch for output 1 with respect to input 1", func, (leaf(3), leaf(3, seed=2)))


def test_058_complex_to_complex_fails_in_the_imaginary_part_first(checker: Checker) -> None:
    wrong = with_offset_gradient(lambda z: z * z)
    checker.rejects(f"^{IMAGINARY}", wrong, leaf(3, dtype=torch.complex128))


def test_059_real_to_complex_fails_in_the_imaginary_part_first(checker: Checker) -> None:
    checker.rejects(f"^{IMAGINARY}", with_offset_gradient(lambda x: x * (2 + 3j)), leaf(3))


def test_060_complex_to_real_names_no_part(checker: Checker) -> None:
    checker.rejects(f"^{MISMATCH}", with_offset_gradient(torch.abs), leaf(3, dtype=torch.complex128))


COMPLEX_MISTAKES: dict[str, Callable[[Tensor], Tensor]] = {
    "conjugated": torch.Tensor.conj_physical,
    "imaginary_part_doubled": lambda gradient: torch.complex(gradient.real, 2 * gradient.imag),
    "imaginary_part_dropped": lambda gradient: gradient.real + 0j,
}


@pytest.mark.parametrize("mistake", COMPLEX_MISTAKES)
def test_061_mistake_in_the_imaginary_part_of_a_gradient_is_found(checker: Checker, mistake: str) -> None:
    wrong = with_gradient_hook(COMPLEX_MISTAKES[mistake], lambda z: z * z)
    checker.rejects(f"^{IMAGINARY}", wrong, leaf(3, dtype=torch.complex128))


@pytest.mark.parametrize("masked", [False, True], ids=["unmasked", "masked"])
def test_062_gradient_that_ignores_grad_output_is_found_within_atol(checker: Checker, masked: bool) -> None:
    phrase = "backward not multiplied by grad_output"
    checker.rejects(phrase, with_offset_gradient(), leaf(3), atol=1e-1, masked=masked)


def test_062_masked_semantics_allow_a_rounding_error_for_zero_grad_output(checker: Checker) -> None:
    nearly_zero = with_gradient_hook(lambda gradient: gradient + 1e-10)
    checker.rejects("backward not multiplied by grad_output", nearly_zero, leaf(3), masked=False)
    checker.accepts(nearly_zero, leaf(3), masked=True)


@pytest.mark.filterwarnings("ignore:Sparse")
def test_063_sparse_gradient_of_a_strided_input_has_the_wrong_layout(checker: Checker) -> None:
    phrase = r"grad is incorrect layout \(torch.sparse_coo is not torch.strided\)"
    checker.rejects(phrase, identity_with(torch.Tensor.to_sparse), leaf(3))


@pytest.mark.filterwarnings("ignore:Sparse")
def test_064_sparse_gradient_with_the_wrong_sparse_dim_is_found(checker: Checker) -> None:
    def func(x: Tensor) -> Tensor:
        y = x.clone()
        y.register_hook(lambda gradient: None if gradient is None else gradient.to_dense().to_sparse(1))
        return y.to_dense()

    x = sparse(numbers(2, 3), "sparse_coo").requires_grad_()
    phrase = "grad is sparse tensor, but has incorrect sparse_dim 1, expected 2"
    checker.rejects(phrase, func, x, masked=True, atol=1e-1)


class SpoiledGradient(Tensor):
    """A tensor whose gradients are changed by `spoil` behind the engine, where nothing casts or validates any more."""

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]
        if func is not torch.autograd.grad:
            return result
        cotangents = args[2] if len(args) > 2 else (kwargs or {}).get("grad_outputs")
        return tuple(cls.spoil(gradient, cotangents) for gradient in result)

    @staticmethod
    def spoil(gradient: Tensor | None, cotangents: Any) -> Tensor | None:
        return gradient


class WrongDtypeForZero(SpoiledGradient):
    @staticmethod
    def spoil(gradient: Tensor | None, cotangents: Any) -> Tensor | None:
        return gradient.float() if gradient is not None and _all_zero(cotangents) else gradient


class WrongSizeForZero(SpoiledGradient):
    @staticmethod
    def spoil(gradient: Tensor | None, cotangents: Any) -> Tensor | None:
        return gradient[None] if gradient is not None and _all_zero(cotangents) else gradient


class WrongDtype(SpoiledGradient):
    @staticmethod
    def spoil(gradient: Tensor | None, cotangents: Any) -> Tensor | None:
        return None if gradient is None else gradient.float()


class WrongSize(SpoiledGradient):
    @staticmethod
    def spoil(gradient: Tensor | None, cotangents: Any) -> Tensor | None:
        return None if gradient is None else gradient[None]


def _all_zero(cotangents: Any) -> bool:
    given = [cotangents] if isinstance(cotangents, Tensor) else list(cotangents or [])
    return bool(given) and all(each is not None and not bool(each.any()) for each in given)


def _spoiled(kind: type[SpoiledGradient]) -> Tensor:
    return numbers(3).as_subclass(kind).requires_grad_()


def test_065_attributes_of_the_gradient_for_zero_grad_output_are_checked(checker: Checker) -> None:
    options = {"check_undefined_grad": False}
    checker.rejects("grad is incorrect type", torch.sin, _spoiled(WrongDtypeForZero), **options)
    checker.rejects("grad is incorrect size", torch.sin, _spoiled(WrongSizeForZero), **options)


def test_066_gradient_of_the_wrong_shape_is_refused_by_the_engine(checker: Checker) -> None:
    phrase = r"returned an invalid gradient at index 0 - got \[1\] but expected shape compatible with \[3\]"
    checker.refuses(RuntimeError, phrase, identity_with(lambda gradient: gradient[:1]), leaf(3))


def test_067_complex_gradient_of_a_real_input_is_refused_by_the_engine(checker: Checker) -> None:
    wrong = identity_with(lambda gradient: gradient * (1 + 1j))
    checker.refuses(RuntimeError, "Expected isFloatingType", wrong, leaf(3), check_grad_dtypes=True)


def test_068_gradient_that_the_engine_casts_or_reduces_passes(checker: Checker) -> None:
    x = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64, requires_grad=True)
    checker.accepts(identity_with(torch.Tensor.float), x, check_grad_dtypes=True)
    checker.accepts(identity_with(lambda gradient: gradient[None]), x, check_grad_dtypes=True)


@pytest.mark.upstream_differs("the flags of dtype and size are swapped, so that each is called the other")
def test_068_wrong_dtype_and_wrong_size_behind_the_engine_are_called_what_they_are(checker: Checker) -> None:
    checker.rejects("dtype mismatch|incorrect type", torch.sin, _spoiled(WrongDtype), check_grad_dtypes=True)
    checker.rejects("incorrect size", torch.sin, _spoiled(WrongSize))


def test_069_complex_tangent_of_a_real_value_and_the_reverse_are_found(checker: Checker) -> None:
    options = {"check_forward_ad": True, "check_backward_ad": False, "check_grad_dtypes": True}
    phrase = "Forward AD gradient has dtype mismatch"
    complex_tangent = identity_with(torch.Tensor.clone, jvp=lambda tangent: tangent * (1 + 1j))
    checker.rejects(phrase, complex_tangent, leaf(3), **options)
    real_tangent = identity_with(torch.real, jvp=torch.Tensor.clone, forward=lambda x: x * (1 + 0j))
    checker.rejects(phrase, real_tangent, leaf(3), **options)


def test_070_write_through_a_view_that_drops_a_gradient_is_a_mismatch(checker: Checker) -> None:
    def func(x: Tensor) -> Tensor:
        y = x.clone()
        y[0].detach().mul_(2)  # the value is doubled, and the graph does not know
        return y

    checker.rejects("Jacobian mismatch for output 0", func, leaf(2, 3))
