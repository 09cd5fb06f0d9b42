"""`exhaustive=True`: every entry against its own difference, and no projection in place of one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import gradvet
from gradvet.core import certificate, entrywise
from tests.core.wrong_jacobians import Matrix, linear, numbers, planted, single

ROWS, COLUMNS = 40, 30


def leaf(size: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return numbers((size,), size, dtype).requires_grad_()


def failure(function: Callable[[Tensor], Tensor], x: Tensor) -> gradvet.GradcheckError:
    with pytest.raises(gradvet.GradcheckError) as caught:
        gradvet.gradcheck(function, x, exhaustive=True)
    return caught.value


@pytest.mark.parametrize("fast_mode", [False, True])
@pytest.mark.parametrize("size", [1, 7, 60, 700])
def test_right_function_passes(size: int, fast_mode: bool) -> None:
    assert gradvet.gradcheck(torch.sin, leaf(size), exhaustive=True, fast_mode=fast_mode)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_right_matrix_passes_in_both_modes_of_differentiation(dtype: torch.dtype) -> None:
    A = numbers((ROWS, COLUMNS), 1, dtype)
    right = linear(A, torch.zeros_like(A))
    assert gradvet.gradcheck(right, leaf(COLUMNS, dtype), exhaustive=True, check_forward_ad=True)


def test_second_order_is_compared_entry_by_entry_too() -> None:
    assert gradvet.gradgradcheck(torch.sin, leaf(20), exhaustive=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_entry_just_outside_the_tolerance_fails_and_just_inside_passes(dtype: torch.dtype) -> None:
    A = numbers((ROWS, COLUMNS), 1, dtype)
    x = leaf(COLUMNS, dtype)
    failure(linear(A, planted(single, A, 1.05, seed=3)), x)
    assert gradvet.gradcheck(linear(A, planted(single, A, 0.95, seed=3)), x, exhaustive=True)


def test_all_wrong_entries_are_counted_where_a_search_would_stop_at_the_first_ones() -> None:
    size, wrong = 700, 23
    assert 3 * size > entrywise.MAX_AT_ONCE
    A = numbers((size, size), 1) / size
    error = torch.zeros_like(A)
    error.view(-1)[torch.randperm(size * size, generator=torch.Generator().manual_seed(2))[:wrong]] = 0.1
    report = failure(linear(A, error), leaf(size)).report
    assert report is not None
    facts = report.failures[0].facts
    assert (facts["wrong"], facts["entries"], facts["complete"]) == (wrong, size * size, True)


def test_no_projection_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    def judged(*_: object, **__: object) -> float:
        raise AssertionError("a projection was judged")

    for module, name in ((certificate, "stages"), (entrywise, "resolving_ratio"), (entrywise, "locate")):
        monkeypatch.setattr(module, name, judged)
    A = numbers((ROWS, COLUMNS), 1)
    right = linear(A, torch.zeros_like(A))
    assert gradvet.gradcheck(right, leaf(COLUMNS), exhaustive=True)
    with pytest.raises(AssertionError, match="a projection was judged"):
        gradvet.gradcheck(right, leaf(COLUMNS))


def test_every_column_is_differenced_and_every_row_pulled_where_nothing_can_be_batched() -> None:
    calls = 0

    class Opaque(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            nonlocal calls
            calls += 1
            return Matrix.apply(x, torch.ones(ROWS, COLUMNS, dtype=x.dtype), torch.ones(ROWS, COLUMNS, dtype=x.dtype))

        @staticmethod
        def backward(ctx: object, cotangent: Tensor) -> Tensor:
            return cotangent.sum().expand(COLUMNS).clone()

    assert gradvet.gradcheck(Opaque.apply, leaf(COLUMNS), exhaustive=True)
    assert calls >= 2 * COLUMNS
