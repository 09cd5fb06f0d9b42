"""Checks that need no differences forgive roundoff and nothing more, and have nothing to say about no numbers.

Also tests `checks/linearity.py` and `checks/transformations.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import gradvet
from gradvet import checks
from gradvet.checks.linearity import jvp_vjp_agree
from gradvet.checks.outputs import detached, values
from gradvet.checks.state import partial_requires_grad
from gradvet.checks.transformations import batched, compiled_against
from gradvet.core.context import Context
from gradvet.core.results import Finding, Verdict
from gradvet.core.runner import CheckFunction
from gradvet.frontends.torch.variants import TorchVariants
from tests.core.contexts import context_of, point
from tests.functions import with_derivative, with_rules

FAIL, PASS = Verdict.FAIL, Verdict.PASS


def vector(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def tripled(slope: float = 3.0) -> Context:
    """3x at (1, 2, 4) with this as its derivative."""
    return context_of(with_derivative(lambda x: 3.0 * x, lambda x: torch.full_like(x, slope)), point(1.0, 2.0, 4.0))


def only(findings: Any) -> Finding:
    (finding,) = findings
    assert isinstance(finding, Finding)
    return finding


@pytest.mark.parametrize(
    ("value", "verdict"), [(6.0, PASS), (6.0 + 1e-14, PASS), (6.0 + 1e-9, FAIL), (6.1, FAIL), (float("nan"), FAIL)]
)
def test_value_without_grad_mode_may_differ_by_roundoff(
    value: float, verdict: Verdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = tripled()
    monkeypatch.setattr(TorchVariants, "without_grad_mode", lambda self: vector(3.0, value, 12.0))
    finding = only(values(context))
    assert finding.verdict is verdict
    if verdict is FAIL:
        assert finding.headline.startswith("output [1] is ")
        assert finding.facts["expected"] == 6.0


def test_value_of_a_random_function_may_differ_by_what_it_wobbles(monkeypatch: pytest.MonkeyPatch) -> None:
    context = tripled()
    monkeypatch.setattr(Context, "repeat_noise", vector(0.0, 0.0, 1e-3))
    monkeypatch.setattr(TorchVariants, "without_grad_mode", lambda self: vector(3.0, 6.01, 12.0))
    assert only(values(context)).verdict is PASS
    monkeypatch.setattr(TorchVariants, "without_grad_mode", lambda self: vector(3.0, 6.1, 12.0))
    assert only(values(context)).verdict is FAIL


@pytest.mark.parametrize(("error", "verdict"), [(0.0, PASS), (1e-8, PASS), (1e-5, FAIL), (float("nan"), FAIL)])
def test_value_in_a_batch_may_differ_by_half_its_digits(
    error: float, verdict: Verdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = tripled()
    alone = vector(3.0, 6.0, 12.0, 3.0, 6.0, 12.0)
    together = alone.clone()
    together[4] += error
    monkeypatch.setattr(TorchVariants, "values_mapped", lambda self: (together, alone))
    found = [finding for finding in batched(context) if "value" in finding.headline]
    assert only(found).verdict is verdict
    if verdict is FAIL:
        assert "at output [1]: " in found[0].headline


def test_what_cannot_be_batched_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(variants: TorchVariants) -> None:
        raise RuntimeError("the first line\nthe second line")

    context = tripled()
    monkeypatch.setattr(TorchVariants, "values_mapped", refuse)
    words = [finding.headline for finding in batched(context) if finding.verdict is Verdict.SKIPPED]
    assert words == ["values cannot be batched here: the first line"]


@pytest.mark.parametrize(
    ("factor", "verdict"), [(1.0, PASS), (1.0 + 1e-10, PASS), (1.0 + 1e-5, FAIL), (0.9, FAIL), (2.0, FAIL)]
)
def test_compiled_function_may_differ_by_half_the_digits(factor: float, verdict: Verdict) -> None:
    other = context_of(
        with_derivative(lambda x: 3.0 * factor * x, lambda x: torch.full_like(x, 3.0)), point(1.0, 2.0, 4.0)
    )
    finding = only(compiled_against(other.problem)(tripled()))
    assert finding.verdict is verdict
    if verdict is FAIL:
        assert finding.headline.startswith("the compiled function differs at output [")


@pytest.mark.parametrize(("slope", "verdict"), [(3.0, PASS), (3.0 + 1e-9, PASS), (3.001, FAIL), (float("nan"), FAIL)])
def test_gradient_of_a_compiled_function_is_that_of_the_plain_one(slope: float, verdict: Verdict) -> None:
    assert only(compiled_against(tripled(slope).problem)(tripled())).verdict is verdict


def with_slopes(forward: float, reverse: float) -> Callable[[Tensor], Tensor]:
    """3x with one derivative in forward and another in reverse mode."""

    return with_rules(lambda x: 3.0 * x, lambda v, x: reverse * v, lambda u, x: forward * u)


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, PASS), (1.0 + 1e-7, PASS), (1.001, FAIL), (0.0, FAIL)])
def test_forward_and_reverse_mode_agree_to_a_hundred_thousandth(factor: float, verdict: Verdict) -> None:
    for modes in (with_slopes(3.0 * factor, 3.0), with_slopes(3.0, 3.0 * factor)):
        assert only(jvp_vjp_agree(context_of(modes, point(1.0, 2.0, 4.0)))).verdict is verdict


def test_forward_and_reverse_mode_do_not_agree_where_a_derivative_is_not_finite() -> None:
    with_nan = torch.tensor([3.0, math.nan, 3.0], dtype=torch.float64)
    nowhere = torch.full((3,), math.nan, dtype=torch.float64)
    for forward, reverse in ((9.0, with_nan), (nowhere, 3.0)):
        modes = with_rules(lambda x: 3.0 * x, lambda v, x, w=reverse: w * v, lambda u, x, w=forward: w * u)
        (finding,) = jvp_vjp_agree(context_of(modes, point(1.0, 2.0, 4.0)))
        assert finding.verdict is Verdict.SKIPPED
        assert finding.headline.startswith("not compared: a derivative")


@pytest.mark.parametrize(("factor", "inside"), [(1.0003, PASS), (1.1, FAIL), (2.0, FAIL)])
def test_forward_and_reverse_mode_may_differ_by_half_the_digits_of_a_coarser_format_inside(
    factor: float, inside: Verdict
) -> None:
    modes = with_slopes(3.0 * factor, 3.0)
    assert only(jvp_vjp_agree(context_of(modes, point(0.1, 0.2, 0.4)))).verdict is FAIL
    assert only(jvp_vjp_agree(context_of(lambda x: modes(x.float()).double(), point(0.1, 0.2, 0.4)))).verdict is inside


@pytest.mark.parametrize(("slope", "verdict"), [(0.0, PASS), (1e-14, PASS), (1e-6, Verdict.SKIPPED)])
def test_output_without_derivative_that_varies_is_told_from_roundoff(slope: float, verdict: Verdict) -> None:
    context = context_of(lambda x: (2.0 * x, 1.0 + slope * x.detach()), point(1.0, 2.0))
    finding = only(detached(context))
    assert finding.verdict is verdict
    assert finding.facts.get("outputs", []) == ([] if verdict is PASS else ["output 1"])


def test_function_that_cannot_be_called_with_one_input_alone_is_not_failed() -> None:
    def both(x: Tensor, y: Tensor) -> Tensor:
        if not y.requires_grad:
            raise RuntimeError("the second must require grad\nor else")
        return x * y

    finding = only(partial_requires_grad(context_of(both, point(1.0), point(2.0))))
    assert finding.verdict is Verdict.SKIPPED
    assert finding.headline.endswith("when only input 0 requires grad: the second must require grad")


EXACT = {check.name: check.run for check in checks.EXACT}

NUMBERS = [
    "determinism",
    "linearity",
    "grad_output_layout",
    "mutation",
    "reentrancy",
    "batched",
    "accumulation",
    "checkpoint",
]


@pytest.mark.parametrize("function", [torch.sin, lambda x: x[:0], lambda x: x.sum()])
def test_function_of_no_numbers_or_with_no_numbers_is_not_asked(function: Any) -> None:
    some = point(1.0, 2.0)
    asked = {"values", "metadata", "none_grad_output", "constancy", "detached", "partial_requires_grad"}
    for x in (point(), some) if function(some).numel() == 0 else (point(),):
        assert set(checks.runnable(checks.EXACT, context_of(function, x), has_surrogate=False)) == asked
    assert {*NUMBERS, "jvp_vjp_agree", "input_layout"} <= set(
        checks.runnable(checks.EXACT, context_of(torch.sin, some), has_surrogate=False)
    )


@pytest.mark.parametrize(
    "check",
    [EXACT[name] for name in (*NUMBERS, "values", "metadata", "none_grad_output", "jvp_vjp_agree", "input_layout")],
)
def test_right_function_gets_an_answer(check: CheckFunction) -> None:
    findings = list(check(context_of(torch.sin, torch.linspace(0.1, 1.1, 6, dtype=torch.float64).reshape(2, 3))))
    assert findings or check is EXACT["metadata"]
    assert {finding.verdict for finding in findings} <= {PASS}


class ScaledUnder(torch.autograd.Function):
    """sin(x)·w, whose first gradient has a factor if w is frozen, or if grad_output is not contiguous."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, condition: str, factor: float) -> Tensor:
        ctx.save_for_backward(x, w)
        ctx.condition, ctx.factor = condition, factor
        return x.sin() * w

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        x, w = ctx.saved_tensors
        holds = not ctx.needs_input_grad[1] if ctx.condition == "frozen" else not v.is_contiguous()
        return v * w * x.cos() * (ctx.factor if holds else 1.0), v * x.sin(), None, None


