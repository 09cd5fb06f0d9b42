"""The neighbourhood of a wrong entry, and what its figures show."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gradvet.core import localise
from gradvet.core.modes import FORWARD, REVERSE, Mode
from gradvet.core.neighbourhood import around, block, figures, study
from tests.core.contexts import context_of, point
from tests.functions import with_derivative


def spoiled(x: Tensor) -> Tensor:
    """The derivative of exp, off by a tenth in the entries 1 and 3."""
    return torch.exp(x) * torch.tensor([1.0, 1.1, 1.0, 1.1], dtype=x.dtype)


@pytest.mark.parametrize("mode", [REVERSE, FORWARD], ids=lambda mode: mode.name)
def test_other_wrong_entries_are_measured_with_an_error_bar_that_holds(mode: Mode) -> None:
    numbers = (0.5, 1.0, 1.5, 2.0)
    context = context_of(with_derivative(torch.exp, spoiled), point(*numbers))
    found = study(context, mode, localise.decide_entry(context, mode, 1, 1))
    assert (found.wrong, found.entries) == (2, 16)
    (other,) = found.others
    truth = float(torch.exp(torch.tensor(numbers[3], dtype=torch.float64)))
    assert (other.row, other.column) == (3, 3)
    assert other.derivative == pytest.approx(1.1 * truth)
    assert abs(other.numerical - truth) <= other.error < 1e-4 * truth
    assert found.block["derivative"][3][3] == pytest.approx(1.1 * truth)
    assert found.block["numerical"][3][3] == pytest.approx(truth, rel=1e-4)
    assert "1.1" in found.diagnosis


def test_entry_whose_difference_is_within_its_own_error_bar_is_not_listed() -> None:
    def nearly(x: Tensor) -> Tensor:
        return torch.exp(x) * torch.tensor([1.1, 1.0 + 1e-9], dtype=x.dtype)

    context = context_of(with_derivative(torch.exp, nearly), point(1.0, 1.0))
    assert study(context, REVERSE, localise.decide_entry(context, REVERSE, 0, 0)).others == ()


@pytest.mark.parametrize(
    ("index", "shown"),
    [
        (0, range(0, 8)),
        (3, range(0, 8)),
        (4, range(0, 8)),
        (5, range(1, 9)),
        (10, range(6, 14)),
        (299, range(292, 300)),
    ],
)
def test_window_has_the_entry_in_its_middle_where_the_ends_allow(index: int, shown: range) -> None:
    domain = context_of(torch.sin, torch.zeros(300, dtype=torch.float64)).problem.domain
    assert around(domain, index) == shown


def test_window_of_a_small_space_is_all_of_it_and_stays_within_its_leaf() -> None:
    first, second = torch.zeros(3, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    domain = context_of(lambda x, y: x.sum() + y.sum(), first, second).problem.domain
    assert around(domain, 1) == range(0, 3)
    assert around(domain, 4) == range(3, 7)


def test_figures_show_both_versions_of_the_block_around_an_entry_and_the_error_of_differences_by_step() -> None:
    function = with_derivative(lambda x: x**3, lambda x: 4.0 * x**2)
    context = context_of(function, point(1.0, 2.0, 3.0))
    for mode in (REVERSE, FORWARD):
        shown = figures(context, mode, (1, 1))
        assert shown["block"]["derivative"] == [[4.0, 0.0, 0.0], [0.0, 16.0, 0.0], [0.0, 0.0, 36.0]]
        assert [row[i] for i, row in enumerate(shown["block"]["numerical"])] == pytest.approx([3.0, 12.0, 27.0])
        steps, errors = (shown["sweep"][name][:4] for name in ("steps", "errors"))
        assert errors == pytest.approx([step**2 for step in steps], rel=1e-2)
        assert shown["sweep"]["gap"] == pytest.approx(4.0)


def test_block_that_is_too_large_to_be_seen_is_left_out() -> None:
    for side, shown in ((48, True), (60, False)):
        zeros, names = torch.zeros(side, side), [str(number) for number in range(side)]
        assert bool(block(zeros, zeros, names, names)) is shown
