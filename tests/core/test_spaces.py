"""Leaves side by side, and the name of every coordinate."""

from __future__ import annotations

import torch
from torch import Tensor

from gradvet.core.vectors import Leaf, Space
from gradvet.frontends.torch.layouts.dense import Dense, unflattened

HOME = torch.device("cpu")


def leaf(name: str, *shape: int, dtype: torch.dtype = torch.float64) -> Leaf:
    return Leaf(name, Dense(torch.Size(shape), dtype, HOME, HOME), 0)


MIXED = Space([leaf("a", 2, 3), leaf("nothing", 0), leaf("z", 2, dtype=torch.complex128), leaf("scalar")])


def test_size_is_the_number_of_real_coordinates() -> None:
    assert MIXED.size == 6 + 0 + 4 + 1
    assert Space([]).size == 0


def test_slices_of_the_leaves_follow_each_other() -> None:
    assert MIXED.slices == (slice(0, 6), slice(6, 6), slice(6, 10), slice(10, 11))


def test_every_coordinate_is_named_by_leaf_index_and_part() -> None:
    names = [str(MIXED.locate(i)) for i in range(MIXED.size)]
    assert names[:6] == [f"a [{row}, {column}]" for row in range(2) for column in range(3)]
    assert names[6:10] == ["z [0].real", "z [0].imag", "z [1].real", "z [1].imag"]
    assert names[10] == "scalar"


def test_location_tells_leaf_and_part() -> None:
    assert [(MIXED.locate(i).leaf, MIXED.locate(i).part) for i in (0, 6, 7, 10)] == [
        (0, ""),
        (2, "real"),
        (2, "imag"),
        (3, ""),
    ]


def test_vector_becomes_one_value_per_leaf_in_storage_of_its_own() -> None:
    vector = torch.arange(11, dtype=torch.float64)
    values: list[Tensor] = unflattened(MIXED, vector)
    assert [tuple(value.shape) for value in values] == [(2, 3), (0,), (2,), ()]
    assert values[2].tolist() == [6 + 7j, 8 + 9j]
    assert float(values[3]) == 10.0
    vector.zero_()
    assert float(values[0][1, 2]) == 5.0
