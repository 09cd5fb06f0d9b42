"""Single entries, judged by ladders of their own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gradvet.core.localise import find_wrong_entry, slope_of_column, test_entry
from gradvet.core.modes import FORWARD, REVERSE, Mode
from gradvet.core.results import Verdict
from tests.core.trials import point, trial_of, written

MODES = pytest.mark.parametrize("mode", [REVERSE, FORWARD], ids=lambda mode: mode.name)


@MODES
@pytest.mark.parametrize(
    ("frequency", "numbers"),
    [(1e11, (1e-12, 100.0, 100.0)), (1e5, (1e-6, 100.0, 100.0)), (1.0, (1e5, 1.0, 1.0)), (1e4, (2.0, 1.0, 1.0))],
)
def test_right_entry_passes_on_whatever_scale_the_function_oscillates(
    mode: Mode, frequency: float, numbers: tuple[float, ...]
) -> None:
    context = trial_of(lambda x: torch.sin(frequency * x), point(*numbers))
    assert test_entry(context, mode, 0, 0).verdict is Verdict.PASS


@MODES
@pytest.mark.parametrize("numbers", [(0.5, 1.0, 1.0), (1e-6, 100.0, 100.0), (1e5, 1.0, 1.0)])
def test_wrong_entry_fails_with_both_numbers(mode: Mode, numbers: tuple[float, ...]) -> None:
    context = trial_of(written(lambda x: 3.0 * x, lambda x: torch.full_like(x, 3.3)), point(*numbers))
    entry = test_entry(context, mode, 0, 0)
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

    context = trial_of(written(torch.sin, spoiled), torch.linspace(0.1, 1.3, 7, dtype=torch.float64))
    entry = find_wrong_entry(context, mode, context.first.u, context.cotangents[0].v)
    assert entry is not None
    assert (entry.row, entry.column, entry.verdict) == (place, place, Verdict.FAIL)


@MODES
@pytest.mark.parametrize(("first", "last", "row"), [(0.3, -0.2, 0), (-0.2, 0.3, 3), (0.3, 0.2, 0), (0.2, 0.3, 3)])
def test_row_with_the_larger_of_two_errors_is_found(mode: Mode, first: float, last: float, row: int) -> None:
    def spoiled(x: Tensor) -> Tensor:
        return 2.0 + torch.tensor([first, 0.0, 0.0, last], dtype=x.dtype)

    context = trial_of(written(lambda x: 2.0 * x, spoiled), point(1.0, 1.0, 1.0, 1.0))
    ones = torch.ones(4, dtype=torch.float64)
    entry = find_wrong_entry(context, mode, ones, ones)
    assert entry is not None
    assert (entry.row, entry.column) == (row, row)


def test_slope_of_a_column_is_its_largest_and_none_where_it_is_not_finite() -> None:
    def outputs(x: Tensor) -> Tensor:
        return torch.stack([2.0 * x[0], -5.0 * x[0], 3.0 * x[1], x[1].abs().sqrt()])

    context = trial_of(outputs, point(1.0, 0.0))
    steepest = slope_of_column(context, 0)
    assert steepest is not None
    assert steepest.value == pytest.approx(-5.0)
    assert slope_of_column(context, 1) is None
