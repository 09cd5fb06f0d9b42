"""Two backward passes against each other, as findings."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
import torch
from torch import Tensor

from gradvet.checks import determinism
from gradvet.core.context import Context
from gradvet.core.results import Finding, Verdict
from gradvet.frontends.torch.problem import TorchProblem
from gradvet.options import Options
from tests.core.planted import numbers

GOLDEN = 0.618034
"""Multiples of it, modulo one, never come close to each other soon."""


class Jitter(torch.autograd.Function):
    """x · 2, whose derivative is off by up to `amount`, by another part of it in every pass."""

    passes = count(1)

    @staticmethod
    def forward(ctx: Any, x: Tensor, amount: float, relative: bool) -> Tensor:
        ctx.amount, ctx.relative = amount, relative
        return x * 2.0

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor, None, None]:
        part = next(Jitter.passes) * GOLDEN % 1.0
        return v * 2.0 + part * ctx.amount * (v if ctx.relative else 1.0), None, None


def found(function: Any, tolerance: float = 0.0, size: int = 4) -> list[Finding]:
    problem = TorchProblem(function, [numbers((size,), 0).requires_grad_()], seed=0)
    return list(determinism(Context(problem, Options(seed=0, nondeterminism=tolerance))))


def test_reproducible_derivative_passes() -> None:
    for function in (torch.sin, lambda x: (x.sin(), x.cos() @ x), lambda x: x.cumsum(0) / 3.0):
        (finding,) = found(function)
        assert (finding.check, finding.verdict) == ("determinism", Verdict.PASS)
        assert finding.headline == "the derivative is reproducible"


@pytest.mark.parametrize("relative", [True, False])
def test_derivative_that_differs_between_passes_fails(relative: bool) -> None:
    (finding,) = found(lambda x: Jitter.apply(x, 1e-9, relative))
    assert (finding.check, finding.verdict) == ("determinism", Verdict.FAIL)
    assert finding.headline.startswith("two backward passes with the same cotangent differ by ")
    assert 0.05e-9 < finding.facts["spread"] < 3e-9
    assert finding.facts["tolerance"] == 0.0


@pytest.mark.parametrize("outputs", [1, 2])
def test_derivative_that_differs_in_every_second_pass_fails(outputs: int) -> None:
    class Alternating(torch.autograd.Function):
        passes = count()

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2.0

        @staticmethod
        def backward(ctx: Any, v: Tensor) -> Tensor:
            return v * (2.0 + 1e-9 * (next(Alternating.passes) % 2))

    def function(x: Tensor) -> tuple[Tensor, ...]:
        return (Alternating.apply(x), x.sin())[:outputs]

    (finding,) = found(function)
    assert finding.verdict is Verdict.FAIL


def test_jitter_is_compared_with_the_tolerance_entry_by_entry() -> None:
    # Along a random codirection the jitter of a row of the Jacobian is up to one and a half times as large.
    for tolerance, verdict in ((1e-6, Verdict.PASS), (0.3e-6, Verdict.FAIL)):
        (finding,) = found(lambda x: Jitter.apply(x, 1e-6, True), tolerance)
        assert finding.verdict is verdict


def test_pass_that_adds_a_constant_is_reproducible() -> None:
    class Constant(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2.0

        @staticmethod
        def backward(ctx: Any, v: Tensor) -> Tensor:
            return v * 2.0 + 1.0

    (finding,) = found(Constant.apply)
    assert finding.verdict is Verdict.PASS


def test_derivative_that_is_not_finite_is_another_checks_matter() -> None:
    (finding,) = found(lambda x: torch.where(x > 1e9, x, x * torch.nan))
    assert finding.verdict is Verdict.PASS


def test_jitter_of_one_output_among_several_is_found() -> None:
    (finding,) = found(lambda x: (x.sin(), Jitter.apply(x, 1e-9, True)))
    assert finding.verdict is Verdict.FAIL


def test_nothing_to_run_gives_no_finding() -> None:
    assert found(torch.sin, size=0) == []
    assert found(torch.Tensor.detach) == []


def test_tolerance_is_held_by_single_entries_however_many_rows_there_are() -> None:
    class Rows(torch.autograd.Function):
        """The sum of 2x to each of 30 outputs; every cotangent adds its size to the jitter of one in ten thousand."""

        passes = count(1)

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return 2.0 * x.expand(30)

        @staticmethod
        def backward(ctx: Any, v: Tensor) -> Tensor:
            part = next(Rows.passes) * GOLDEN % 1.0
            return 2.0 * v.sum().reshape(1) + 1e-4 * part * v.abs().sum()

    assert [finding.verdict for finding in found(Rows.apply, 1.1e-4, size=1)] == [Verdict.PASS]
    assert [finding.verdict for finding in found(Rows.apply, 1e-5, size=1)] == [Verdict.FAIL]
