"""Custom operators and compilation in the same report.

Also tests `frontends/torch/__init__.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import gradvet
from gradvet.core.results import Report, Verdict
from tests.functions import compiler_scaling_gradients

DOUBLE = torch.float64
ONLY = ["reverse", "opcheck"]


def inputs(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)


def said(report: Report, check: str) -> dict[Verdict, str]:
    return {finding.verdict: finding.headline for finding in report.findings if finding.check == check}


@pytest.fixture
def library() -> Iterator[Callable[..., Any]]:
    """Makes custom operators that are gone after the test."""
    with torch.library._scoped_library("gradvet_test", "FRAGMENT"):
        yield lambda name, function: _operator(f"gradvet_test::{name}", function)


def _operator(name: str, function: Callable[[Tensor], Tensor]) -> Any:
    def square(x: Tensor) -> Tensor:
        return function(x)

    operator = torch.library.custom_op(name, mutates_args=())(square)
    operator.register_autograd(
        lambda ctx, v: 2 * v * ctx.saved_tensors[0],
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
    return operator


def test_registration_of_a_sound_operator_is_said(library: Any) -> None:
    operator = library("sound", lambda x: x * x)
    operator.register_fake(torch.empty_like)
    for function in (operator, torch.ops.gradvet_test.sound, torch.ops.gradvet_test.sound.default):
        report = gradvet.check(function, inputs(3), checks=ONLY)
        assert report.verdict is Verdict.PASS
        assert "schema" in said(report, "opcheck")[Verdict.PASS]
        assert any(line.startswith("opcheck: schema") for line in report.coverage)


def test_missing_fake_implementation_is_no_mistake_in_a_gradient(library: Any) -> None:
    report = gradvet.check(library("bare", lambda x: x * x), inputs(3), checks=ONLY)
    assert report.verdict is Verdict.PASS
    assert "no fake implementation" in said(report, "opcheck")[Verdict.SKIPPED]


def test_operator_that_changes_its_input_in_silence_is_failed(library: Any) -> None:
    def writes(x: Tensor) -> Tensor:
        y = x * x
        x.add_(0.0).mul_(1.5)
        return y

    report = gradvet.check(library("writes", writes), inputs(3), checks=ONLY)
    assert "schema" in said(report, "opcheck")[Verdict.FAIL]


def test_wrong_fake_implementation_is_failed(library: Any) -> None:
    operator = library("misshapen", lambda x: x * x)
    operator.register_fake(lambda x: x.new_empty(x.shape[0] + 1))
    failures = gradvet.check(operator, inputs(3), checks=ONLY).failures
    assert "faketensor" in {finding.facts["test"] for finding in failures}


def test_what_is_no_custom_operator_has_no_registration() -> None:
    for function in (torch.sin, torch.ops.aten.sin.default, lambda x: x):
        assert said(gradvet.check(function, inputs(3), checks=ONLY), "opcheck") == {}


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tracing alone, without the seconds that generating code takes."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("function", [lambda x: torch.sin(x) * x, torch.nn.Linear(4, 2).double()])
def test_function_that_compiles_to_itself_passes(function: Callable[..., Any]) -> None:
    report = gradvet.check(function, inputs(3, 4), compile=True, points=None)
    assert "same values and gradients" in said(report, "compile")[Verdict.PASS]
    assert "inputs, compile=True, points=None" in report.replay


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize(
    ("change", "what"),
    [(lambda y: 2 * y, "the compiled function differs"), (lambda y: y.detach() * 2 - y, "gradient of the compiled")],
)
def test_function_that_is_another_one_when_compiled_fails(change: Callable[[Tensor], Tensor], what: str) -> None:
    def function(x: Tensor) -> Tensor:
        y = torch.sin(x)
        return change(y) if torch.compiler.is_compiling() else y

    report = gradvet.check(function, inputs(4), compile=True, points=None)
    assert what in said(report, "compile")[Verdict.FAIL]


@pytest.mark.usefixtures("traced")
def test_random_function_is_not_compared_when_compiled() -> None:
    report = gradvet.check(torch.nn.functional.dropout, inputs(9), compile=True, points=None)
    assert "random" in said(report, "compile")[Verdict.SKIPPED]


def test_nothing_is_compiled_unless_asked_for() -> None:
    assert said(gradvet.check(torch.sin, inputs(3)), "compile") == {}


def test_thorough_check_has_second_order_all_points_and_a_finer_resolution() -> None:
    report = gradvet.check(torch.sin, inputs(3), thorough=True, seed=1)
    assert {"reverse-over-reverse", "points"} <= {finding.check for finding in report.findings}
    assert "order=2" in report.replay
    assert "resolution=0.0001" in report.replay
    assert "points='thorough'" in report.replay
    assert "order=2" not in gradvet.check(torch.sin, inputs(3), thorough=True, order=1).replay


# Compiled code.


class Bent(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 3, dtype=DOUBLE), torch.nn.Linear(3, 2, dtype=DOUBLE)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x)))  # type: ignore[no-any-return]


COMPILED = {"a function": lambda: lambda x: torch.tanh(x) * x, "a module": Bent}


@pytest.mark.parametrize("kind", COMPILED)
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_wrong_gradient_of_compiled_code_fails(kind: str, dtype: torch.dtype) -> None:
    torch.compiler.reset()
    made = COMPILED[kind]()
    function = made.to(dtype) if isinstance(made, torch.nn.Module) else made
    x = inputs(5, 4).to(dtype)
    report = gradvet.check(torch.compile(function, backend=compiler_scaling_gradients(2.0)), x, seed=1)
    assert report.verdict is Verdict.FAIL
    assert (
        gradvet.check(torch.compile(function, backend=compiler_scaling_gradients(1.0)), x, seed=1).verdict
        is Verdict.PASS
    )


@pytest.mark.parametrize("kind", COMPILED)
def test_check_leaves_a_compiled_module_compiled(kind: str) -> None:
    torch.compiler.reset()
    function, x = torch.compile(COMPILED[kind](), backend="aot_eager"), inputs(5, 4).requires_grad_()
    before = type(function(x).grad_fn).__name__
    gradvet.gradcheck(function, (x,), check_batched_grad=True)
    gradvet.check(function, x, seed=1)
    assert before.startswith("CompiledFunction")
    assert type(function(x).grad_fn).__name__ == before
    # Another version can still be compiled.
    assert type(function(x[:3]).grad_fn).__name__ == before
