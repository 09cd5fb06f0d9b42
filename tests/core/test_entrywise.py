"""The classical rule: every entry within atol + rtol · |numerical|, a complex number counted as one, and all of them in
blocks of columns that fit in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from gradvet.core.entrywise import MAX_KEPT_ENTRIES, Comparison, Pair, _blocks
from gradvet.core.modes import BLOCK, FORWARD, REVERSE, Mode
from gradvet.core.vectors import Leaf, Space
from gradvet.frontends.torch.layouts.dense import Dense
from gradvet.options import Options, Tolerance

ABSOLUTE, RELATIVE = 1e-3, 1e-1


@dataclass(frozen=True, slots=True)
class Numbers:
    """Coordinates of a row of numbers."""

    count: int
    parts: int = 1

    @property
    def size(self) -> int:
        return self.count * self.parts

    def flatten(self, value: Any) -> Any:
        return value

    def unflatten(self, vector: Any) -> Any:
        return vector

    def label(self, index: int) -> str:
        return f"[{index}]"


@dataclass(frozen=True, slots=True)
class Sides:
    """As much of a problem as a comparison needs."""

    codomain: Space
    domain: Space


def space(*leaves: Numbers) -> Space:
    return Space([Leaf(f"leaf {number}", leaf, number) for number, leaf in enumerate(leaves)])


def comparison(outputs: list[Numbers], inputs: list[Numbers], mode: Mode = REVERSE) -> Comparison:
    sides: Any = Sides(space(*outputs), space(*inputs))
    return Comparison(sides, Options(seed=0, tolerance=Tolerance(ABSOLUTE, RELATIVE)), mode)


def matrix(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def only_pair(compared: Comparison) -> Pair:
    (pair,) = compared.pairs.values()
    return pair


def total_wrong(compared: Comparison) -> int:
    return sum(pair.total_wrong for pair in compared.pairs.values())


def compared(numerical: Tensor, derivative: Tensor) -> Comparison:
    """Real outputs and inputs, in one block."""
    found = comparison([Numbers(numerical.shape[0])], [Numbers(numerical.shape[1])])
    found.add((0, 0), numerical, derivative)
    return found


@pytest.mark.parametrize(
    ("numerical", "derivative", "wrong"),
    [
        (0.0, 0.00099, False),
        (0.0, 0.00101, True),
        (2.0, 2.2009, False),
        (2.0, 2.2011, True),
        (2.0, 1.7991, False),
        (2.0, 1.7989, True),
        (-2.0, -2.2009, False),
        (-2.0, 2.0, True),
    ],
)
def test_entry_is_wrong_beyond_the_tolerance(numerical: float, derivative: float, wrong: bool) -> None:
    found = compared(matrix([numerical]), matrix([derivative]))
    assert (total_wrong(found), found.disagrees) == (wrong, wrong)


def test_tolerance_is_relative_to_the_numerical_value_and_not_to_the_derivative() -> None:
    assert not compared(matrix([10.0]), matrix([9.0])).disagrees
    assert compared(matrix([9.0]), matrix([10.0])).disagrees


@pytest.mark.parametrize("odd", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("other", [1.0, torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("mode", [REVERSE, FORWARD])
@pytest.mark.parametrize("parts", [1, 2])
def test_what_is_not_finite_never_passes(odd: float, other: float, mode: Mode, parts: int) -> None:
    one, two = torch.ones(2, 4, dtype=torch.float64), torch.ones(2, 4, dtype=torch.float64)
    one[1, 2], two[1, 2] = odd, other
    for numerical, derivative in ((one, two), (two, one)):
        found = comparison([Numbers(2 // parts, parts)], [Numbers(4 // parts, parts)], mode)
        found.add((0, 0), numerical, derivative)
        pair = only_pair(found)
        assert found.disagrees
        assert pair.total_wrong == 1
        assert pair.worst is not None
        assert (pair.worst.row, pair.worst.column) == (1, 2)
        assert pair.worst.excess == torch.inf
        assert pair.largest == torch.inf


def test_modulus_of_large_complex_numbers_does_not_overflow() -> None:
    numerical = torch.full((1, 2), 1e200, dtype=torch.float64)
    for derivative, wrong in ((1.05, 0), (1.2, 1)):
        found = comparison([Numbers(1)], [Numbers(1, 2)])
        found.add((0, 0), numerical, numerical * derivative)
        assert only_pair(found).total_wrong == wrong


@pytest.mark.parametrize("mode", [REVERSE, FORWARD])
def test_complex_number_is_compared_by_its_modulus(mode: Mode) -> None:
    outputs, inputs = [Numbers(3)], [Numbers(2, 2)]
    numerical = torch.zeros(3, 4, dtype=torch.float64)
    derivative = numerical.clone()
    # 0.8e-3 in each part is within the absolute tolerance, √2 · 0.8e-3 is not.
    derivative[1, 2:] = 0.8e-3
    # 0.09 is too much for a real part of 0, but not for a number of modulus 1.
    numerical[2, 1], derivative[2, 0], derivative[2, 1] = 1.0, 0.09, 1.0
    if mode is FORWARD:
        outputs, inputs, numerical, derivative = inputs, outputs, numerical.T, derivative.T
    found = comparison(outputs, inputs, mode)
    found.add((0, 0), numerical, derivative)
    pair = only_pair(found)
    assert pair.wrong == {"": 1}
    assert pair.entries == 6
    assert pair.worst is not None
    place = (pair.worst.row, pair.worst.column)
    assert place in ({(1, 2), (1, 3)} if mode is REVERSE else {(2, 1), (3, 1)})
    assert pair.worst.difference == pytest.approx(0.8e-3 * 2**0.5)


@pytest.mark.parametrize("mode", [REVERSE, FORWARD])
def test_parts_of_the_coordinate_side_are_counted_apart(mode: Mode) -> None:
    numerical = torch.zeros(4, 6, dtype=torch.float64)
    derivative = numerical.clone()
    derivative[0, 0] = 1.0
    derivative[1, 1] = derivative[3, 4] = derivative[3, 2] = 1.0
    if mode is FORWARD:
        numerical, derivative = numerical.T, derivative.T
    found = comparison([Numbers(len(numerical) // 2, 2)], [Numbers(numerical.shape[1] // 2, 2)], mode)
    found.add((0, 0), numerical, derivative)
    assert only_pair(found).wrong == {"real": 1, "imag": 3}
    assert only_pair(found).entries == 12


def test_complex_entry_names_the_coordinate_that_differs_more() -> None:
    found = comparison([Numbers(1)], [Numbers(2, 2)])
    found.add((0, 0), matrix([0.0, 0.0, 5.0, 5.0]), matrix([0.0, 0.0, 5.1, 7.0]))
    worst = only_pair(found).worst
    assert worst is not None
    assert (worst.column, worst.derivative, worst.numerical) == (3, 7.0, 5.0)


@pytest.mark.parametrize("first", [0, 1, 2, 3])
def test_block_of_rows_may_start_in_the_middle_of_a_complex_output(first: int) -> None:
    found = comparison([Numbers(1), Numbers(2, 2)], [Numbers(3)])
    derivative = torch.zeros(1, 3, dtype=torch.float64)
    derivative[0, 2] = 1.0
    found.add((1 + first, 0), torch.zeros_like(derivative), derivative)
    pair = found.pairs[1, 0]
    assert pair.wrong == {"real": 1 - first % 2, "imag": first % 2}
    assert pair.worst is not None
    assert (pair.worst.row, pair.worst.column) == (1 + first, 2)


@pytest.mark.parametrize("first", [0, 1, 2, 3])
def test_block_of_columns_may_start_in_the_middle_of_a_complex_input(first: int) -> None:
    found = comparison([Numbers(3)], [Numbers(1), Numbers(2, 2)], FORWARD)
    derivative = torch.zeros(3, 1, dtype=torch.float64)
    derivative[2, 0] = 1.0
    found.add((0, 1 + first), torch.zeros_like(derivative), derivative)
    pair = found.pairs[0, 1]
    assert pair.wrong == {"real": 1 - first % 2, "imag": first % 2}
    assert pair.worst is not None
    assert (pair.worst.row, pair.worst.column) == (2, 1 + first)


def test_rows_of_a_block_go_to_the_outputs_they_belong_to() -> None:
    found = comparison([Numbers(2), Numbers(3), Numbers(1)], [Numbers(2), Numbers(4)])
    derivative = torch.zeros(4, 4, dtype=torch.float64)
    derivative[0, 0] = derivative[2, 1] = derivative[3, 3] = 1.0
    # Rows 1 to 4: the last of output 0 and the whole of output 1. Columns 2 to 5: the whole of input 1.
    found.add((1, 2), torch.zeros_like(derivative), derivative)
    assert {place: pair.total_wrong for place, pair in found.pairs.items()} == {(0, 1): 1, (1, 1): 2}
    assert [pair.entries for pair in found.pairs.values()] == [8, 12]
    worst = found.pairs[1, 1].worst
    assert worst is not None
    assert worst.row in (3, 4)


def test_worst_entry_is_the_one_that_exceeds_its_tolerance_most() -> None:
    # 1.0 over an allowed 0.001 is worse than 50 over an allowed 10.001.
    pair = only_pair(compared(matrix([0.0, 100.0], [0.0, 0.0]), matrix([1.0, 150.0], [0.0, 0.0005])))
    assert pair.worst is not None
    assert (pair.worst.row, pair.worst.column) == (0, 0)
    assert pair.worst.excess == pytest.approx(1000.0)
    assert pair.largest == 50.0
    assert pair.total_wrong == 2


def test_worst_entry_is_kept_over_all_blocks() -> None:
    found = comparison([Numbers(2)], [Numbers(3)])
    for column, amount in enumerate((1.0, 3.0, 2.0)):
        found.add((0, column), torch.zeros(2, 1, dtype=torch.float64), matrix([0.0], [amount]))
    pair = only_pair(found)
    assert pair.worst is not None
    assert (pair.worst.row, pair.worst.column) == (1, 1)
    assert pair.total_wrong == 3
    assert pair.matrices is None  # no block held all of it


def test_wrong_pair_of_one_block_keeps_its_matrices() -> None:
    found = comparison([Numbers(1), Numbers(2)], [Numbers(2), Numbers(3)])
    derivative = torch.zeros(3, 5, dtype=torch.float64)
    derivative[1:, 2:] = matrix([0.0, 4.0, 5.0], [1.0, 3.0, 2.0])
    found.add((0, 0), torch.zeros_like(derivative), derivative)
    assert {place: pair.total_wrong for place, pair in found.pairs.items() if pair.total_wrong} == {(1, 1): 5}
    matrices = found.pairs[1, 1].matrices
    assert matrices is not None
    assert torch.equal(matrices[1], derivative[1:, 2:])


def test_agreement_within_the_absolute_tolerance_leaves_no_pair() -> None:
    found = comparison([Numbers(2)], [Numbers(3)])
    found.add((0, 0), torch.ones(2, 3, dtype=torch.float64), torch.ones(2, 3, dtype=torch.float64))
    assert not found.disagrees
    assert not found.pairs


def test_matrices_of_large_pairs_are_not_kept() -> None:
    rows = MAX_KEPT_ENTRIES // 2 + 1
    found = comparison([Numbers(rows)], [Numbers(2)])
    block = torch.zeros(rows, 2, dtype=torch.float64)
    found.add((0, 0), block, block + 1.0)
    pair = only_pair(found)
    assert pair.total_wrong == 2 * rows
    assert pair.matrices is None


def test_no_tolerance_leaves_no_room() -> None:
    sides: Any = Sides(space(Numbers(1)), space(Numbers(1)))
    for derivative, wrong in ((0.0, 0), (1e-300, 1)):
        found = Comparison(sides, Options(seed=0, tolerance=Tolerance(0.0, 0.0)), REVERSE)
        found.add((0, 0), matrix([0.0]), matrix([derivative]))
        assert total_wrong(found) == wrong


@pytest.mark.parametrize(("explains", "pairs"), [(True, 3), (False, 1)])
def test_comparison_that_nobody_explains_ends_at_the_first_wrong_pair(explains: bool, pairs: int) -> None:
    sides: Any = Sides(space(Numbers(1)), space(Numbers(1), Numbers(1), Numbers(1)))
    found = Comparison(sides, Options(seed=0, explains=explains), REVERSE)
    found.add((0, 0), matrix([1.0, 1.0, 1.0]), matrix([2.0, 2.0, 2.0]))
    assert found.disagrees
    assert total_wrong(found) == pairs


HOME = torch.device("cpu")


def dense_space(*sizes: int) -> Space:
    return Space([Leaf("leaf", Dense(torch.Size([size]), torch.float64, HOME, HOME), 0) for size in sizes])


@pytest.mark.parametrize(
    ("rows", "width"), [(0, BLOCK), (1, BLOCK), (4, BLOCK // 4), (BLOCK // 10, 10), (BLOCK // 5, 4), (2 * BLOCK, 2)]
)
def test_block_has_as_many_columns_as_fit_in_memory_and_an_even_number_of_them(rows: int, width: int) -> None:
    first, *_, last = _blocks(dense_space(2 * width + 1), rows)
    assert first == (0, width)
    assert last == (2 * width, 2 * width + 1)


def test_block_ends_with_its_leaf() -> None:
    assert list(_blocks(dense_space(3, 0, 5), BLOCK // 4)) == [(0, 3), (3, 7), (7, 8)]
