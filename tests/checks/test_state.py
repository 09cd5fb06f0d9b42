"""What `.grad` gains beside what it held, as findings."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import gradvet
from gradvet.checks.state import accumulation
from gradvet.core.results import Finding, Verdict
from gradvet.frontends.torch.variants import TorchVariants
from tests.core.contexts import context_of, point


def found(monkeypatch: pytest.MonkeyPatch, factor: float, added: float, slope: float = 3.0) -> Finding:
    """The finding where `.grad` gains this factor of the gradient, and something more."""
    context = context_of(lambda x: slope * x, point(1.0, 1.0))
    gained = factor * context.random_vjp[1] + added
    monkeypatch.setattr(TorchVariants, "accumulated", lambda self, v: iter([gained, gained]))
    (finding,) = accumulation(context)
    return finding


def test_gradient_that_is_added_passes() -> None:
    (finding,) = accumulation(context_of(torch.sin, point(1.0, 2.0)))
    assert finding.verdict is Verdict.PASS


@pytest.mark.parametrize("factor", [0.0, 2.0, -1.0, 1.01])
def test_anything_else_than_the_gradient_fails(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    assert found(monkeypatch, factor, 0.0).verdict is Verdict.FAIL


def test_graph_that_later_calls_spoiled_is_not_held_against_it(monkeypatch: pytest.MonkeyPatch) -> None:
    context = context_of(torch.sin, point(1.0, 2.0))
    through_fresh_call = context.random_vjp[1]
    monkeypatch.setattr(
        TorchVariants, "accumulated", lambda self, v: iter([0.0 * through_fresh_call, through_fresh_call])
    )
    (finding,) = accumulation(context)
    assert finding.verdict is Verdict.PASS


def test_roundoff_of_what_was_there_before_is_forgiven(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(monkeypatch, 1.0, 2e-14, slope=1e-12).verdict is Verdict.PASS
    assert found(monkeypatch, 1.0, 2e-13, slope=1e-12).verdict is Verdict.FAIL


def halve(parameter: Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.mul_(0.5)


def halve_and_return(parameter: Tensor) -> Tensor | None:
    halve(parameter)
    return parameter.grad


def take_away(parameter: Tensor) -> None:
    parameter.grad = None


@pytest.mark.parametrize(
    ("hook", "verdict", "words"),
    [
        (halve, Verdict.FAIL, ""),
        (halve_and_return, Verdict.PASS, "RuntimeError: Tensor post accumulate grad hooks should return None"),
        (take_away, Verdict.PASS, "a hook sets it to None"),
    ],
)
def test_hooks_on_accumulated_gradients_fail_or_are_noted(hook: Any, verdict: Verdict, words: str) -> None:
    layer = torch.nn.Linear(3, 2).double()
    layer.weight.register_post_accumulate_grad_hook(hook)
    report = gradvet.check(layer, torch.ones(4, 3, dtype=torch.float64), seed=1, blame=False)
    assert report.verdict is verdict, report
    if words:
        assert any(note.startswith(f"`.grad` was not compared after `backward()`: {words}") for note in report.notes)


def test_strided_weight_of_batch_norm_is_the_fault_of_the_framework() -> None:
    """The backward of torch 2.13 reads a sliced weight as if it were contiguous."""
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((8, 4), (4,)))

    def normalised(x: Tensor, weight: Tensor) -> Tensor:
        return torch.nn.functional.batch_norm(x, None, None, weight, training=True)

    assert gradvet.check(normalised, (x, weight), seed=1).verdict is Verdict.PASS
