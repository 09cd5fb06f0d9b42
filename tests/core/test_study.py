"""The neighbourhood of a wrong entry."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gradvet.core.localise import test_entry
from gradvet.core.modes import FORWARD, REVERSE, Mode
from gradvet.core.neighbourhood import study
from tests.core.trials import point, trial_of, written


def spoiled(x: Tensor) -> Tensor:
    """The derivative of exp, off by a tenth in the entries 1 and 3."""
    return torch.exp(x) * torch.tensor([1.0, 1.1, 1.0, 1.1], dtype=x.dtype)


@pytest.mark.parametrize("mode", [REVERSE, FORWARD], ids=lambda mode: mode.name)
def test_other_wrong_entries_are_measured_with_an_error_bar_that_holds(mode: Mode) -> None:
    numbers = (0.5, 1.0, 1.5, 2.0)
    context = trial_of(written(torch.exp, spoiled), point(*numbers))
    found = study(context, mode, test_entry(context, mode, 1, 1))
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

    context = trial_of(written(torch.exp, nearly), point(1.0, 1.0))
    assert study(context, REVERSE, test_entry(context, REVERSE, 0, 0)).others == ()
