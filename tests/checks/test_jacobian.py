"""Reverse and forward mode against differences, as findings."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor

import gradvet
from gradvet.checks.jacobian import (
    BUILTIN_RULES,
    IMPRECISE,
    KINK,
    MISS_RATIO,
    PRINTED,
    drop_in_forward,
    drop_in_reverse,
    forward,
    reverse,
)
from gradvet.core.events import listening
from gradvet.core.probe_plans import Plan, miss_probability
from gradvet.core.results import Finding, Verdict
from gradvet.core.runner import CheckFunction
from tests.core.contexts import context_of, point
from tests.core.wrong_jacobians import Matrix, context_at, curved, linear, numbers
from tests.functions import with_derivative, with_vjp

MODES = {"reverse": drop_in_reverse, "forward": drop_in_forward}


def only(check: CheckFunction, *arguments: Any, **options: Any) -> Finding:
    (finding,) = check(context_at(*arguments, **options))
    return finding


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_right_derivative_passes(mode: str, dtype: torch.dtype) -> None:
    A = numbers((5, 4), 0, dtype)
    for function in (linear, curved):
        finding = only(MODES[mode], function(A, torch.zeros_like(A)), numbers((4,), 1, dtype))
        assert (finding.check, finding.verdict, finding.mismatches) == (mode, Verdict.PASS, ())
        assert finding.headline == f"{mode} mode agrees with finite differences"


@pytest.mark.parametrize("mode", MODES)
def test_wrong_entry_is_named_with_both_values(mode: str) -> None:
    A, error = numbers((5, 4), 0), torch.zeros(5, 4, dtype=torch.float64)
    error[3, 1] = 0.25
    finding = only(MODES[mode], linear(A, error), numbers((4,), 1))
    assert (finding.check, finding.verdict) == (mode, Verdict.FAIL)
    assert finding.headline == f"{mode} mode disagrees with finite differences in 1 of 20 entries"
    (mismatch,) = finding.mismatches
    assert str(mismatch) == "d output 0 [3] / d input 0 [1]"
    assert mismatch.derivative == pytest.approx(float(A[3, 1]) + 0.25)
    assert mismatch.numerical == pytest.approx(float(A[3, 1]))
    assert mismatch.allowed == pytest.approx(1e-5 + 1e-3 * abs(float(A[3, 1])))
    assert abs(mismatch.numerical - float(A[3, 1])) <= mismatch.error < 1e-6
    facts = dict(finding.facts)
    assert torch.allclose(torch.tensor(facts.pop("numerical")).double(), A, atol=1e-6)
    assert torch.allclose(torch.tensor(facts.pop("derivative")).double(), A + error, atol=1e-6)
    assert facts.pop("largest") == pytest.approx(0.25)
    assert facts.pop("block")["rows"] == [f"output 0 [{i}]" for i in range(5)]
    assert facts == {"output": 0, "input": 0, "part": "", "wrong": 1, "entries": 20, "complete": True}
    assert finding.advice.startswith("A single entry is wrong")


@pytest.mark.parametrize("mode", MODES)
def test_pair_of_leaves_is_the_first_that_disagrees(mode: str) -> None:
    A, B = numbers((3, 4), 0), numbers((3, 2), 1)

    def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        right = A @ x + B @ y
        return right, Matrix.apply(x, A, A) + Matrix.apply(y, B, 2.0 * B)

    finding = only(MODES[mode], function, numbers((4,), 2), numbers((2,), 3))
    assert (finding.facts["output"], finding.facts["input"]) == (1, 1)
    assert finding.facts["wrong"] == finding.facts["entries"] == 6
    assert str(finding.mismatches[0].output).startswith("output 1 ")
    assert str(finding.mismatches[0].input).startswith("input 1 ")
    assert "The ratio is 2" in finding.advice


@pytest.mark.parametrize("mode", MODES)
def test_imaginary_part_is_reported_before_the_real_one(mode: str) -> None:
    A = numbers((3, 4), 0, torch.complex128)
    finding = only(MODES[mode], linear(A, 0.5 * A), numbers((4,), 1, torch.complex128))
    assert finding.facts["part"] == "imag"
    # 6 × 8 coordinates; those of the inputs (reverse) or of the outputs (forward) count in pairs.
    assert finding.facts["entries"] == 24
    assert finding.facts["wrong"] == 24


def test_missing_conjugate_is_named() -> None:
    A = numbers((3, 4), 0, torch.complex128)
    finding = only(drop_in_reverse, linear(A, A.conj() - A), numbers((4,), 1, torch.complex128))
    assert finding.verdict is Verdict.FAIL
    assert "look for a missing or an extra conj" in finding.advice


@pytest.mark.parametrize("mode", MODES)
def test_only_small_jacobians_are_part_of_the_finding(mode: str) -> None:
    for rows, shown in ((PRINTED // 4, True), (PRINTED // 4 + 1, False)):
        A = numbers((rows, 4), 0)
        finding = only(MODES[mode], linear(A, A), numbers((4,), 1))
        assert finding.verdict is Verdict.FAIL
        assert ("numerical" in finding.facts, "derivative" in finding.facts) == (shown, shown)
        assert "The ratio is 2 everywhere" in finding.advice


def test_differences_too_coarse_to_tell_say_so() -> None:
    x = numbers((4,), 0)
    finding = only(drop_in_reverse, lambda x: x.sin() + 1e8, x)
    assert finding.verdict is Verdict.FAIL
    assert finding.advice == IMPRECISE
    assert only(drop_in_reverse, lambda x: 2.0 * x.sin() + 1e3, x).verdict is Verdict.PASS


def test_function_that_is_not_finite_is_told_from_a_coarse_one() -> None:
    # The largest number whose exponential is finite: on one side of it the function overflows.
    x = torch.tensor([709.78271289338397, 0.0, 1.0], dtype=torch.float64)
    finding = only(drop_in_reverse, torch.exp, x)
    assert finding.verdict is Verdict.FAIL
    assert finding.mismatches[0].numerical == torch.inf
    assert finding.advice.startswith("The function itself is not finite close to this point")


@pytest.mark.parametrize("mode", MODES)
def test_nothing_to_compare_passes(mode: str) -> None:
    for shape in ((0,), (3, 0)):
        finding = only(MODES[mode], torch.sin, torch.zeros(shape, dtype=torch.float64))
        assert (finding.verdict, finding.headline) == (Verdict.PASS, "there is no entry to compare")


@pytest.mark.parametrize("check", [reverse, forward])
def test_nothing_to_compare_with_error_bars_is_inconclusive(check: CheckFunction) -> None:
    nothing, some = point(), point(1.0, 2.0)
    for context in (context_of(torch.sin, nothing), context_of(lambda x: x[:0], some)):
        (finding,) = check(context)
        assert (finding.verdict, finding.headline) == (Verdict.INCONCLUSIVE, "there is no entry to compare")
        assert list(context.record.ledger.rows()) == []


def test_input_that_is_not_used_counts_as_zero() -> None:
    for check in MODES.values():
        assert only(check, lambda x, y: x.sin(), numbers((3,), 0), numbers((4,), 1)).verdict is Verdict.PASS


def test_derivative_that_depends_on_which_outputs_have_cotangents_is_found() -> None:
    def vjp(first: Tensor | None, second: Tensor | None, x: Tensor) -> Tensor:
        if first is None or second is None:  # forgets the other one
            return torch.zeros_like(x)
        return 2.0 * first + 3.0 * second

    pair = with_vjp(lambda x: (x * 2.0, x * 3.0), vjp, materialize=False)

    assert only(drop_in_reverse, pair, numbers((4,), 0)).verdict is Verdict.FAIL


@pytest.mark.parametrize("factor", [1.5, -2.0])
def test_figure_of_the_steps_is_held_against_the_disagreement_of_the_worst_entry(factor: float) -> None:
    A = numbers((3, 4), 0)
    with listening(lambda report: None):
        (finding,) = drop_in_reverse(context_at(linear(A, factor * A), numbers((4,), 1)))
    worst = finding.mismatches[0]
    assert finding.facts["sweep"]["gap"] == abs(worst.derivative - worst.numerical)


wrong = with_derivative(torch.sin, lambda x: 1.1 * torch.cos(x))


@pytest.mark.parametrize(("check", "mode"), [(reverse, "reverse"), (forward, "forward")])
def test_headline_counts_entries_where_there_are_several(check: object, mode: str) -> None:
    (one,) = check(context_of(wrong, point(1.0)))  # type: ignore[operator]
    start = f"{mode} mode disagrees with finite differences"
    assert re.fullmatch(rf"{start}; the largest error is [\d.]+ \(10 % of the entry\)", one.headline)
    (several,) = check(context_of(wrong, point(1.0, 2.0)))  # type: ignore[operator]
    assert several.headline.startswith(f"{start} in all 2 nonzero entries that were compared; the largest")
    assert several.advice


@pytest.mark.parametrize(("outputs", "cotangents"), [(1, None), (2, 2), (3, 2)])
def test_miss_probability_is_that_of_the_probes(outputs: int, cotangents: int | None) -> None:
    (finding,) = reverse(context_of(torch.sin, point(*range(1, outputs + 1))))
    assert finding.verdict is Verdict.PASS
    assert finding.facts["miss"] == miss_probability(MISS_RATIO, Plan(2, cotangents), spread=1.0)


def test_mismatch_has_an_allowance_of_one_and_a_half_error_bars() -> None:
    (finding,) = reverse(context_of(wrong, point(1.0)))
    (mismatch,) = finding.mismatches
    assert mismatch.derivative == pytest.approx(1.1 * mismatch.numerical)
    assert mismatch.allowed == pytest.approx(1.5 * mismatch.error)


swapped = with_vjp(lambda a, b: a * b.sin(), lambda dy, a, b: (dy * a * b.cos(), dy * b.sin()))


class HalfWrong(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return a * b.sin()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        return dy * b.sin(), 0.5 * dy * a * b.cos()


def test_swapped_gradients_are_named() -> None:
    inputs = point(0.3, -1.2, 2.0), point(1.0, 0.5, -0.7)
    (failure,) = gradvet.check(swapped, inputs, checks=("reverse",)).failures
    assert failure.advice.startswith("The gradients of input 0 and input 1 are swapped")
    (failure,) = gradvet.check(HalfWrong, inputs, checks=("reverse",)).failures
    assert "swapped" not in failure.advice


wrong_at_kink = with_vjp(torch.abs, lambda dy, x: dy * torch.where(x == 0, 2.0, x.sign()))


def test_wrong_value_at_a_kink_is_not_compared_with_a_slope() -> None:
    (failure,) = gradvet.check(wrong_at_kink, point(1.0, 0.0, -2.0), checks=("reverse",)).failures
    assert failure.advice == KINK


def test_function_without_rules_of_its_own_gets_advice_about_detach() -> None:
    (failure,) = gradvet.check(lambda x: x.sin() * x.detach(), point(0.5, 1.0), checks=("reverse",)).failures
    assert failure.advice.endswith(BUILTIN_RULES)
    (failure,) = gradvet.check(HalfWrong, (point(0.5, 1.0), point(2.0, 0.1)), checks=("reverse",)).failures
    assert BUILTIN_RULES not in failure.advice


def test_worst_entries_come_first() -> None:
    (failure,) = gradvet.check(HalfWrong, (point(0.3, 9.0, 2.0), point(1.0, 0.5, -0.7)), checks=("reverse",)).failures
    sizes = [abs(entry.derivative - entry.numerical) for entry in failure.mismatches]
    assert sizes == sorted(sizes, reverse=True)
    assert str(failure.mismatches[0].input) == "input 1 [1]"


def test_code_of_a_failure_is_the_derivative_that_is_wrong() -> None:
    report = gradvet.check(lambda a, b: HalfWrong.apply(a.exp(), b), (point(0.5, 1.0), point(2.0, 0.1)))
    assert report.source is not None
    assert "0.5 * dy" in report.source.code
    layer = torch.nn.Linear(2, 3).double()
    layer.register_full_backward_hook(lambda module, given, found: (2.0 * given[0],))
    assert gradvet.check(layer, point(0.5, 1.0), blame=False).source is None
    blamed = gradvet.check(layer, point(0.5, 1.0)).source
    assert blamed is not None
    assert "register_full_backward_hook" in blamed.code
