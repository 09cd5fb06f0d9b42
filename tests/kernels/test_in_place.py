"""Kernels that write to their inputs and say so by `ctx.mark_dirty`, which torch refuses for leaves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from gradvet import check
from gradvet.core.results import Verdict
from tests.functions import with_vjp


class RmsNormInPlace(torch.autograd.Function):
    """The rows of the first input are overwritten by the normalised rows."""

    factor = 1.0

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        rstd = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
        ctx.save_for_backward(x * rstd, weight, rstd)
        x.mul_(rstd * weight)
        ctx.mark_dirty(x)
        return x

    @classmethod
    def backward(cls, ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        normal, weight, rstd = ctx.saved_tensors
        g = grad * weight
        return cls.factor * rstd * (g - normal * (g * normal).mean(-1, keepdim=True)), (grad * normal).sum(0)


class Scaled(RmsNormInPlace):
    factor = 1.03


class AlsoWritesToWeight(RmsNormInPlace):
    """A write that is not marked: to the second input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        result: Tensor = RmsNormInPlace.forward(ctx, x, weight.clone())
        weight.data.add_(1.0)
        return result


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, 1e-6)


def inputs(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(3, 8).to(dtype), (torch.rand(8) + 0.5).to(dtype)


NOTE = "the function writes to input 0: every call was made with a copy"
PRECISIONS = pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
REFERENCES = pytest.mark.parametrize("reference", [None, rms_norm], ids=["alone", "reference"])
CHECKS = ("reverse", "precision", "reference", "mutation")


@PRECISIONS
@REFERENCES
def test_kernel_that_marks_its_inputs_dirty_is_checked_on_copies(dtype: torch.dtype, reference: Any) -> None:
    given = inputs(dtype)
    before = given[0].clone()
    right = check(RmsNormInPlace, given, reference=reference, checks=CHECKS, seed=1)
    assert right.verdict is Verdict.PASS
    assert right.notes.count(NOTE) == 1
    assert torch.equal(given[0], before)
    wrong = check(Scaled, given, reference=reference, checks=CHECKS, seed=1)
    assert [finding.check for finding in wrong.failures] == ["reverse" if reference is None else "reference"]


def test_write_that_is_not_marked_is_named_beside_one_that_is() -> None:
    report = check(AlsoWritesToWeight, inputs(torch.float64), checks=CHECKS, seed=1)
    assert [(found.check, found.facts["changed"]) for found in report.failures] == [("mutation", ["input 1"])]
    assert NOTE in report.notes


def centred(factor: float) -> Any:
    """sin(x) minus a running mean, which forward updates first."""

    def centre(x: Tensor, mean: Tensor) -> Tensor:
        return x.sin() - mean.mul_(0.75).add_(x.detach(), alpha=0.25)

    return with_vjp(centre, lambda v, x, mean: (factor * v * (x.cos() - 0.25), None))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_statistics_that_forward_updates_are_the_same_in_every_call(dtype: torch.dtype) -> None:
    x, mean = torch.linspace(0.1, 1.0, 6).to(dtype).requires_grad_(), torch.ones(6, dtype=dtype)
    right, wrong = (check(centred(factor), (x, mean), checks=CHECKS, seed=1) for factor in (1.0, 1.2))
    assert right.verdict is Verdict.PASS
    assert "the function writes to input 1: every call was made with a copy" in right.notes
    assert bool((mean == 1.0).all())
    assert [found.check for found in wrong.failures] == ["reverse"]


def test_operators_that_write_to_an_input_are_checked_on_copies() -> None:
    report = check(lambda x: x.sin_().mul_(2.0), torch.linspace(0.1, 1.0, 5, dtype=torch.float64), seed=1)
    assert report.verdict is Verdict.PASS
    assert NOTE in report.notes


def test_write_to_a_captured_leaf_is_refused() -> None:
    captured = torch.ones(3, dtype=torch.float64, requires_grad=True)
    with pytest.raises(ValueError, match="writes to a parameter or captured tensor that requires grad"):
        check(lambda x: captured.mul_(x), torch.ones(3, dtype=torch.float64))
