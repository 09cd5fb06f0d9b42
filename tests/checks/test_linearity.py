"""Missing cotangents and tangents, and the zero cotangent, as findings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import gradvet
from gradvet import gradcheck
from gradvet.checks.linearity import drop_in_undefined_tangents, drop_in_zero_cotangent, undefined_cotangents
from gradvet.core.context import Context
from gradvet.core.provenance import shown_path
from gradvet.core.results import Finding, Verdict
from gradvet.core.runner import CheckFunction
from gradvet.frontends.torch.binding import drop_in_binding
from gradvet.frontends.torch.problem import TorchProblem
from gradvet.options import Options
from tests.core.wrong_jacobians import context_at, numbers
from tests.functions import with_jvp, with_vjp


class Pair(torch.autograd.Function):
    """(2x, 3x), given cotangents as they come; `treatment` says what a missing one does."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, treatment: str) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.treatment = treatment
        return x * 2.0, x * 3.0

    @staticmethod
    def backward(ctx: Any, first: Tensor | None, second: Tensor | None) -> tuple[Tensor | None, None]:
        if ctx.treatment == "raises" and second is None:
            raise RuntimeError("second is missing")
        if ctx.treatment == "adds" and second is None:
            return (torch.ones(4, dtype=torch.float64) if first is None else 2.0 * first + 1.0), None
        terms = [factor * v for factor, v in ((2.0, first), (3.0, second)) if v is not None]
        return (sum(terms[1:], terms[0]) if terms else None), None


def reverse_findings(function: Any) -> list[Finding]:
    return list(undefined_cotangents(context_at(function, numbers((4,), 0))))


def test_missing_cotangents_that_count_as_zero_pass_all_together_and_one_by_one() -> None:
    findings = reverse_findings(lambda x: Pair.apply(x, "zero"))
    assert [(finding.check, finding.verdict) for finding in findings] == [("undefined grad_output", Verdict.PASS)] * 3
    assert [finding.headline for finding in findings] == [
        "a grad_output of None for output 0, output 1 counts as zero",
        "a grad_output of None for output 0 counts as zero",
        "a grad_output of None for output 1 counts as zero",
    ]


def test_single_output_is_asked_once() -> None:
    assert len(reverse_findings(torch.sin)) == 1


def test_derivative_that_raises_without_a_cotangent_fails_with_what_it_raised() -> None:
    findings = reverse_findings(lambda x: Pair.apply(x, "raises"))
    assert [finding.verdict for finding in findings] == [Verdict.FAIL, Verdict.PASS, Verdict.FAIL]
    assert findings[2].facts["raised"] == "second is missing"
    assert findings[2].headline == "backward raises when the grad_output of output 1 is None: second is missing"


def test_derivative_that_is_not_zero_without_a_cotangent_fails() -> None:
    findings = reverse_findings(lambda x: Pair.apply(x, "adds"))
    assert [finding.verdict for finding in findings] == [Verdict.FAIL, Verdict.PASS, Verdict.FAIL]
    assert findings[2].headline == (
        "backward returns a non-zero gradient when the grad_output of output 1 is None, and zero for the rest"
    )
    assert "raised" not in findings[2].facts


def test_derivative_that_is_not_a_number_without_a_cotangent_fails() -> None:
    (finding,) = reverse_findings(normalised)
    assert finding.verdict is Verdict.FAIL


def test_function_without_derivative_is_not_asked() -> None:
    assert reverse_findings(torch.Tensor.detach) == []


def product(*, careless: bool) -> Any:
    """x · y, whose forward mode takes a missing tangent of y for ones if `careless`."""

    def jvp(dx: Tensor | None, dy: Tensor | None, x: Tensor, y: Tensor) -> Tensor:
        missing = torch.ones_like(y) if careless else torch.zeros_like(y)
        return (torch.zeros_like(x) if dx is None else dx) * y + x * (missing if dy is None else dy)

    return with_jvp(torch.mul, jvp, materialize=False)


