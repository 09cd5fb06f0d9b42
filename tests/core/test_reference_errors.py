"""Errors of a formula are the same at other inputs, errors of rounding are not."""

from __future__ import annotations

import torch
from torch import Tensor

from gradvet.core.reference_errors import Format, an_entry_persists, errors_persist, steady_error

BFLOAT16 = Format((40,), 2.0**-7, 2.0**-133, 3e38)
TRUTHS = 100.0 + torch.randn(9, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def rounding(rows: int, seed: int) -> Tensor:
    return torch.randn(rows, 40, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_rounding_errors_of_other_grad_outputs_do_not_persist() -> None:
    assert not any(an_entry_persists(rounding(1, seed)[0], rounding(9, 100 + seed), TRUTHS) for seed in range(20))


def test_error_of_one_entry_among_rounding_errors_persists() -> None:
    wrong = torch.zeros(40, dtype=torch.float64)
    wrong[7] = 0.04
    for seed in range(20):
        here, errors = rounding(1, seed)[0] + wrong * TRUTHS[0], rounding(9, 100 + seed) + wrong * TRUTHS
        assert an_entry_persists(here, errors, TRUTHS)


def test_error_that_is_not_finite_or_stands_alone_persists() -> None:
    alone, nowhere = rounding(1, 0)[0] / 100.0, rounding(9, 1) / 100.0
    alone[3] = 100.0
    assert an_entry_persists(alone, nowhere, TRUTHS)
    alone[3] = torch.nan
    assert an_entry_persists(alone, nowhere, TRUTHS)


def test_errors_everywhere_persist_if_they_are_the_same_at_another_point() -> None:
    steady = 0.03 * TRUTHS[0]
    assert errors_persist(steady, 1.1 * steady, TRUTHS[0], BFLOAT16)
    assert not errors_persist(steady, steady * torch.sign(rounding(1, 2)[0]), TRUTHS[0], BFLOAT16)


def varied(rows: int, seed: int) -> Tensor:
    return torch.randn(9, rows, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_factor_is_steady_although_plain_torch_loses_more() -> None:
    for seed in range(20):
        truths, plain, own = varied(5, seed), varied(5, 100 + seed) / 20.0, varied(5, 200 + seed) / 1000.0
        found = steady_error(0.03 * truths + own, plain, truths, BFLOAT16)
        assert found is not None
        assert found[0].all()
        assert abs(found[1] - 1.03) < 0.005
        assert steady_error(own, plain, truths, BFLOAT16) is None


def test_lost_row_is_steady_and_rounding_is_not() -> None:
    for seed in range(20):
        truths, plain, own = varied(5, seed), varied(5, 100 + seed) / 10.0, varied(5, 200 + seed) / 10.0
        lost = own.clone()
        lost[:, 2] = -truths[:, 2]
        found = steady_error(lost, plain, truths, BFLOAT16)
        assert found is not None
        assert found[1] == 0.0
        assert not found[0][[0, 1, 3, 4]].any()
        assert steady_error(own, plain, truths, BFLOAT16) is None


def test_error_that_plain_torch_has_too_is_not_steady() -> None:
    truths = varied(5, 0)
    assert steady_error(-0.5 * truths, -0.4 * truths, truths, BFLOAT16) is None


def test_error_at_few_points_is_not_steady() -> None:
    """As at a tie that rounding makes now and then: elsewhere the entry is zero."""
    truths = varied(5, 0)
    truths[3:, 1, 1] = 0.0
    errors = torch.zeros_like(truths)
    errors[:, 1, 1] = -truths[:, 1, 1]
    assert steady_error(errors, torch.zeros_like(truths), truths, BFLOAT16) is None
