"""Inputs whose elements share memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import gradvet
from gradvet.core.results import Verdict
from tests.functions import with_vjp


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize(
    "overlap",
    [lambda x: x.unfold(0, 3, 1), lambda x: x.as_strided((3, 4), (2, 1)), lambda x: x.expand(2, 9).unfold(1, 3, 2)],
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_overlapping_inputs_are_replaced_by_copies(overlap: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    base = numbers(9).to(dtype)
    before, x = base.clone(), overlap(base).requires_grad_()
    right = gradvet.check(torch.sin, (x,), seed=20)
    assert right.verdict is Verdict.PASS
    assert any("share memory" in note for note in right.notes)
    wrong = with_vjp(torch.sin, lambda v, x: 1.05 * v * torch.cos(x))
    assert gradvet.check(wrong, (x,), seed=20).verdict is Verdict.FAIL
    assert torch.equal(base, before)


def test_strided_inputs_are_not_copied() -> None:
    x = numbers(4, 6).t()[::2].requires_grad_()
    assert not any("share memory" in note for note in gradvet.check(torch.sin, (x,), seed=20).notes)
