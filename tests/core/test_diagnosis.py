"""Each sentence of the diagnosis, with a matrix that earns it and with one that comes close and does not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gradvet.core.diagnosis import diagnose

from .wrong_jacobians import numbers

TOLERANCE = 1e-5
WIDE, SQUARE = numbers((3, 5), 0), numbers((4, 4), 1)
"""Jacobians of outputs × inputs without any structure."""


def of(numerical: Tensor, derivative: Tensor, parts: tuple[int, int] = (1, 1)) -> str:
    return diagnose(numerical, derivative, TOLERANCE, parts=parts)


def changed(J: Tensor, *places: tuple[int, int]) -> Tensor:
    """The Jacobian with errors of different sizes in the places given."""
    found = J.clone()
    for number, (row, column) in enumerate(places):
        found[row, column] += 1.0 + number**2 / 3.0
    return found


def test_agreement_has_no_diagnosis() -> None:
    assert of(WIDE, WIDE) == ""
    assert of(WIDE, WIDE + TOLERANCE / 2) == ""


def test_derivative_that_is_not_finite_beside_a_finite_slope() -> None:
    for odd in (torch.nan, torch.inf):
        derivative = WIDE.clone()
        derivative[1, 2] = odd
        assert "The derivative is not finite where the function has a finite slope" in of(WIDE, derivative)


def test_slope_that_is_not_finite_beside_a_finite_derivative() -> None:
    numerical = WIDE.clone()
    numerical[1, 2] = torch.inf
    assert "The function itself is not finite" in of(numerical, WIDE)


def test_neither_slope_nor_derivative_finite() -> None:
    odd = WIDE.clone()
    odd[1, 2] = torch.nan
    assert "Both the derivative and the function's differences are not finite" in of(odd, odd)


def test_derivative_that_is_zero_everywhere() -> None:
    sentence = "zero everywhere although the function varies"
    assert sentence in of(WIDE, torch.zeros_like(WIDE))
    almost = torch.zeros_like(WIDE)
    almost[0, 0] = WIDE[0, 0]
    assert sentence not in of(WIDE, almost)


def test_derivative_of_an_input_that_does_nothing() -> None:
    sentence = "The outputs do not change when this input does"
    assert sentence in of(torch.zeros_like(WIDE), WIDE)
    almost = torch.zeros_like(WIDE)
    almost[0, 0] = 1.0
    assert sentence not in of(almost, WIDE)


def test_wrong_sign() -> None:
    assert "The sign is wrong everywhere" in of(WIDE, -WIDE)
    row = WIDE.clone()
    row[1] *= -1.0
    assert "The sign is wrong in all the wrong entries" in of(WIDE, row)
    assert "sign" not in of(WIDE, -0.9 * WIDE)


@pytest.mark.parametrize("ratio", [2.0, 0.5, 1.5, -2.0, 1.01])
def test_constant_factor(ratio: float) -> None:
    sentence = of(WIDE, ratio * WIDE)
    assert f"The ratio is {ratio:.6g} everywhere: look for a wrong constant factor." in sentence


def test_factor_that_is_not_quite_the_same_is_said_to_be_about_that() -> None:
    nearly = torch.linspace(1.496, 1.4966, WIDE.numel(), dtype=WIDE.dtype).reshape(WIDE.shape)
    assert "The ratio is about 1.5 everywhere" in of(WIDE, nearly * WIDE)


def test_constant_factor_of_some_entries() -> None:
    derivative = WIDE.clone()
    derivative[:, 3] *= 1.5
    assert "The ratio is 1.5 in all the wrong entries: look for a wrong constant factor." in of(WIDE, derivative)
    derivative[0, 3] *= 1.1
    assert "ratio" not in of(WIDE, derivative)


def test_factor_of_entries_too_small_to_be_wrong_is_still_everywhere() -> None:
    numerical = WIDE.clone()
    numerical[0, 0] = TOLERANCE / 10
    assert "The ratio is 1.5 everywhere" in of(numerical, 1.5 * numerical)


@pytest.mark.parametrize(("ratio", "side", "cause"), [
    (3.0, "output", "a missing mean or a sum too many"),
    (5.0, "input", "a missing mean or a sum too many"),
    (1 / 3, "output", "a missing sum or a mean too many"),
    (1 / 5, "input", "a missing sum or a mean too many"),
])  # fmt: skip
def test_factor_that_is_a_number_of_elements(ratio: float, side: str, cause: str) -> None:
    sentence = of(WIDE, ratio * WIDE)
    assert f"as there are {round(max(ratio, 1 / ratio))} {side} elements, {cause}" in sentence
    assert "elements" not in of(WIDE, 1.02 * ratio * WIDE)


def test_wrong_entries_that_are_zero() -> None:
    sentence = "The wrong entries are zero"
    derivative = WIDE.clone()
    derivative[1, :3] = 0.0
    assert sentence in of(WIDE, derivative)
    derivative[1, :3] = TOLERANCE / 2
    assert sentence in of(WIDE, derivative)
    derivative[1, 0] = 0.3
    assert sentence not in of(WIDE, derivative)


def test_missing_off_diagonal_terms() -> None:
    sentence = "its off-diagonal terms are missing"
    assert sentence in of(SQUARE, SQUARE.diag().diag())
    assert sentence in of(SQUARE, (2.0 * SQUARE.diag()).diag())
    almost = SQUARE.diag().diag()
    almost[0, 1] = SQUARE[0, 1]
    assert sentence not in of(SQUARE, almost)
    elementwise = SQUARE.diag().diag()
    assert sentence not in of(elementwise, 2.0 * elementwise)
    assert sentence not in of(WIDE, torch.eye(3, 5, dtype=torch.float64))


def test_coupling_that_the_function_has_not() -> None:
    sentence = "The derivative couples elements that the function treats one by one"
    elementwise = SQUARE.diag().diag()
    assert sentence in of(elementwise, SQUARE)
    assert sentence not in of(SQUARE, 2.0 * SQUARE)
    assert sentence not in of(elementwise, elementwise.roll(1, 0))


@pytest.mark.parametrize("amount", [1.0, -1.0])
def test_missing_or_extra_identity(amount: float) -> None:
    identity = torch.eye(4, dtype=torch.float64)
    sentence = f"The diagonal, and nothing else, is off by {amount:.6g}: look for an identity"
    assert sentence in of(SQUARE, SQUARE + amount * identity)
    assert sentence not in of(SQUARE, SQUARE + amount * identity * SQUARE)
    assert sentence not in of(SQUARE, SQUARE + amount)


def test_same_amount_everywhere() -> None:
    sentence = "Every entry is off by the same amount, 0.25"
    assert of(WIDE, WIDE + 0.25) == f"{sentence}: look for a constant, mean or sum too few or too many."
    almost = WIDE + 0.25
    almost[0, 0] = WIDE[0, 0]
    assert sentence not in of(WIDE, almost)


def test_cotangent_that_is_ignored() -> None:
    sentence = "look for a grad_output that is ignored or summed up"
    assert sentence in of(WIDE, WIDE.sum(0).expand(3, 5))
    almost = WIDE.sum(0).repeat(3, 1)
    almost[1, 1] += 1.0
    assert sentence not in of(WIDE, almost)
    # Rows that are alike in the function as well have another cause.
    alike = WIDE[:1].expand(3, 5)
    assert sentence not in of(alike, 2.0 * alike)


def test_derivative_that_is_the_same_for_every_input() -> None:
    sentence = "The derivative is the same for every input element"
    assert sentence in of(WIDE, WIDE.mean(1, keepdim=True).expand(3, 5))
    alike = WIDE[:, :1].expand(3, 5)
    assert sentence not in of(alike, 2.0 * alike)


def test_transpose() -> None:
    sentence = "the transpose of the function's Jacobian"
    assert sentence in of(SQUARE, SQUARE.T)
    assert sentence not in of(SQUARE, changed(SQUARE.T, (0, 1)))
    assert sentence not in of(WIDE, WIDE.flip(0))


@pytest.mark.parametrize(("axis", "side"), [(0, "output"), (1, "input")])
def test_order_of_the_elements(axis: int, side: str) -> None:
    J = numbers((6, 7), 2)
    size = J.shape[axis]
    assert f"shifted by 1 along the {side} elements" in of(J, J.roll(1, axis))
    assert f"shifted by 1 along the {side} elements" in of(J, J.roll(-1, axis))
    assert f"shifted by 2 along the {side} elements" in of(J, J.roll(2, axis))
    assert f"has the {side} elements in reverse order" in of(J, J.flip(axis))
    exchanged = list(range(size))
    exchanged[1], exchanged[4] = exchanged[4], exchanged[1]
    assert f"Two {side} elements are exchanged" in of(J, J.index_select(axis, torch.tensor(exchanged)))
    shuffled = torch.tensor([2, 0, 1, 4, 3, 5, 6][:size])
    assert f"has the {side} elements in another order" in of(J, J.index_select(axis, shuffled))


def test_order_is_not_blamed_for_values_that_are_nowhere_in_the_jacobian() -> None:
    J = numbers((6, 7), 2)
    for words in ("shifted", "order:", "exchanged"):
        assert words not in of(J, changed(J.roll(1, 0), (2, 2)))


def test_elementwise_derivative_that_is_shifted() -> None:
    J = numbers((5,), 3).diag()
    assert "shifted by 1" in of(J, J.roll(1, 0))


@pytest.mark.parametrize("parts", [(2, 2), (1, 2), (2, 1)])
def test_missing_conjugate(parts: tuple[int, int]) -> None:
    sentence = "the complex conjugate of what it should be"
    J = numbers((4, 6), 4)
    rows, columns = (torch.arange(size) % number for size, number in zip(J.shape, parts, strict=True))
    mixed = (rows[:, None] + columns) % 2 == 1
    conjugated = torch.where(mixed, -J, J)
    assert sentence in of(J, conjugated, parts)
    assert sentence not in of(J, changed(conjugated, (0, 0)), parts)
    assert sentence not in of(J, -J, parts)
    assert sentence not in of(J, conjugated, (1, 1))


def test_complex_elements_are_not_called_coupled() -> None:
    block = torch.block_diag(*[torch.tensor([[2.0, -1.0], [1.0, 2.0]])] * 3).double()
    assert "off-diagonal" not in of(block, block.diag().diag(), (2, 2))


def test_single_entry() -> None:
    sentence = "A single entry is wrong"
    assert sentence in of(WIDE, changed(WIDE, (1, 2)))
    assert sentence not in of(WIDE, changed(WIDE, (1, 2), (2, 4)))
    assert sentence not in of(WIDE[:1, :1], WIDE[:1, :1] + 1.0)


def test_one_entry_beside_smaller_errors_is_not_called_the_only_one() -> None:
    """The entries that count as wrong are those of at least a sixteenth of the largest error."""
    spoilt = changed(WIDE, (1, 2))
    assert "A single entry is wrong" in diagnose(WIDE, spoilt, 0.01)
    spoilt[0, 0] += 0.005
    assert "One entry has by far the largest error" in diagnose(WIDE, spoilt, 0.01)


def test_one_output_or_one_input() -> None:
    assert "Only one output element is affected" in of(WIDE, changed(WIDE, *((1, column) for column in range(5))))
    assert "Only one input element is affected" in of(WIDE, changed(WIDE, *((row, 1) for row in range(3))))
    assert "Only one" not in of(WIDE, changed(WIDE, (0, 0), (1, 1)))
    assert "Only one" not in of(WIDE[:1], changed(WIDE[:1], *((0, column) for column in range(5))))


def test_larger_part_is_no_tail() -> None:
    diagonal = torch.diag(torch.tensor([0.4, 0.9, -0.1], dtype=torch.float64))
    assert "tail" not in of(diagonal, changed(diagonal, (1, 1), (2, 2)))


def test_tail_and_start() -> None:
    J = numbers((6, 7), 5)
    assert "Only the last 2 input elements" in of(J, changed(J, (0, 5), (3, 6), (5, 5)))
    assert "Only the first 2 input elements" in of(J, changed(J, (0, 0), (3, 1), (5, 0)))
    assert "Only the last 3 output elements" in of(J, changed(J, (3, 0), (4, 6), (5, 1)))
    assert "Only the first 2 output elements" in of(J, changed(J, (0, 0), (1, 6), (0, 3)))


def test_nothing_in_particular() -> None:
    sentence = "no common factor"
    assert sentence in of(SQUARE, SQUARE + numbers((4, 4), 6))
    assert sentence in of(WIDE, WIDE + numbers((3, 5), 7))
    assert sentence not in of(WIDE, 2.0 * WIDE)


def test_scalar_jacobian_has_a_ratio() -> None:
    one = torch.ones(1, 1, dtype=torch.float64)
    assert "The ratio is 1.5 everywhere" in of(one, 1.5 * one)
    assert "The sign is wrong" in of(one, -one)


def test_one_of_two_elements_is_named_as_the_only_one() -> None:
    J = numbers((2, 5), 2)
    assert "Only one output element is affected" in of(J, changed(J, (1, 0), (1, 3), (1, 4)))
    assert "Only one input element is affected" in of(J.T, changed(J.T, (0, 1), (3, 1), (4, 1)))


def test_ratios_that_differ_a_little_are_given_as_a_range() -> None:
    ratios = torch.linspace(1.484, 1.5, WIDE.numel(), dtype=torch.float64).reshape(WIDE.shape)
    assert "The ratios of the wrong entries are between 1.484 and 1.5: look for a wrong factor" in of(
        WIDE, ratios * WIDE
    )
    ratios[0, 0] = 2.0
    assert "no common factor" in of(WIDE, ratios * WIDE)
    assert "are between 1.485 and 2:" in of(WIDE, ratios * WIDE)


def test_factor_holds_for_small_entries_too() -> None:
    numerical = torch.tensor([[100.0, 0.1]], dtype=torch.float64)
    derivative = torch.tensor([[150.0, 0.11]], dtype=torch.float64)
    assert "1.5" not in of(numerical, derivative).partition("ratios")[0]


def test_rows_without_entries_are_not_called_right() -> None:
    blocks = torch.zeros(6, 4, dtype=torch.float64)
    blocks[:3] = numbers((3, 4), 2)
    derivative = blocks.clone()
    derivative[:3] += numbers((3, 4), 3)
    assert "Only the first" not in of(blocks, derivative)
    blocks[3:] = derivative[3:] = numbers((3, 4), 4)
    assert "Only the first 3 output elements are affected" in of(blocks, derivative)


ELEMENTS = {"output": (6,), "input": (2, 4)}


def test_error_that_is_the_same_along_a_dimension_of_the_input() -> None:
    J, term = numbers((6, 8), 2), numbers((6, 2), 3).repeat_interleave(4, 1)
    found = diagnose(J, J + term, TOLERANCE, lengths=ELEMENTS)
    assert found.startswith("The error is the same for all elements along dimension 1 of the input: look for a mean or")
    term[2, 5] *= 1.1
    assert "The error is the same" not in diagnose(J, J + term, TOLERANCE, lengths=ELEMENTS)


def test_error_that_is_the_same_along_a_dimension_of_the_output() -> None:
    J, term = numbers((6, 8), 2), numbers((8,), 3).expand(6, 8)
    found = diagnose(J, J + term, TOLERANCE, lengths=ELEMENTS)
    assert "along dimension 0 of the output: look for a mean or a sum of grad_output" in found


def test_error_along_a_dimension_is_found_in_a_window_that_begins_inside_of_it() -> None:
    J, term = numbers((6, 7), 2), numbers((6, 2), 3).repeat_interleave(4, 1)[:, 1:]
    words = "along dimension 1 of the input"
    assert words in diagnose(J, J + term, TOLERANCE, lengths=ELEMENTS, corner=(0, 1))
    assert words not in diagnose(J, J + term, TOLERANCE, lengths=ELEMENTS)


def test_slopes_that_are_the_same_along_a_dimension_have_no_term_missing() -> None:
    J, term = (numbers((6, 2), seed).repeat_interleave(4, 1) for seed in (2, 3))
    assert "The error is the same" not in diagnose(J, J + term, TOLERANCE, lengths=ELEMENTS)
