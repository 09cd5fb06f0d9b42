"""Wrong entries are found at a price that hardly grows with the size, and decided by step sweeps of their own."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from gradvet.checks.drop_in import drop_in_forward, drop_in_reverse
from gradvet.core import localise
from gradvet.core.context import Context
from gradvet.core.entrywise import compare
from gradvet.core.localise import (
    find_wrong_entry,
    locate,
    slope_of_column,
)
from gradvet.core.modes import FORWARD, REVERSE, Mode
from gradvet.core.results import Verdict
from tests.core.contexts import context_of, point
from tests.functions import with_derivative

from .wrong_jacobians import context_at, linear, numbers


class Product(torch.autograd.Function):
    """y_i = x_i · x_{i+m} for m = n/2, whose derivative by the entries given is off by the amounts given."""

    @staticmethod
    def forward(x: Tensor, error: Tensor) -> Tensor:
        first, second = x.chunk(2)
        return first * second

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None]:
        x, error = ctx.saved_tensors
        first, second = x.chunk(2)
        return torch.cat([second, first]) * cotangent.repeat(2) + error * cotangent.repeat(2), None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: None) -> Tensor:
        x, error = ctx.saved_tensors
        first, second = x.chunk(2)
        terms = (torch.cat([second, first]) + error) * tangent
        return terms[: len(first)] + terms[len(first) :]


def product(size: int, errors: dict[int, float], diffuse: float = 0.0) -> Context:
    """The product of the halves of `size` numbers; `errors` by column, `diffuse` an error in all of them."""
    error = torch.full((size,), diffuse, dtype=torch.float64)
    for column, amount in errors.items():
        error[column] += amount
    return context_at(lambda x: Product.apply(x, error), numbers((size,), size), seed=size)


def entry_of(size: int, column: int) -> tuple[int, int]:
    """Row and column of the entry that an error in a column sits in."""
    return column % (size // 2), column


SIZES = (10, 100, 2_000, 100_000)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("place", [0.0, 0.37, 0.99999])
def test_single_wrong_entry_is_found_in_reverse_mode(size: int, place: float) -> None:
    column = int(place * size)
    context = product(size, {column: 0.5})
    assert locate(context.projections, REVERSE) == [entry_of(size, column)]
    assert context.problem.cost.forwards < 200
    assert context.problem.cost.vjps < 100


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("place", [0.0, 0.37, 0.99999])
def test_single_wrong_entry_is_found_in_forward_mode(size: int, place: float) -> None:
    column = int(place * size)
    context = product(size, {column: 0.5})
    assert locate(context.projections, FORWARD) == [entry_of(size, column)]
    # A forward-mode evaluation is a call of the function as well.
    assert context.problem.cost.forwards - context.problem.cost.jvps < 200
    assert context.problem.cost.jvps < 100
    assert context.problem.cost.vjps == 0


@pytest.mark.parametrize("size", [2_000, 100_000])
def test_comparison_of_a_large_jacobian_shows_the_wrong_entry_alone(size: int) -> None:
    column = size // 3
    for mode in (REVERSE, FORWARD):
        context = product(size, {column: 0.5})
        found = compare(context.projections, mode)
        assert found.disagrees
        assert not found.complete
        (pair,) = found.pairs.values()
        assert pair.worst is not None
        assert (pair.worst.row, pair.worst.column) == entry_of(size, column)
        assert pair.worst.derivative - pair.worst.numerical == pytest.approx(0.5, abs=1e-6)
        assert context.problem.cost.forwards < 300
        assert context.problem.cost.vjps < 100


@pytest.mark.parametrize("mode", [REVERSE, FORWARD])
def test_several_wrong_entries_are_all_found_to_be_wrong(mode: Mode) -> None:
    size, errors = 20_000, {17: 0.4, 9_999: -0.6, 15_000: 0.5}
    context = product(size, errors)
    found = locate(context.projections, mode)
    assert set(found) <= {entry_of(size, column) for column in errors}
    assert len(found) >= 2


@pytest.mark.parametrize("check", [drop_in_reverse, drop_in_forward])
def test_error_below_the_tolerance_everywhere_is_accepted_by_the_sweep(check: Any) -> None:
    context = product(1_400, {}, diffuse=0.5e-5)
    (finding,) = check(context)
    assert finding.verdict is Verdict.PASS
    assert finding.facts["miss"] == 0.0  # every entry was compared


@pytest.mark.parametrize("check", [drop_in_reverse, drop_in_forward])
def test_entry_just_above_the_tolerance_is_found_among_errors_below_it(check: Any) -> None:
    size = 1_400
    for column in (3, 700, 1_399):
        x = numbers((size,), size)
        slope = abs(float(x[(column + size // 2) % size]))
        context = product(size, {column: 0.1e-5 + 1.05e-3 * slope}, diffuse=0.95e-5)
        (finding,) = check(context)
        assert finding.verdict is Verdict.FAIL
        (mismatch,) = finding.mismatches
        assert str(mismatch.input) == f"input 0 [{column}]"


@pytest.mark.parametrize("check", [drop_in_reverse, drop_in_forward])
@pytest.mark.parametrize("amount", [torch.nan, torch.inf])
def test_derivative_that_is_not_finite_is_found_without_a_sweep(check: Any, amount: float) -> None:
    context = product(10_000, {1_234: amount})
    (finding,) = check(context)
    assert finding.verdict is Verdict.FAIL
    (mismatch,) = finding.mismatches
    assert not math.isfinite(mismatch.derivative)
    assert str(mismatch.input if check is drop_in_reverse else mismatch.output).endswith("[1234]")
    assert context.problem.cost.forwards < 200
    assert context.problem.cost.vjps < 100


@pytest.mark.parametrize("check", [drop_in_reverse, drop_in_forward])
def test_function_that_is_not_finite_is_found_without_a_sweep(check: Any) -> None:
    def function(x: Tensor) -> Tensor:
        return torch.where(torch.arange(len(x)) == 1_234, x / 0.0, x.sin())

    context = context_at(function, numbers((5_000,), 0))
    (finding,) = check(context)
    assert finding.verdict is Verdict.FAIL
    (mismatch,) = finding.mismatches
    assert not math.isfinite(mismatch.numerical)
    assert str(mismatch.output) == "output 0 [1234]"
    assert context.problem.cost.forwards < 300


def test_large_jacobian_that_is_wrong_is_not_computed_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("entrywise", "modes"):
        monkeypatch.setattr(f"gradvet.core.{module}.BLOCK", 200)
    A = numbers((30, 40), 0)
    found = compare(context_at(linear(A, 0.1 * A), numbers((40,), 1)).projections, REVERSE)
    assert found.disagrees
    assert not found.complete
    right = context_at(linear(A, 0.0 * A), numbers((40,), 1))
    assert compare(right.projections, REVERSE).complete


MODES = pytest.mark.parametrize("mode", [REVERSE, FORWARD], ids=lambda mode: mode.name)


@MODES
@pytest.mark.parametrize(
    ("frequency", "numbers"),
    [(1e11, (1e-12, 100.0, 100.0)), (1e5, (1e-6, 100.0, 100.0)), (1.0, (1e5, 1.0, 1.0)), (1e4, (2.0, 1.0, 1.0))],
)
def test_right_entry_passes_on_whatever_scale_the_function_oscillates(
    mode: Mode, frequency: float, numbers: tuple[float, ...]
) -> None:
    context = context_of(lambda x: torch.sin(frequency * x), point(*numbers))
    assert localise.decide_entry(context, mode, 0, 0).verdict is Verdict.PASS


@MODES
@pytest.mark.parametrize("numbers", [(0.5, 1.0, 1.0), (1e-6, 100.0, 100.0), (1e5, 1.0, 1.0)])
def test_wrong_entry_fails_with_both_numbers(mode: Mode, numbers: tuple[float, ...]) -> None:
    context = context_of(with_derivative(lambda x: 3.0 * x, lambda x: torch.full_like(x, 3.3)), point(*numbers))
    entry = localise.decide_entry(context, mode, 0, 0)
    assert entry.verdict is Verdict.FAIL
    assert (entry.derivative, entry.numerical) == (pytest.approx(3.3), pytest.approx(3.0))
    assert (entry.row, entry.column) == (0, 0)
    assert 0.0 < entry.error < 1e-6


@MODES
@pytest.mark.parametrize("place", [0, 3, 6])
def test_entry_that_makes_a_line_wrong_is_found(mode: Mode, place: int) -> None:
    def spoiled(x: Tensor) -> Tensor:
        factors = torch.ones_like(x)
        factors[place] = 1.01
        return torch.cos(x) * factors

    context = context_of(with_derivative(torch.sin, spoiled), torch.linspace(0.1, 1.3, 7, dtype=torch.float64))
    entry = find_wrong_entry(context, mode, context.first.u, context.cotangents[0].v)
    assert entry is not None
    assert (entry.row, entry.column, entry.verdict) == (place, place, Verdict.FAIL)


@MODES
@pytest.mark.parametrize(("first", "last", "row"), [(0.3, -0.2, 0), (-0.2, 0.3, 3), (0.3, 0.2, 0), (0.2, 0.3, 3)])
def test_row_with_the_larger_of_two_errors_is_found(mode: Mode, first: float, last: float, row: int) -> None:
    def spoiled(x: Tensor) -> Tensor:
        return 2.0 + torch.tensor([first, 0.0, 0.0, last], dtype=x.dtype)

    context = context_of(with_derivative(lambda x: 2.0 * x, spoiled), point(1.0, 1.0, 1.0, 1.0))
    ones = torch.ones(4, dtype=torch.float64)
    entry = find_wrong_entry(context, mode, ones, ones)
    assert entry is not None
    assert (entry.row, entry.column) == (row, row)


def test_slope_of_a_column_is_its_largest_and_none_where_it_is_not_finite() -> None:
    def outputs(x: Tensor) -> Tensor:
        return torch.stack([2.0 * x[0], -5.0 * x[0], 3.0 * x[1], x[1].abs().sqrt()])

    context = context_of(outputs, point(1.0, 0.0))
    steepest = slope_of_column(context, 0)
    assert steepest is not None
    assert steepest.value == pytest.approx(-5.0)
    assert slope_of_column(context, 1) is None
    elsewhere = slope_of_column(context_of(outputs, point(1e-3, 0.0)), 0)
    assert elsewhere is not None
    assert elsewhere.value == pytest.approx(-5.0)
