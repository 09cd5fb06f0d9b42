"""Every finding that can fail has the first line that existing tests match on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from gradvet import GradcheckError, gradcheck
from gradvet.compat.messages import PHRASES, message
from gradvet.core.results import Finding, Mismatch, Verdict
from gradvet.core.vectors import Location
from tests.core.wrong_jacobians import linear, numbers
from tests.functions import with_vjp

FACTS: dict[str, Any] = {"output": 1, "input": 2, "part": ""}


def text(check: str, **facts: Any) -> str:
    return message(Finding(check, Verdict.FAIL, "the headline", facts={**FACTS, **facts}))


@pytest.mark.parametrize(
    ("check", "facts", "phrase"),
    [
        ("reverse", {}, "Jacobian mismatch for output 1 with respect to input 2,"),
        (
            "reverse",
            {"part": "imag"},
            "While considering the imaginary part of complex outputs only, Jacobian mismatch",
        ),
        ("reverse", {"part": "real"}, "While considering the real part of complex outputs only, Jacobian mismatch"),
        ("forward", {}, "Jacobian computed with forward mode mismatch for output 1 with respect to input 2,"),
        ("forward", {"part": "imag"}, "While considering the imaginary part of complex inputs only, Jacobian computed"),
        ("constancy", {}, "Numerical gradient for function expected to be zero"),
        ("determinism", {"spread": 0.5, "tolerance": 0.0}, "Backward is not reentrant"),
        ("metadata", {"attribute": "layout", "found": "a", "expected": "b"}, "grad is incorrect layout (a is not b)"),
        ("metadata", {"attribute": "dtype", "found": "a", "expected": "b"}, "grad is incorrect type"),
        ("metadata", {"attribute": "shape", "found": "a", "expected": "b"}, "grad is incorrect size"),
        ("metadata", {"attribute": "device", "found": "a", "expected": "b"}, "grad is incorrect device"),
        (
            "metadata",
            {"attribute": "sparse_dim", "found": "1", "expected": "2", "kind": "sparse"},
            "grad is sparse tensor, but has incorrect sparse_dim 1, expected 2",
        ),
        ("tangent types", {}, "Forward AD gradient has dtype mismatch."),
        ("zero grad_output", {}, "backward not multiplied by grad_output"),
        ("batched reverse", {"raised": "x"}, "While computing batched gradients, got: x"),
        ("batched reverse", {"found": "a", "expected": "b"}, "For output 1 and input 2:"),
        ("batched forward", {"raised": "x"}, "While computing batched gradients, got: x"),
        ("undefined grad_output", {"raised": "x"}, "Expected backward function to handle undefined output grads"),
        ("undefined grad_output", {}, "Expected all input grads to be undefined or zero when all output grads"),
        ("undefined tangents", {}, "Mismatch in tangent values for output with index: 1 when input 2"),
    ],
)
def test_first_line_is_the_one_that_is_known(check: str, facts: dict[str, Any], phrase: str) -> None:
    assert text(check, **facts).startswith(phrase)
    assert "the headline" in text(check, **facts)


def test_no_phrase_is_without_a_test() -> None:
    (marks,) = (mark for mark in test_first_line_is_the_one_that_is_known.pytestmark if mark.name == "parametrize")
    assert {case[0] for case in marks.args[1]} == set(PHRASES)


def test_worst_entry_advice_and_matrices_follow() -> None:
    place = Location(0, "output 0", "[1]"), Location(0, "input 0", "[0]")
    finding = Finding(
        "reverse",
        Verdict.FAIL,
        "the headline",
        (Mismatch(*place, derivative=4.4, numerical=4.0, error=2e-10, allowed=1e-3),),
        {**FACTS, "numerical": [[1.0, 2.0], [4.0, 5.0]], "derivative": [[1.0, 2.0], [4.4, 5.0]], "largest": 0.4},
        "the advice",
    )
    lines = message(finding).splitlines()
    assert "  worst: d output 0 [1] / d input 0 [0]" in lines
    assert "  the advice" in lines
    # One line for each input element, as the classical check prints them.
    assert lines[lines.index("numerical:") + 1 :][:2] == ["  [1, 4]", "  [2, 5]"]
    assert lines[lines.index("analytical:") + 1 :][:2] == ["  [1, 4.4]", "  [2, 5]"]
    assert lines[-1] == "The max per-element difference (slow mode) is: 0.4"


def test_both_modes_show_the_same_message() -> None:
    A = numbers((4, 2), 0)

    def said(fast_mode: bool) -> str:
        with pytest.raises(GradcheckError) as caught:
            gradcheck(linear(A, A.flip(0) - A), numbers((2,), 1).requires_grad_(), fast_mode=fast_mode)
        return str(caught.value)

    assert said(False) == said(True)
    assert "output elements in reverse order" in said(False)


def test_complex_matrices_are_shown_in_real_coordinates() -> None:
    def function(z: Tensor) -> Tensor:
        return z * z.detach()

    z = torch.tensor([1.0 + 2.0j], requires_grad=True, dtype=torch.complex128)
    with pytest.raises(GradcheckError) as caught:
        gradcheck(function, z)
    assert "numerical:\n  [2, 4]\n  [-4, 2]" in str(caught.value)
    assert "analytical:\n  [1, 2]\n  [-2, 1]" in str(caught.value)


def test_missing_factor_is_named_in_a_refusal() -> None:
    wrong = with_vjp(lambda a, b: a.sin() * b, lambda dy, a, b: (dy * a.cos(), dy * a.sin()))
    inputs = [torch.linspace(low, low + 1.0, 6, dtype=torch.float64, requires_grad=True) for low in (0.1, 0.5)]
    with pytest.raises(GradcheckError, match="The slope is the derivative times input 1: look for a factor"):
        gradcheck(wrong, inputs)
