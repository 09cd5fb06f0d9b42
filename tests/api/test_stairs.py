"""Functions that are constant around the point: by stairs of their own, by rounding inside, or altogether."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

import gradvet
from gradvet import Verdict
from tests.functions import with_vjp

PRECISIONS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def leaf(*shape: int, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return (scale * torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype).requires_grad_()


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_gradient_of_zero_between_stairs_passes_and_is_named(dtype: torch.dtype) -> None:
    report = gradvet.check(lambda x: torch.floor(3.0 * x + 0.1), leaf(5, 4, dtype=dtype), seed=1, points=None)
    assert report.verdict is Verdict.PASS
    assert all(row.resolution is not None and row.resolution <= row.asked for row in report.ledger)
    assert any("constant around the point" in note or "no output changes" in note for note in report.notes)


def test_stairs_finer_than_the_spacing_do_not_fail() -> None:
    for dtype in PRECISIONS[2:]:
        assert not gradvet.check(lambda x: torch.round(x, decimals=3), leaf(8, dtype=dtype), seed=1).failures


def in_half_by_numpy(x: Tensor) -> Tensor:
    """Rounded where no operator of torch shows it, and cut off from the graph."""
    rounded = x.detach().double().numpy().astype("float16").astype("float64")
    return torch.from_numpy(rounded).to(x.dtype) + 0.0 * x


@pytest.mark.parametrize("size", [1, 6, 40])
@pytest.mark.parametrize("seed", range(3))
def test_lost_gradient_behind_hidden_rounding_does_not_pass(size: int, seed: int) -> None:
    assert gradvet.check(in_half_by_numpy, leaf(size, dtype=torch.float64), seed=seed).verdict is not Verdict.PASS


@pytest.mark.parametrize("dtype", PRECISIONS[:2])
def test_lost_gradient_behind_a_cast_does_not_pass(dtype: torch.dtype) -> None:
    def cut(x: Tensor) -> Tensor:
        return x.detach().bfloat16().to(x.dtype) + 0.0 * x

    assert gradvet.check(cut, leaf(6, dtype=dtype), seed=1).verdict is not Verdict.PASS


def test_straight_through_estimator_does_not_pass_without_its_surrogate() -> None:
    rounded: Callable[[Tensor], Tensor] = with_vjp(lambda x: torch.floor(4.0 * x), lambda v, x: 4.0 * v)
    x = leaf(7, dtype=torch.float64)
    assert gradvet.check(rounded, x, seed=1).verdict is not Verdict.PASS
    assert gradvet.check(rounded, x, seed=1, surrogate=lambda x: 4.0 * x).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("dtype", "bits"),
    [(torch.float64, 8), (torch.float64, 14), (torch.float64, 16), (torch.float32, 8), (torch.float32, 12)],
)
def test_straight_through_gradient_of_fine_steps_does_not_pass(dtype: torch.dtype, bits: int) -> None:
    rounded = with_vjp(lambda x: torch.round(x * 2.0**bits) / 2.0**bits, lambda v, x: v)
    x, w = leaf(20, dtype=dtype), leaf(20, 3, dtype=dtype)
    for seed in range(3):
        assert gradvet.check(rounded, x, seed=seed).verdict is not Verdict.PASS
        if dtype is torch.float64:
            assert gradvet.check(lambda x, w: torch.tanh(rounded(x) @ w), (x, w), seed=seed).verdict is not Verdict.PASS


@pytest.mark.parametrize("bits", [12, 14, 16])
def test_straight_through_gradient_of_fine_steps_in_a_kernel_does_not_pass(bits: int) -> None:
    """The steps are wider than those of a kernel that computes in float32, which `sine_by_numpy` is."""

    def rounded(x: Tensor) -> Tensor:
        return torch.from_numpy(np.round(x.detach().numpy() * 2.0**bits) / 2.0**bits)

    estimator = with_vjp(rounded, lambda v, x: v)
    for seed in range(2):
        assert gradvet.check(estimator, leaf(20, dtype=torch.float64), seed=seed).verdict is not Verdict.PASS
    sine = with_vjp(sine_by_numpy, lambda v, x: v * x.cos())
    assert gradvet.check(sine, leaf(20, dtype=torch.float64), seed=1).verdict is Verdict.PASS


@pytest.mark.parametrize(("dtype", "bits"), [(torch.float64, 19), (torch.float64, 22), (torch.float32, 17)])
def test_straight_through_gradient_of_steps_of_a_few_roundoffs_does_not_pass(dtype: torch.dtype, bits: int) -> None:
    rounded = with_vjp(lambda x: torch.round(x * 2.0**bits) / 2.0**bits, lambda v, x: v)
    for seed in range(3):
        assert gradvet.check(rounded, leaf(7, dtype=dtype), seed=seed).verdict is not Verdict.PASS
        assert gradvet.check(with_vjp(torch.sin, lambda v, x: v * x.cos()), leaf(7, dtype=dtype), seed=seed).passed


@pytest.mark.parametrize("dtype", PRECISIONS[:2])
@pytest.mark.parametrize("bits", [8, 12, 16])
def test_detached_rounding_of_fine_steps_does_not_pass(dtype: torch.dtype, bits: int) -> None:
    def rounded(x: Tensor) -> Tensor:
        return x + (torch.round(x * 2.0**bits) / 2.0**bits - x).detach()

    for seed in range(3):
        assert gradvet.check(rounded, leaf(20, dtype=dtype), seed=seed).verdict is not Verdict.PASS
        assert (
            gradvet.check(lambda x: (rounded(x) ** 2).mean(), leaf(20, dtype=dtype), seed=seed).verdict
            is not Verdict.PASS
        )


@pytest.mark.parametrize("bits", [5, 8, 12])
@pytest.mark.parametrize("dtype", PRECISIONS[2:])
def test_detached_rounding_of_wider_steps_does_not_pass_in_half_precision(bits: int, dtype: torch.dtype) -> None:
    step = 2.0**-bits
    report = gradvet.check(lambda x: x + (torch.round(x / step) * step - x).detach(), leaf(20, dtype=dtype), seed=1)
    assert report.verdict is not Verdict.PASS


def sine_by_numpy(x: Tensor) -> Tensor:
    """Rounded to float32 where no operator of torch shows it."""
    return torch.from_numpy(np.sin(x.detach().numpy().astype("float32"))).double()


@pytest.mark.parametrize("size", [1, 9, 40])
def test_kernel_that_rounds_to_float32_unseen_passes(size: int) -> None:
    right = with_vjp(sine_by_numpy, lambda v, x: v * x.cos())
    assert gradvet.check(right, leaf(size, dtype=torch.float64), seed=1).verdict is Verdict.PASS


def test_report_says_that_no_output_changes() -> None:
    x, b = leaf(5, dtype=torch.float64), leaf(3, dtype=torch.float64)
    constant = gradvet.check(lambda x: 0.0 * x + 3.0, x, seed=1)
    one = gradvet.check(lambda x, b: x.sin() + 0.0 * b.sum(), (x, b), seed=1)
    assert constant.verdict is one.verdict is Verdict.PASS
    assert "no output changes with input 0 by more than roundoff, and its gradient is zero" in constant.notes
    assert [note for note in one.notes if "no output changes" in note] == [
        "no output changes with input 1 by more than roundoff, and its gradient is zero"
    ]
    assert not any("no output changes" in note for note in gradvet.check(torch.sin, x, seed=1).notes)


@pytest.mark.parametrize("seed", range(3))
def test_argument_that_no_minimum_selects_passes(seed: int) -> None:
    """Over wide steps it selects some of its elements, which looks like a stair."""
    x = leaf(5, dtype=torch.float64).detach()

    def least(x: Tensor, y: Tensor) -> Tensor:
        return torch.amin(torch.stack([x, y]), 0).mean()

    assert gradvet.check(least, (x, x + 0.02), seed=seed, points=None).verdict is Verdict.PASS
    wrong = with_vjp(least, lambda v, x, y: (v * torch.ones_like(x) / 5.0, v * torch.ones_like(y) / 5.0))
    assert gradvet.check(wrong, (x, x + 0.02), seed=seed, points=None).verdict is Verdict.FAIL


def test_other_value_at_the_point_itself_is_a_jump() -> None:
    """Central differences do not see that value, and agree with the derivative around it."""
    jumping = with_vjp(lambda x: torch.where(x == 1.0, 2.0, 1.0) * torch.sin(x), lambda v, x: v * torch.cos(x))
    x = torch.tensor([0.5, 1.0, 1.7], dtype=torch.float64)
    report = gradvet.check(jumping, x, seed=1, points=None)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "jumps" in next(one.headline for one in report.findings if one.check == "reverse")