@pytest.mark.parametrize("condition", ["frozen", "strides"])
@pytest.mark.parametrize(
    ("dtype", "factor", "verdict"),
    [
        (torch.float16, 1.05, FAIL),
        (torch.float16, 0.9, FAIL),
        (torch.float16, 1.002, PASS),
        (torch.bfloat16, 1.1, FAIL),
        (torch.bfloat16, 0.8, FAIL),
        (torch.bfloat16, 1.008, PASS),
    ],
)
def test_gradient_scaled_under_a_condition_fails_in_half_precision(
    condition: str, dtype: torch.dtype, factor: float, verdict: Verdict
) -> None:
    x, w = (torch.randn(40, 3, generator=torch.Generator().manual_seed(seed)).to(dtype) for seed in (1, 2))
    report = gradvet.check(lambda x, w: ScaledUnder.apply(x, w, condition, factor), (x, w), seed=1)
    assert report.verdict is verdict


def test_gradient_of_a_workspace_that_the_next_pass_overwrites_fails_in_bfloat16() -> None:
    workspace = torch.empty(200, dtype=torch.bfloat16)

    class Exponential(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.y = torch.exp(x, out=workspace) if x.dtype is workspace.dtype else x.exp()
            return ctx.y.clone()

        @staticmethod
        def backward(ctx: Any, v: Tensor) -> Tensor:
            return v * ctx.y

    x = (0.5 * torch.randn(200, generator=torch.Generator().manual_seed(1))).bfloat16()
    report = gradvet.check(Exponential.apply, x, seed=1)
    assert "reentrancy" in {finding.check for finding in report.failures}