@pytest.mark.parametrize("careless", [False, True])
def test_missing_tangent_must_count_as_zero(careless: bool) -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x.sin(), product(careless=careless)(x, y)

    context = context_at(function, numbers((3,), 0), numbers((3,), 1))
    findings = list(drop_in_undefined_tangents(context))
    if not careless:
        assert findings == []
        return
    (finding,) = findings
    assert (finding.check, finding.verdict) == ("undefined tangents", Verdict.FAIL)
    assert (finding.facts["output"], finding.facts["input"]) == (1, 1)
    assert finding.headline == "output 1 differs between a missing tangent and a zero tangent of input 1"


@pytest.mark.parametrize(("factor", "fails"), [(1.0, False), (1.0 + 1e-6, False), (1.0 + 1e-4, True), (1.5, True)])
def test_tangent_without_another_must_be_what_it_is_beside_zeros(factor: float, fails: bool) -> None:
    def jvp(dx: Tensor | None, dy: Tensor | None, x: Tensor, y: Tensor) -> Any:
        first = 0.0 if dx is None else 100.0 * dx * (factor if dy is None else 1.0)
        return first + (0.0 if dy is None else dy)

    scaled = with_jvp(lambda x, y: 100.0 * x + y, jvp, materialize=False)

    findings = list(drop_in_undefined_tangents(context_at(scaled, numbers((3,), 0), numbers((3,), 1))))
    assert bool(findings) is fails


BOTH = pytest.mark.parametrize("check", [drop_in_zero_cotangent])


def additive(amount: float) -> Any:
    """x · 2, whose gradient has a constant added to it."""
    return with_vjp(lambda x: x * 2.0, lambda v, x: v * 2.0 + amount)


def _normalised(v: Tensor, x: Tensor) -> Tensor:
    """The derivative of 2x, which scales its cotangent to one and back: 0/0 where it is zero."""
    largest = v.abs().max()
    return v / largest * 2.0 * largest


normalised = with_vjp(lambda x: x * 2.0, _normalised)


def zero_findings(
    function: Any, *, masked: bool = False, check: CheckFunction = drop_in_zero_cotangent
) -> list[Finding]:
    problem = TorchProblem(drop_in_binding(function, [numbers((4,), 0).requires_grad_()]), seed=0)
    return list(check(Context(problem, Options(seed=0, masked=masked))))


@BOTH
def test_derivative_that_is_proportional_to_its_cotangent_passes(check: CheckFunction) -> None:
    for function in (torch.sin, lambda x: (x.sin(), x.sum()), lambda x: x[:1] * 0.0):
        assert zero_findings(function, check=check) == [
            Finding("zero grad_output", Verdict.PASS, "a zero grad_output gives a zero gradient")
        ]


@BOTH
def test_smallest_constant_in_a_derivative_fails(check: CheckFunction) -> None:
    for amount in (1e-2, 1e-12):
        (finding,) = zero_findings(additive(amount), check=check)
        assert (finding.check, finding.verdict) == ("zero grad_output", Verdict.FAIL)
        assert finding.facts == {"largest": amount}
        assert finding.headline == f"a zero grad_output gives a gradient of size {amount:.3g}"


def test_masked_semantics_allow_for_roundoff() -> None:
    assert [finding.verdict for finding in zero_findings(additive(1e-9), masked=True)] == [Verdict.PASS]
    assert [finding.verdict for finding in zero_findings(additive(1e-7), masked=True)] == [Verdict.FAIL]


def test_derivative_that_is_not_a_number_at_a_zero_cotangent_fails() -> None:
    (finding,) = zero_findings(normalised)
    assert finding.verdict is Verdict.FAIL


@pytest.mark.filterwarnings("ignore:Backwards compatibility")
@pytest.mark.parametrize("check_undefined_grad", [True, False])
def test_derivative_that_is_not_a_number_at_zero_is_found_by_one_check_or_another(check_undefined_grad: bool) -> None:
    x = numbers((4,), 0).requires_grad_()
    assert not gradcheck(normalised, x, check_undefined_grad=check_undefined_grad, raise_exception=False)


