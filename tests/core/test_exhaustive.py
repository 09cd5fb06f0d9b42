"""All entries are compared in blocks of columns that fit in memory."""

from __future__ import annotations

import pytest
import torch

from gradvet.core.entrywise import _blocks
from gradvet.core.jacobians import BLOCK
from gradvet.core.spaces import Leaf, Space
from gradvet.frontends.torch.coordinates import Dense

HOME = torch.device("cpu")


def space(*lengths: int) -> Space:
    return Space([Leaf("leaf", Dense(torch.Size([size]), torch.float64, HOME, HOME), 0) for size in lengths])


@pytest.mark.parametrize(
    ("rows", "width"), [(0, BLOCK), (1, BLOCK), (4, BLOCK // 4), (BLOCK // 10, 10), (BLOCK // 5, 4), (2 * BLOCK, 2)]
)
def test_block_has_as_many_columns_as_fit_in_memory_and_an_even_number_of_them(rows: int, width: int) -> None:
    first, *_, last = _blocks(space(2 * width + 1), rows)
    assert first == (0, width)
    assert last == (2 * width, 2 * width + 1)


def test_block_ends_with_its_leaf() -> None:
    assert list(_blocks(space(3, 0, 5), BLOCK // 4)) == [(0, 3), (3, 7), (7, 8)]
