"""Wrong entries are found by halving, at a price that hardly grows with the size."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from gradvet.checks import forward, reverse
from gradvet.core.context import Context
from gradvet.core.entrywise import compare_forward, compare_reverse
from gradvet.core.localise import ByColumns, ByRows, locate
from gradvet.core.results import Verdict

from .planted import context, linear, numbers


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
    return context(lambda x: Product.apply(x, error), numbers((size,), size), seed=size)


def entry(size: int, column: int) -> tuple[int, int]:
    """Row and column of the entry that an error in a column sits in."""
    return column % (size // 2), column


SIZES = (10, 100, 2_000, 100_000)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("place", [0.0, 0.37, 0.99999])
def test_single_wrong_entry_is_found_in_reverse_mode(size: int, place: float) -> None:
    column = int(place * size)
    context = product(size, {column: 0.5})
    assert locate(context, ByRows(context)) == [entry(size, column)]
    assert context.problem.cost.forwards < 200
    assert context.problem.cost.pulls < 100


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("place", [0.0, 0.37, 0.99999])
def test_single_wrong_entry_is_found_in_forward_mode(size: int, place: float) -> None:
    column = int(place * size)
    context = product(size, {column: 0.5})
    assert locate(context, ByColumns(context)) == [entry(size, column)]
    # A forward-mode evaluation is a call of the function as well.
    assert context.problem.cost.forwards - context.problem.cost.pushes < 200
    assert context.problem.cost.pushes < 100
    assert context.problem.cost.pulls == 0


@pytest.mark.parametrize("size", [2_000, 100_000])
def test_comparison_of_a_large_jacobian_shows_the_wrong_entry_alone(size: int) -> None:
    column = size // 3
    for compare in (compare_reverse, compare_forward):
        context = product(size, {column: 0.5})
        found = compare(context)
        assert found.disagrees
        assert not found.complete
        (pair,) = found.pairs.values()
        assert pair.worst is not None
        assert (pair.worst.row, pair.worst.column) == entry(size, column)
        assert pair.worst.derivative - pair.worst.numerical == pytest.approx(0.5, abs=1e-6)
        assert context.problem.cost.forwards < 300
        assert context.problem.cost.pulls < 100


@pytest.mark.parametrize("mode", [ByRows, ByColumns])
def test_several_wrong_entries_are_all_found_to_be_wrong(mode: Any) -> None:
    size, errors = 20_000, {17: 0.4, 9_999: -0.6, 15_000: 0.5}
    context = product(size, errors)
    found = locate(context, mode(context))
    assert set(found) <= {entry(size, column) for column in errors}
    assert len(found) >= 2


@pytest.mark.parametrize("check", [reverse, forward])
def test_error_below_the_tolerance_everywhere_is_accepted_by_the_sweep(check: Any) -> None:
    context = product(1_400, {}, diffuse=0.5e-5)
    (finding,) = check(context)
    assert finding.verdict is Verdict.PASS
    assert finding.facts["miss"] == 0.0  # every entry was compared


@pytest.mark.parametrize("check", [reverse, forward])
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


@pytest.mark.parametrize("check", [reverse, forward])
@pytest.mark.parametrize("amount", [torch.nan, torch.inf])
def test_derivative_that_is_not_finite_is_found_without_a_sweep(check: Any, amount: float) -> None:
    context = product(100_000, {1_234: amount})
    (finding,) = check(context)
    assert finding.verdict is Verdict.FAIL
    (mismatch,) = finding.mismatches
    assert not math.isfinite(mismatch.derivative)
    assert str(mismatch.input if check is reverse else mismatch.output).endswith("[1234]")
    assert context.problem.cost.forwards < 200
    assert context.problem.cost.pulls < 100


@pytest.mark.parametrize("check", [reverse, forward])
def test_function_that_is_not_finite_is_found_without_a_sweep(check: Any) -> None:
    def function(x: Tensor) -> Tensor:
        return torch.where(torch.arange(len(x)) == 1_234, x / 0.0, x.sin())

    context = context(function, numbers((50_000,), 0))
    (finding,) = check(context)
    assert finding.verdict is Verdict.FAIL
    (mismatch,) = finding.mismatches
    assert not math.isfinite(mismatch.numerical)
    assert str(mismatch.output) == "output 0 [1234]"
    assert context.problem.cost.forwards < 300


@pytest.mark.parametrize("column", [0, 17, 39])
def test_column_with_several_wrong_entries_is_named_with_one_of_them(column: int) -> None:
    A, error = numbers((30, 40), 0), torch.zeros(30, 40, dtype=torch.float64)
    error[4, column], error[21, column] = 5.0, -3.0
    found = ByRows(context(linear(A, error), numbers((40,), 1))).alone()
    assert found in {(4, column), (21, column)}


def test_large_jacobian_that_is_wrong_is_not_pulled_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("exhaustive", "jacobians"):
        monkeypatch.setattr(f"gradvet.core.{module}.BLOCK", 200)
    A = numbers((30, 40), 0)
    found = compare_reverse(context(linear(A, 0.1 * A), numbers((40,), 1)))
    assert found.disagrees
    assert not found.complete
    assert compare_reverse(context(linear(A, 0.0 * A), numbers((40,), 1))).complete