@BOTH
def test_function_without_derivative_is_not_asked_with_a_zero_cotangent(check: CheckFunction) -> None:
    assert zero_findings(torch.Tensor.detach, check=check) == []


def rounded_sums(fault: float) -> Callable[[Tensor], Tensor]:
    """Twice the input, whose gradient has the roundoff of a long sum: about a hundred times that of float32."""

    def backward(g: Tensor, x: Tensor) -> Tensor:
        gradient = 2.0 * g
        if g.dtype is torch.float32:
            gradient = gradient * (1.0 + 2e-5 * torch.sin(1e5 * gradient))
        gradient[7] += fault * g[7].abs()
        return gradient

    return with_vjp(lambda x: 2.0 * x, backward)


@pytest.mark.parametrize("seed", range(1))
def test_long_sums_are_linear(seed: int) -> None:
    x = torch.linspace(1.0, 2.0, 2000)
    assert gradvet.check(rounded_sums(0.0), x, seed=seed, points=None).verdict is Verdict.PASS
    findings = {finding.check for finding in gradvet.check(rounded_sums(0.1), x, seed=seed, points=None).failures}
    assert "linearity" in findings


def test_attention_with_sharp_scores_passes() -> None:
    """In float32 the small entries of its gradient have few digits left, so those of two grad_outputs do not add up."""
    generator = torch.Generator().manual_seed(7)
    q, k, v = (torch.randn(shape, generator=generator) for shape in ((6, 8), (9, 8), (9, 5)))
    report = gradvet.check(lambda q, k, v: torch.softmax(10.0 * q @ k.mT, -1) @ v, (q, k, v), seed=7, points=None)
    assert report.verdict is Verdict.PASS, report
    assert any("torch's own rules" in note and "grad_outputs" in note for note in report.notes)


@pytest.mark.parametrize(
    "hook", [lambda g: g * 1.0, lambda g: torch.nn.functional.normalize(g, p=1.0) * g], ids=["operator", "inside torch"]
)
def test_hook_that_raises_for_none_is_named_by_its_line(hook: Callable[[Tensor], Tensor]) -> None:
    layer = torch.nn.Linear(3, 2).double()
    layer.weight.register_hook(hook)
    report = gradvet.check(layer, numbers((4, 3), 0), seed=1, blame=False)
    line = hook.__code__.co_firstlineno
    place = f"the hook at {shown_path(__file__)}:{line} raises when the grad_output of output is None"
    assert any(note.startswith(place) for note in report.notes), report.notes


class DoubledUnlessNone(torch.autograd.Function):
    """Its backward raises for a grad_output of None, as it calls a function without its ctx."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        return 2.0 * x

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        return doubled_of(grad_output)


def doubled_of(grad_output: Tensor) -> Tensor:
    return grad_output.mul(2.0)


@pytest.mark.parametrize("calls_function", [False, True], ids=["hooks alone", "beside a wrong Function"])
def test_logging_hook_that_raises_for_none_is_no_failure_beside_custom_nodes(calls_function: bool) -> None:
    norms: list[Tensor] = []
    layer = torch.nn.Linear(3, 2).double()
    layer.register_full_backward_hook(lambda module, grad_input, grad_output: None)
    if not calls_function:
        layer.weight.register_hook(lambda g: norms.append(g.norm()))
    model = torch.nn.Sequential(layer)
    model.register_forward_hook(lambda module, args, y: DoubledUnlessNone.apply(y) if calls_function else y)
    report = gradvet.check(model, numbers((4, 3), 0), seed=1, blame=False, points=None)
    assert report.verdict is (Verdict.FAIL if calls_function else Verdict.PASS), report
    assert [finding.check for finding in report.failures] == ["none_grad_output"] * calls_function
