"""A single wrong row, column or entry is named by the products that it leaves, and nothing else is."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gradvet.core.localise import ALIKE, VECTORS, match_single_entry

from .planted import numbers


def weights(size: int, seed: int) -> Tensor:
    drawn = torch.rand(VECTORS, size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    return drawn + 0.5 * drawn.sign()


@pytest.mark.parametrize("size", [1, 2, 50, 100_000])
@pytest.mark.parametrize("share", [0.0, 0.6, 0.999999])
def test_column_in_whose_proportion_the_products_are_is_named(size: int, share: float) -> None:
    U, column = weights(size, size), int(share * size)
    products = numbers((VECTORS,), 1)[:, None] * U[:, column]
    noisy = products * (1.0 + 1e-5 * numbers((VECTORS, VECTORS), 2))
    assert match_single_entry(list(U), products) == match_single_entry(list(U), noisy) == column


def test_two_columns_that_are_wrong_are_not_taken_for_one() -> None:
    U = weights(1_000, 0)
    for seed in range(50):
        one, other = torch.randperm(1_000, generator=torch.Generator().manual_seed(seed))[:2].tolist()
        left = numbers((2, VECTORS), seed)
        assert match_single_entry(list(U), left[0][:, None] * U[:, one] + left[1][:, None] * U[:, other]) is None


def test_products_in_no_columns_proportion_name_none() -> None:
    U = weights(100, 0)
    found = [match_single_entry(list(U), numbers((VECTORS,), seed)[None, :]) for seed in range(100)]
    # A hundred columns cover this little of all directions.
    assert sum(column is not None for column in found) <= 100 * 100 * ALIKE + 3


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0])
def test_products_that_say_nothing_name_none(value: float) -> None:
    assert match_single_entry(list(weights(10, 0)), torch.full((VECTORS, VECTORS), value, dtype=torch.float64)) is None
