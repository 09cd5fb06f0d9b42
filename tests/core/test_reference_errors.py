"""Errors of a formula are the same at other inputs, errors of rounding are not."""

from __future__ import annotations

import torch
from torch import Tensor

from gradvet.core.reference_errors import Format, an_entry_persists, errors_persist

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
    alone[3] = 5.0
    assert an_entry_persists(alone, nowhere, TRUTHS)
    alone[3] = torch.nan
    assert an_entry_persists(alone, nowhere, TRUTHS)


def test_errors_everywhere_persist_if_they_are_the_same_at_another_point() -> None:
    steady = 0.03 * TRUTHS[0]
    assert errors_persist(steady, 1.1 * steady, TRUTHS[0], BFLOAT16)
    assert not errors_persist(steady, steady * torch.sign(rounding(1, 2)[0]), TRUTHS[0], BFLOAT16)
