"""Derivatives of several directions at once against each alone, as findings."""

from __future__ import annotations

import itertools
import math
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._C._functorch import is_legacy_batchedtensor

import gradvet
from gradvet.checks.transformations import batched, drop_in_batched_forward, drop_in_batched_reverse
from gradvet.core.results import Finding, Verdict
from gradvet.core.runner import CheckFunction
from tests.core.wrong_jacobians import context_at, numbers

NAMES: dict[str, CheckFunction] = {
    "batched reverse": drop_in_batched_reverse,
    "batched forward": drop_in_batched_forward,
}


class Twice(torch.autograd.Function):
    """x · 2, whose derivative for several directions at once is x · 2.1."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2.0

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> Tensor:
        return v * (2.1 if is_legacy_batchedtensor(v) else 2.0)

    @staticmethod
    def jvp(ctx: Any, u: Tensor) -> Tensor:
        return u * (2.1 if is_legacy_batchedtensor(u) else 2.0)


class Unmappable(torch.autograd.Function):
    """x · 2, whose derivative looks at single numbers."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2.0

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> Tensor:
        v.sum().item()
        return v * 2.0

    @staticmethod
    def jvp(ctx: Any, u: Tensor) -> Tensor:
        u.sum().item()
        return u * 2.0


def found(name: str, function: Any, *points: Tensor) -> list[Finding]:
    return list(NAMES[name](context_at(function, *points)))


@pytest.mark.parametrize("name", NAMES)
def test_derivative_that_batches_passes(name: str) -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x.sin() @ y, x.sum()

    assert found(name, function, numbers((3, 4), 0), numbers((4, 2), 1)) == [
        Finding(name, Verdict.PASS, "batched and single derivatives agree")
    ]


@pytest.mark.parametrize(("name", "side"), [("batched reverse", "input"), ("batched forward", "output")])
def test_wrong_vmap_rule_names_output_and_input(name: str, side: str) -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x * y.sum(), x.sum() + Twice.apply(y)

    (finding,) = found(name, function, numbers((3,), 0), numbers((5,), 1))
    assert (finding.check, finding.verdict) == (name, Verdict.FAIL)
    assert finding.headline == f"the batched derivative for {side} 1 differs from the one computed alone"
    assert (finding.facts["output"], finding.facts["input"]) == (1, 1)
    assert finding.facts["found"] != finding.facts["expected"]


@pytest.mark.parametrize("name", NAMES)
def test_derivative_that_cannot_be_mapped_is_reported_with_what_it_raised(name: str) -> None:
    (finding,) = found(name, Unmappable.apply, numbers((3,), 0))
    assert (finding.check, finding.verdict) == (name, Verdict.FAIL)
    assert finding.headline == "the derivative cannot be computed for several directions at once"
    assert finding.facts["raised"]


def test_parts_that_cannot_be_batched_are_named() -> None:
    findings = batched(context_at(Unmappable.apply, numbers((3,), 0)))
    refused = [finding.headline.partition(" cannot")[0] for finding in findings if "cannot" in finding.headline]
    assert refused[:2] == ["grad_outputs", "mapped grad_outputs"]


class Squared(torch.autograd.Function):
    """Squares with a rule for batches that torch makes."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x * x

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * grad_output


def test_function_with_a_noise_of_its_own_is_not_blamed_for_batches() -> None:
    calls = itertools.count()

    def noisy(x: Tensor) -> Tensor:
        return Squared.apply(x) + 1e-4 * math.sin(next(calls))

    findings = list(batched(context_at(noisy, numbers((3,), 0))))
    assert Verdict.FAIL not in [finding.verdict for finding in findings]
    assert "values: the function gives others in each call" in [finding.headline for finding in findings]


@pytest.mark.parametrize("name", NAMES)
def test_function_without_derivative_is_not_asked(name: str) -> None:
    assert found(name, torch.Tensor.detach, numbers((3,), 0)) == []


@pytest.mark.parametrize("name", NAMES)
def test_infinite_derivatives_that_are_equal_pass(name: str) -> None:
    (finding,) = found(name, lambda x: x * torch.inf, numbers((3,), 0))
    assert finding.verdict is Verdict.PASS


@pytest.mark.parametrize("name", NAMES)
def test_wrong_pair_of_output_and_input_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        return x * y, y * z

    context = context_at(function, numbers((2,), 0), numbers((2,), 1), numbers((2,), 2))
    problem = context.problem
    output, input = problem.codomain.slices[1], problem.domain.slices[2]
    source, target = (output, input) if name == "batched reverse" else (input, output)
    method, alone = ("vjp_batched", "vjp") if name == "batched reverse" else ("jvp_batched", "jvp")

    def spoiled(directions: list[Tensor]) -> list[Tensor]:
        results = [getattr(problem, alone)(direction) for direction in directions]
        for result, direction in zip(results, directions, strict=True):
            result[target] *= 1.0 + direction[source].sign()
        return results

    monkeypatch.setattr(problem, method, spoiled)
    (finding,) = NAMES[name](context)
    assert finding.verdict is Verdict.FAIL
    assert (finding.facts["output"], finding.facts["input"]) == (1, 2)


def test_operator_without_batching_rule_causes_no_warning() -> None:
    x = torch.linspace(-1.0, 1.0, 24, dtype=torch.float64).reshape(1, 2, 3, 4)
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            gradvet.check(lambda x: nn.functional.scaled_dot_product_attention(x, x, x), x, checks=["batched"], seed=1)
    finally:
        torch.set_warn_always(before)
    assert [str(one.message) for one in caught] == []
