"""The neighbourhood of a wrong entry, and what its figures show."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gradvet.core import localise
from gradvet.core.finite_differences import sweep_at_entry
from gradvet.core.modes import FORWARD, REVERSE, Mode
from gradvet.core.neighbourhood import around, block, computed_block, study
from tests.core.contexts import Elementwise, context_of, point
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
    [(0, range(0, 6)), (2, range(0, 6)), (3, range(0, 6)), (4, range(1, 7)), (10, range(7, 13)), (19, range(14, 20))],
)
def test_window_has_the_entry_in_its_middle_where_the_ends_allow(index: int, shown: range) -> None:
    domain = context_of(torch.sin, torch.zeros(20, dtype=torch.float64)).problem.domain
    assert around(domain, index, 6) == shown


def test_window_of_a_small_space_is_all_of_it_and_stays_within_its_leaf() -> None:
    first, second = torch.zeros(3, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    domain = context_of(lambda x, y: x.sum() + y.sum(), first, second).problem.domain
    assert around(domain, 1, 6) == range(0, 3)
    assert around(domain, 4, 6) == range(3, 7)


def test_computed_block_shows_both_versions_of_the_block_around_an_entry() -> None:
    function = with_derivative(lambda x: x**2, lambda x: 3.0 * x)
    problem = context_of(function, point(1.0, 2.0, 3.0)).problem
    for mode in (REVERSE, FORWARD):
        block = computed_block(problem, mode, (1, 1), 1e-6)
        assert block["derivative"] == [[3.0, 0.0, 0.0], [0.0, 6.0, 0.0], [0.0, 0.0, 9.0]]
        assert [row[i] for i, row in enumerate(block["numerical"])] == pytest.approx([2.0, 4.0, 6.0])


def test_sweep_of_a_cubic_has_the_error_of_its_truncation_at_wide_steps() -> None:
    problem = context_of(lambda x: x**3, point(1.0)).problem
    shown = sweep_at_entry(problem, (0, 0), 1e-3, 0.25)
    assert (shown["chosen"], shown["gap"]) == (1e-3, 0.25)
    assert shown["steps"] == pytest.approx([1e-3 * 4.0**power for power in range(-8, 9)])
    assert shown["errors"][8:] == pytest.approx([step**2 for step in shown["steps"][8:]], rel=1e-3)
    assert shown["floor"] == pytest.approx([2.0**-52 * (1 + 1e-3) ** 3 / step for step in shown["steps"]])


def test_sweep_ends_where_the_function_raises_and_says_nothing_if_that_is_at_once() -> None:
    def within(reach: float) -> Elementwise:
        def function(x: torch.Tensor) -> torch.Tensor:
            if float((x.detach() - 1.0).abs()) > reach:
                raise ValueError("too far")
            return x**2

        return function

    near, far = (context_of(within(reach), point(1.0)).problem for reach in (1e-6, 1.0))
    assert sweep_at_entry(near, (0, 0), 1e-3, 0.0)["steps"] == pytest.approx(
        [1e-3 * 4.0**-power for power in (8, 7, 6, 5)]
    )
    assert max(sweep_at_entry(far, (0, 0), 1e-3, 0.0)["steps"]) == pytest.approx(1e-3 * 4.0**4)
    nearest = context_of(within(1e-3 * 4.0**-7.5), point(1.0)).problem
    assert sweep_at_entry(nearest, (0, 0), 1e-3, 0.0) == {}


def test_block_that_is_too_large_to_be_seen_is_left_out() -> None:
    for side, shown in ((48, True), (60, False)):
        zeros, names = torch.zeros(side, side), [str(number) for number in range(side)]
        assert bool(block(zeros, zeros, names, names)) is shown
