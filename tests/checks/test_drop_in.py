"""Derivatives against differences by a tolerance, as the drop-in functions compare them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from gradvet.checks.drop_in import IMPRECISE, PRINTED, RANDOM, drop_in_forward, drop_in_reverse
from gradvet.core.events import listening
from gradvet.core.results import Finding, Verdict
from gradvet.core.runner import CheckFunction
from tests.core.wrong_jacobians import Matrix, context_at, curved, linear, numbers
from tests.functions import with_vjp

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
    assert finding.facts["sweep"]["chosen"] == 1e-6
    assert finding.facts["block"]["rows"] == [f"output 0 [{i}]" for i in range(3)]


def test_random_function_is_called_random_and_not_wrong_off_the_diagonal() -> None:
    finding = only(drop_in_reverse, torch.nn.functional.dropout, numbers((6,), 0))
    assert (finding.verdict, finding.advice) == (Verdict.FAIL, RANDOM)
    wrong = only(drop_in_reverse, with_vjp(torch.sin, lambda v, x: 1e7 * v), numbers((6,), 0))
    assert wrong.verdict is Verdict.FAIL
    assert wrong.advice != RANDOM
