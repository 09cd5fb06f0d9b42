"""Two backward passes against each other, of one graph or of two, and two forward passes (`checks/outputs.py`)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
import torch
from torch import Tensor

import gradvet
from gradvet.checks.determinism import determinism, drop_in_determinism
from gradvet.core.context import Context
from gradvet.core.results import Finding, Verdict
from gradvet.frontends.torch.binding import drop_in_binding
from gradvet.frontends.torch.problem import TorchProblem
from gradvet.options import Options
from tests.core.contexts import context_of, point
from tests.core.wrong_jacobians import numbers
from tests.functions import with_vjp

GOLDEN = 0.618034
"""Multiples of it, modulo one, never come close to each other soon."""


def jitter(amount: float, *, is_relative: bool) -> Any:
    """x · 2, whose derivative is off by up to `amount`, by another part of it in every pass."""
    passes = count(1)

    def vjp(v: Tensor, x: Tensor) -> Tensor:
        part = next(passes) * GOLDEN % 1.0
        return v * 2.0 + part * amount * (v if is_relative else torch.ones_like(v))

    return with_vjp(lambda x: x * 2.0, vjp)


def drop_in_findings(function: Any, tolerance: float = 0.0, size: int = 4) -> list[Finding]:
    problem = TorchProblem(drop_in_binding(function, [numbers((size,), 0).requires_grad_()]), seed=0)
    return list(drop_in_determinism(Context(problem, Options(seed=0, nondeterminism=tolerance))))


def test_reproducible_derivative_passes() -> None:
    for function in (torch.sin, lambda x: (x.sin(), x.cos() @ x), lambda x: x.cumsum(0) / 3.0):
        (finding,) = drop_in_findings(function)
        assert (finding.check, finding.verdict) == ("determinism", Verdict.PASS)
        assert finding.headline == "the derivative is reproducible"


@pytest.mark.parametrize("relative", [True, False])
def test_derivative_that_differs_between_passes_fails(relative: bool) -> None:
    (finding,) = drop_in_findings(jitter(1e-9, is_relative=relative))
    assert (finding.check, finding.verdict) == ("determinism", Verdict.FAIL)
    assert finding.headline.startswith("two backward passes with the same grad_output differ by ")
    assert 0.05e-9 < finding.facts["spread"] < 3e-9
    assert finding.facts["tolerance"] == 0.0


@pytest.mark.parametrize("outputs", [1, 2])
def test_derivative_that_differs_in_every_second_pass_fails(outputs: int) -> None:
    passes = count()
    alternating = with_vjp(lambda x: x * 2.0, lambda v, x: v * (2.0 + 1e-9 * (next(passes) % 2)))

    def function(x: Tensor) -> tuple[Tensor, ...]:
        return (alternating(x), x.sin())[:outputs]

    (finding,) = drop_in_findings(function)
    assert finding.verdict is Verdict.FAIL


def test_jitter_is_compared_with_the_tolerance_entry_by_entry() -> None:
    # Along a random cotangent the jitter of a row of the Jacobian is up to one and a half times as large.
    for tolerance, verdict in ((1e-6, Verdict.PASS), (0.3e-6, Verdict.FAIL)):
        (finding,) = drop_in_findings(jitter(1e-6, is_relative=True), tolerance)
        assert finding.verdict is verdict


def test_pass_that_adds_a_constant_is_reproducible() -> None:
    constant = with_vjp(lambda x: x * 2.0, lambda v, x: v * 2.0 + 1.0)

    (finding,) = drop_in_findings(constant)
    assert finding.verdict is Verdict.PASS


def test_derivative_that_is_not_finite_is_another_checks_matter() -> None:
    (finding,) = drop_in_findings(lambda x: torch.where(x > 1e9, x, x * torch.nan))
    assert finding.verdict is Verdict.PASS


def test_jitter_of_one_output_among_several_is_found() -> None:
    function = jitter(1e-9, is_relative=True)
    (finding,) = drop_in_findings(lambda x: (x.sin(), function(x)))
    assert finding.verdict is Verdict.FAIL


def test_nothing_to_run_gives_no_finding() -> None:
    assert drop_in_findings(torch.sin, size=0) == []
    assert drop_in_findings(torch.Tensor.detach) == []


def test_tolerance_is_held_by_single_entries_however_many_rows_there_are() -> None:
    passes = count(1)

    def vjp(v: Tensor, x: Tensor) -> Tensor:
        part = next(passes) * GOLDEN % 1.0
        return 2.0 * v.sum().reshape(1) + 1e-4 * part * v.abs().sum()

    # The sum of 2x to each of 30 outputs; every cotangent adds its size to the jitter of one in ten thousand.
    rows = with_vjp(lambda x: 2.0 * x.expand(30), vjp)

    assert [finding.verdict for finding in drop_in_findings(rows, 1.1e-4, size=1)] == [Verdict.PASS]
    assert [finding.verdict for finding in drop_in_findings(rows, 1e-5, size=1)] == [Verdict.FAIL]


def restless(noise: float, calls: Iterator[int]) -> Any:
    """3x, whose gradient of the last entry is off by this part of it at every other call."""

    def vjp(v: Tensor, x: Tensor) -> Tensor:
        factors = torch.full_like(v, 3.0)
        factors[-1] *= 1.0 + noise * (next(calls) % 2)
        return v * factors

    return with_vjp(lambda x: 3.0 * x, vjp)


def found(noise: float) -> Finding:
    (finding,) = determinism(context_of(restless(noise, count()), point(1.0, 1.0, 1.0)))
    return finding


@pytest.mark.parametrize(
    ("noise", "verdict"), [(0.0, Verdict.PASS), (2e-9, Verdict.PASS), (2e-7, Verdict.FAIL), (0.1, Verdict.FAIL)]
)
def test_gradients_may_differ_in_half_of_their_digits(noise: float, verdict: Verdict) -> None:
    finding = found(noise)
    assert finding.verdict is verdict
    assert (finding.facts["backward"] > 0.0) is (noise > 0.0)


def test_entry_that_differs_is_named_with_its_difference() -> None:
    finding = found(0.1)
    assert finding.headline.endswith("at input 0 [2]")
    assert 0.05 <= finding.facts["backward"] <= 0.6


def test_function_that_wobbles_is_told_from_one_that_does_not() -> None:
    calls = count()
    context = context_of(lambda x: x * (1.0 + 1e-9 * next(calls)), point(1.0, 1.0))
    (finding,) = determinism(context)
    assert (finding.verdict, finding.headline) == (Verdict.PASS, "the function is random in itself")
    assert finding.facts["forward"] > 0.0
    assert found(0.0).headline == "21 equal backward passes give equal gradients"


def test_backward_passes_that_differ_by_roundoff_are_said_to_differ() -> None:
    noise = torch.Generator().manual_seed(0)

    def unsteady(v: Tensor, x: Tensor) -> Tensor:
        return 2.0 * v * (1.0 + 1e-7 * torch.randn(v.shape, generator=noise))

    report = gradvet.check(with_vjp(lambda x: 2.0 * x, unsteady), torch.ones(20), seed=1)
    assert report.passed
    assert any("equal backward passes differ by" in note for note in report.notes)


@pytest.mark.parametrize("seed", range(6))
def test_backward_that_draws_random_numbers_fails_in_every_draw(seed: int) -> None:
    def halved_now_and_then(v: Tensor, x: Tensor) -> Tensor:
        return v * torch.cos(x) * (0.5 if float(torch.rand(())) < 0.25 else 1.0)

    torch.manual_seed(seed)
    x = torch.linspace(0.1, 1.0, 5, dtype=torch.float64)
    report = gradvet.check(with_vjp(torch.sin, halved_now_and_then), x, seed=seed, points=None)
    assert "determinism" in {finding.check for finding in report.failures}
