"""Gradients under other conditions: what one of them shows on the way is not asked for again.

Also tests `core/problem.py`.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import gradvet
from gradvet.core.results import Verdict
from tests.core.contexts import context_of, point
from tests.functions import with_vjp


def test_function_that_reads_its_arguments_shows_it_in_another_forward_pass() -> None:
    problem = context_of(torch.sin, point(0.3, 1.0)).problem
    found = problem.variants.fresh_gradient(point(1.0, 1.0).detach(), interleaved=True)
    assert found.reads_arguments
    assert not problem.variants.reads_captured()


def test_function_that_reads_what_it_captured_is_told_whatever_was_asked_before() -> None:
    x = point(0.3, 1.0)
    problem = context_of(lambda y: torch.sin(x), x).problem
    assert not problem.variants.fresh_gradient(point(1.0, 1.0).detach(), interleaved=True).reads_arguments
    assert problem.variants.reads_captured()


def test_function_that_is_not_defined_elsewhere_is_asked_next_to_the_point() -> None:
    def narrow(x: Tensor) -> Tensor:
        if bool((x[0] > -8.0).any()):
            raise ValueError("too far")
        return 2.0 * x

    problem = context_of(narrow, point(-9.0, 1.0)).problem
    assert not problem.variants.fresh_gradient(point(1.0, 1.0).detach(), interleaved=True).reads_arguments
    assert not problem.variants.reads_captured()


class FromTheStart(torch.autograd.Function):
    """The square, whose backward pass reads the memory of its input from the start."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, *v: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2.0 * v[0] * torch.as_strided(x, x.shape, x.stride(), 0)


class Overwritten(torch.autograd.Function):
    """The square, which keeps its input in the class."""

    saved = torch.zeros(())

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        Overwritten.saved = x.detach().clone()
        return x * x

    @staticmethod
    def backward(ctx: Any, *v: Tensor) -> Tensor:
        return 2.0 * v[0] * Overwritten.saved


@pytest.mark.parametrize(
    ("function", "failed"),
    [(torch.sin, set()), (FromTheStart.apply, {"input_layout"}), (Overwritten.apply, {"reentrancy"})],
)
def test_inputs_that_begin_elsewhere_share_a_call_with_another_forward_pass_and_blame_is_told_apart(
    function: Any, failed: set[str]
) -> None:
    names = ["reentrancy", "input_layout", "mutation"]
    report = gradvet.check(function, (point(0.3, 1.0, 2.0),), seed=0, checks=names)
    assert {finding.check for finding in report.failures} == failed
    assert {finding.check for finding in report.findings} == set(names)


def test_input_that_is_changed_where_it_lies_is_told_from_a_copy_that_is_not() -> None:
    class Careless(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.contiguous().mul_(1.5).clone()

        @staticmethod
        def backward(ctx: Any, *v: Tensor) -> Tensor:
            return 1.5 * v[0]

    def careless(x: Tensor) -> Tensor:
        return Careless.apply(x)  # type: ignore[no-untyped-call,no-any-return]

    report = gradvet.check(careless, (point(0.3, 1.0, 2.0),), seed=0, checks=["mutation"])
    assert [finding.check for finding in report.failures] == ["mutation"]
    assert report.failures[0].facts["changed"] == ["input 0"]


def test_backward_that_keeps_statistics_passes() -> None:
    """A tensor that a pass inside vmap leaves behind could not be used by the next pass."""
    kept: dict[str, Tensor] = {}

    def vjp(v: Tensor, x: Tensor) -> Tensor:
        kept["sum"] = kept.get("sum", torch.zeros((), dtype=v.dtype)) + v.sum()
        return v * x.cos()

    report = gradvet.check(
        with_vjp(torch.sin, vjp), torch.linspace(0.1, 1.0, 6, dtype=torch.float64), points=None, seed=1
    )
    assert report.verdict is Verdict.PASS
    assert kept["sum"].isfinite()


def test_function_that_keeps_its_input_passes() -> None:
    """A tensor that a call inside vmap leaves behind could not be used by the next call."""

    class Blocks:
        data = torch.ones(200, dtype=torch.float64)

    last = torch.zeros(128, dtype=torch.float64)

    def blockwise(x: Tensor) -> Tensor:
        blocks.data = torch.cat([blocks.data[:72].detach(), x])
        return blocks.data.sin().norm()

    def smoothed(x: Tensor) -> Tensor:
        nonlocal last
        before, last = last, x.detach()
        return x.sin().norm() + 0.0 * before.sum()

    blocks, x = Blocks(), torch.linspace(0.1, 1.0, 128, dtype=torch.float64, requires_grad=True)
    for function in (blockwise, smoothed):
        assert gradvet.check(function, (x,), seed=1).verdict is Verdict.PASS
        assert gradvet.gradcheck(function, (x,), exhaustive=True)
    assert blocks.data.isfinite().all()
    assert last.isfinite().all()
