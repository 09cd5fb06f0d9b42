"""Kernels that exist in low precision only: the verdict and the resolution that their own values allow.

Also tests `core/direction_average.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import gradvet
from gradvet.core.results import Report, Verdict
from tests.functions import with_vjp

HALVES = [torch.float16, torch.bfloat16]


def kernel(derivative: Callable[[Tensor], Tensor]) -> Any:
    """x sin x, for formats of at most 16 bits."""

    def value(x: Tensor) -> Tensor:
        if x.element_size() > 2:
            raise RuntimeError("this kernel is for half precision")
        return x * torch.sin(x)

    return with_vjp(value, lambda v, x: v * derivative(x))


def right(x: Tensor) -> Tensor:
    return torch.sin(x) + x * torch.cos(x)


def too_large(x: Tensor) -> Tensor:
    return 1.4 * right(x)


def zero_where_negative(x: Tensor) -> Tensor:
    return torch.where(x < 0, torch.zeros_like(x), right(x))


def one_missing(x: Tensor) -> Tensor:
    return torch.where(torch.arange(len(x)) == 7, torch.zeros_like(x), right(x))


def report_on(derivative: Callable[[Tensor], Tensor], dtype: torch.dtype, n: int, **settings: Any) -> Report:
    x = torch.randn(n, dtype=torch.float64, generator=torch.Generator().manual_seed(4)).to(dtype)
    return gradvet.check(kernel(derivative), (x,), checks=["reverse"], seed=2, **settings)


SIZES = [(torch.float16, 10), (torch.bfloat16, 100), (torch.float16, 3000)]


@pytest.mark.parametrize(("dtype", "n"), SIZES)
def test_right_kernel_is_never_called_wrong(dtype: torch.dtype, n: int) -> None:
    assert report_on(right, dtype, n).verdict is not Verdict.FAIL


@pytest.mark.parametrize(("dtype", "n"), SIZES)
@pytest.mark.parametrize("derivative", [too_large, zero_where_negative])
def test_kernel_that_is_wrong_in_many_places_is_found(
    derivative: Callable[[Tensor], Tensor], dtype: torch.dtype, n: int
) -> None:
    assert report_on(derivative, dtype, n).verdict is Verdict.FAIL


@pytest.mark.parametrize("dtype", HALVES)
def test_single_wrong_entry_among_a_hundred_is_found_and_named(dtype: torch.dtype) -> None:
    report = report_on(one_missing, dtype, 100)
    assert report.verdict is Verdict.FAIL
    assert str(report.failures[0].mismatches[0].input) == "input 0 [7]"


def test_right_kernel_passes_and_the_resolution_is_that_of_a_common_factor() -> None:
    report = report_on(right, torch.float16, 100)
    assert report.verdict is Verdict.PASS
    assert report.resolution is not None
    assert report.resolution <= 0.01


def test_single_wrong_entry_among_thousands_does_not_pass() -> None:
    assert report_on(one_missing, torch.float16, 3000, resolution=0.1).verdict is not Verdict.PASS


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_undecided_kernel_is_advised_to_take_a_reference_which_decides_it(dtype: torch.dtype) -> None:
    """The largest of 40 numbers: within the steps of half precision another one is the largest."""

    def largest(x: Tensor) -> Tensor:
        if x.element_size() > 2:
            raise RuntimeError("this kernel is for half precision")
        return x.amax(0)

    def backward(v: Tensor, x: Tensor) -> Tensor:
        return torch.zeros_like(x).scatter(0, x.argmax(0)[None], v[None])

    x = torch.randn(40, 30, generator=torch.Generator().manual_seed(0)).to(dtype)
    report = gradvet.check(with_vjp(largest, backward), x, checks=["reverse"], seed=0)
    (open_one,) = [finding for finding in report.findings if finding.verdict is Verdict.INCONCLUSIVE]
    assert "check(..., reference=...)" in open_one.advice
    assert "float64" not in open_one.advice
    assert "moderate size" not in open_one.advice
    with_reference = gradvet.check(with_vjp(largest, backward), x, reference=lambda x: x.amax(0), seed=0)
    assert with_reference.verdict is Verdict.PASS, with_reference
