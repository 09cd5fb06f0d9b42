"""Sums and maxima that say what they ignore."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from gradvet.core.vectors import (
    all_finite,
    dot,
    finite_part,
    nonzero_median,
    nonzero_rms,
    norm,
    peak,
    rms,
    unit,
    window,
)

KINDS = [lambda numbers: torch.tensor(numbers, dtype=torch.float64), np.array]
kinds = pytest.mark.parametrize("array", KINDS, ids=["torch", "numpy"])


@kinds
def test_product_ignores_values_where_its_first_factor_is_zero(array):
    assert dot(array([2.0, 0.0, 0.0]), array([3.0, math.inf, math.nan])) == 6.0
    assert norm(array([3.0, 4.0, 0.0]), array([1.0, 1.0, math.nan])) == 5.0


@kinds
def test_a_product_with_what_is_infinite_is_not_hidden(array):
    assert dot(array([2.0, 1.0]), array([3.0, math.inf])) == math.inf
    assert math.isnan(dot(array([2.0, 1.0]), array([3.0, math.nan])))
    assert norm(array([2.0, 1.0]), array([3.0, math.inf])) == math.inf


@kinds
def test_the_peak_is_the_largest_finite_size(array):
    assert peak(array([1.0, -3.0, 2.0])) == 3.0
    assert peak(array([1.0, -3.0, math.inf, math.nan])) == 3.0
    assert peak(array([math.nan])) == 0.0
    assert peak(array([])) == 0.0


@kinds
def test_finite_numbers_whose_sum_overflows_are_finite(array):
    assert all_finite(array([1e308, 1e308]))
    assert not all_finite(array([math.inf, -math.inf]))
    assert not all_finite(array([0.0, math.nan]))
    assert all_finite(array([]))


@kinds
def test_the_finite_part_has_zero_for_what_is_not_finite(array):
    whole, part = array([1.0, -2.0]), array([1.0, math.nan, -math.inf])
    assert finite_part(whole) is whole
    assert finite_part(part).tolist() == [1.0, 0.0, 0.0]


def vector(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def test_norm_ignores_values_where_the_first_vector_is_zero() -> None:
    assert norm(vector(3.0, 0.0, 1.0), vector(1.0, math.inf, -4.0)) == 5.0


def test_window_is_zero_outside() -> None:
    assert window(vector(1.0, 2.0, 3.0, 4.0), slice(1, 3)).tolist() == [0.0, 2.0, 3.0, 0.0]
    assert window(vector(1.0, 2.0, 3.0, 4.0) > 0.0, slice(1, 3)).tolist() == [False, True, True, False]


def test_unit_sets_one_entry() -> None:
    assert unit(vector(0.0, 0.0, 0.0), 1).tolist() == [0.0, 1.0, 0.0]
    assert unit(vector(0.0, 0.0, 0.0), 2, -0.5).tolist() == [0.0, 0.0, -0.5]


@kinds
def test_typical_sizes_ignore_zeros(array):
    values = array([0.0, 3.0, 0.0, 1.0, 2.0])
    assert rms(values) == math.sqrt(14.0 / 5.0)
    assert nonzero_rms(values) == math.sqrt(14.0 / 3.0)
    assert nonzero_median(values) == 2.0
    assert nonzero_rms(array([0.0])) == nonzero_median(array([0.0])) == 0.0
