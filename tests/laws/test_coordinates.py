"""Coordinates are an invertible linear map that keeps the inner product, whatever the layout of the value.

`Masked` has one number beside its coordinates, which is zero for every value of the pattern; the laws hold on those.

Also tests `frontends/torch/layouts/__init__.py` and `frontends/torch/layouts/sparse.py`.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gradvet.frontends.torch.layouts import coordinates_of, layouts_of
from gradvet.frontends.torch.layouts.dense import Dense
from tests.laws import values as some
from tests.laws.values import Pattern

HOME = torch.device("cpu")
pytestmark = pytest.mark.filterwarnings("ignore:Sparse")
examples = settings(max_examples=60, deadline=None, derandomize=True)


def dense_coordinates(value: Tensor) -> Dense:
    return Dense(value.shape, value.dtype, value.device, HOME)


def input_coordinates(pattern: Pattern, masked: bool) -> Any:
    (layout,) = layouts_of([pattern.tensor.clone().requires_grad_()], masked, HOME)
    return layout.coordinates


def vector(size: int, seed: int) -> Tensor:
    """Numbers that every format holds exactly, so that the laws hold exactly too."""
    return torch.randint(-8, 9, (size,), generator=torch.Generator().manual_seed(seed)).double() / 4


def inner_product(x: Tensor, y: Tensor) -> float:
    x, y = x.to_dense().to(torch.complex128), y.to_dense().to(torch.complex128)
    return float((x.conj() * y).sum().real)


def numbers_of(pattern: Pattern, masked: bool) -> int:
    """How many real coordinates there are, counted from how the tensor was made."""
    count = int(pattern.mask.sum()) if masked else pattern.mask.numel()
    return count * (2 if pattern.tensor.is_complex() else 1)


@examples
@given(some.dense(), some.seeds)
def test_dense_vectors_and_values_come_back_from_the_round_trip(value: Tensor, seed: int) -> None:
    coordinates = dense_coordinates(value)
    c = vector(coordinates.size, seed)
    assert torch.equal(coordinates.flatten(coordinates.unflatten(c)), c)
    back = coordinates.unflatten(coordinates.flatten(value))
    assert torch.equal(back, value)
    assert (back.dtype, back.shape) == (value.dtype, value.shape)


@examples
@given(some.dense(), some.seeds, st.integers(-3, 3), st.integers(-3, 3))
def test_dense_coordinates_are_linear_and_keep_the_inner_product(value: Tensor, seed: int, a: int, b: int) -> None:
    coordinates = dense_coordinates(value)
    c, d = vector(coordinates.size, seed), vector(coordinates.size, seed + 1)
    x, y = coordinates.unflatten(c), coordinates.unflatten(d)
    assert torch.equal(coordinates.flatten(a * x + b * y), a * c + b * d)
    assert inner_product(x, y) == pytest.approx(float(c @ d), abs=1e-12)


@examples
@given(some.sparse, st.booleans(), some.seeds)
def test_sparse_vectors_and_values_come_back_from_the_round_trip(pattern: Pattern, masked: bool, seed: int) -> None:
    tensor, size = pattern.tensor, numbers_of(pattern, masked)
    for coordinates in (coordinates_of(tensor, masked, HOME), input_coordinates(pattern, masked)):
        c = vector(coordinates.size, seed)
        c[size:] = 0.0
        value = coordinates.unflatten(c)
        assert torch.equal(coordinates.flatten(value), c)
        back = coordinates.unflatten(coordinates.flatten(tensor))
        assert torch.allclose(back.to_dense(), tensor.to_dense(), rtol=0.0, atol=1e-6)
        assert (back.layout, back.dtype, back.shape) == (tensor.layout, tensor.dtype, tensor.shape)


@examples
@given(some.sparse, st.booleans(), some.seeds, st.integers(-3, 3), st.integers(-3, 3))
def test_sparse_coordinates_are_linear_and_keep_the_inner_product(
    pattern: Pattern, masked: bool, seed: int, a: int, b: int
) -> None:
    size = numbers_of(pattern, masked)
    for coordinates in (coordinates_of(pattern.tensor, masked, HOME), input_coordinates(pattern, masked)):
        c, d = vector(coordinates.size, seed), vector(coordinates.size, seed + 1)
        c[size:] = d[size:] = 0.0
        x, y = coordinates.unflatten(c), coordinates.unflatten(d)
        assert torch.equal(coordinates.flatten(a * x.to_dense() + b * y.to_dense()), a * c + b * d)
        assert inner_product(x, y) == pytest.approx(float(c @ d), abs=1e-12)


@examples
@given(some.sparse, st.booleans())
def test_there_are_as_many_coordinates_as_numbers_that_count(pattern: Pattern, masked: bool) -> None:
    size = numbers_of(pattern, masked)
    assert coordinates_of(pattern.tensor, masked, HOME).size == size
    beside = pattern.tensor.is_complex() + 1 if masked and not bool(pattern.mask.all()) else 0
    assert input_coordinates(pattern, masked).size == size + beside


@examples
@given(some.sparse, st.booleans(), some.seeds)
def test_coordinates_of_a_value_do_not_depend_on_how_it_is_stored(pattern: Pattern, masked: bool, seed: int) -> None:
    coordinates = input_coordinates(pattern, masked)
    dense = some.random(tuple(pattern.tensor.shape), pattern.tensor.dtype, seed)
    whole = dense.to_sparse(layout=torch.sparse_coo) if dense.dim() else dense
    halves = [dense * 0.25, dense * 0.75]
    split = [half.to_sparse(layout=torch.sparse_coo) for half in halves] if dense.dim() else []
    expected = coordinates.flatten(dense)
    stored = [whole] + ([split[0] + split[1]] if split else [])
    if split:
        indices = torch.cat([part._indices() for part in split], 1)
        numbers = torch.cat([part._values() for part in split])
        stored.append(torch.sparse_coo_tensor(indices, numbers, dense.shape, check_invariants=True))
    if dense.dim() == 2:
        stored += [dense.to_sparse_csr(), dense.to_sparse_csc(), dense.to_sparse_bsr((1, 1))]
    for value in stored:
        assert torch.allclose(coordinates.flatten(value), expected, rtol=1e-6, atol=1e-6)
    assert torch.equal(coordinates.flatten(dense.mT.contiguous().mT if dense.dim() > 1 else dense), expected)


@examples
@given(some.sparse, some.seeds)
def test_number_beside_masked_coordinates_is_the_largest_one_outside_the_pattern(pattern: Pattern, seed: int) -> None:
    if bool(pattern.mask.all()):
        return
    coordinates, size = input_coordinates(pattern, masked=True), numbers_of(pattern, masked=True)
    dense = some.random(tuple(pattern.tensor.shape), pattern.tensor.dtype, seed)
    outside = float(dense[~pattern.mask].abs().max())
    expanded = torch.ones((), dtype=dense.dtype).expand(dense.shape)
    for value in (dense, dense.to_sparse(layout=torch.sparse_coo)):
        assert float(coordinates.flatten(value)[size]) == pytest.approx(outside)
        assert torch.equal(coordinates.flatten(value)[size + 1 :], torch.zeros(coordinates.parts - 1).double())
    assert float(coordinates.flatten(expanded)[size]) == 1.0
    assert float(coordinates.flatten(dense * pattern.mask)[size]) == 0.0


@examples
@given(some.sparse, st.booleans(), some.seeds)
def test_label_names_the_element_that_a_coordinate_is(pattern: Pattern, masked: bool, seed: int) -> None:
    coordinates, size = input_coordinates(pattern, masked), numbers_of(pattern, masked)
    labels = [coordinates.label(i) for i in range(coordinates.size)]
    if not size:
        return
    at = seed % size
    one = torch.zeros(coordinates.size, dtype=torch.float64)
    one[at] = 1.0
    value = coordinates.unflatten(one).to_dense()
    (where,) = value.nonzero().tolist()
    part = (".real" if value[tuple(where)].real else ".imag") if value.is_complex() else ""
    assert labels[at] == str(where) + part
    assert len(set(labels[:size])) == size
    assert set(labels[size:]) <= {"outside its pattern"}


@examples
@given(st.one_of(some.sparse.map(lambda pattern: pattern.tensor), some.dense()), st.booleans())
def test_value_has_memory_of_its_own(tensor: Tensor, masked: bool) -> None:
    coordinates = coordinates_of(tensor, masked, HOME)
    c = torch.ones(coordinates.size, dtype=torch.float64)
    value = coordinates.unflatten(c)
    c.zero_()
    assert torch.equal(coordinates.flatten(value), torch.ones_like(c))
