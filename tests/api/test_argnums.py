"""`argnums` chooses the positional arguments that are checked."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradvet
from tests.functions import with_vjp


def numbers(*shape: int) -> Tensor:
    return torch.linspace(-0.7, 1.3, torch.Size(shape).numel(), dtype=torch.float64).reshape(shape)


def wrong_in_the_second(x: Tensor, y: Tensor) -> Tensor:
    return x.sin() + y * y.detach()


def inputs_of(report: gradvet.Report) -> set[str]:
    return {row.input for row in report.ledger}


@pytest.mark.parametrize(
    ("argnums", "verdict"), [(0, "pass"), (1, "fail"), ((0, 1), "fail"), (-1, "fail"), ([0], "pass")]
)
@pytest.mark.parametrize("requires_grad", [(False, False), (True, True), (False, True), (True, False)])
def test_only_chosen_arguments_are_checked(argnums: Any, verdict: str, requires_grad: tuple[bool, bool]) -> None:
    x, y = (numbers(3).requires_grad_(on) for on in requires_grad)
    if argnums == (0, 1) and requires_grad == (True, False):
        verdict = "pass"  # of the chosen ones, those that require grad are checked
    report = gradvet.check(wrong_in_the_second, (x, y), argnums=argnums, seed=0)
    assert report.verdict.value == verdict
    assert f"argnums={tuple(n % 2 for n in ([argnums] if isinstance(argnums, int) else argnums))!r}" in report.replay
    assert (x.requires_grad, y.requires_grad) == requires_grad


def test_tensors_in_a_chosen_container_are_checked() -> None:
    report = gradvet.check(lambda pair, y: pair[0] * pair[1] * y, ([numbers(3), numbers(3)], numbers(3)), argnums=0)
    assert report.passed
    assert inputs_of(report) == {"input 0[0]", "input 0[1]"}


def test_parameters_of_a_module_are_constants() -> None:
    class Wrong(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(numbers(3))

        def forward(self, x: Tensor) -> Tensor:
            return with_vjp(lambda x, w: x * w, lambda v, x, w: (v * w, 2.0 * v * x))(x, self.weight)  # type: ignore[no-any-return]

    assert gradvet.check(Wrong(), numbers(3), seed=0).verdict is gradvet.Verdict.FAIL
    report = gradvet.check(Wrong(), numbers(3), argnums=0, seed=0)
    assert report.passed
    assert inputs_of(report) == {"input 0"}


def test_low_precision_is_checked_for_the_chosen_argument_alone() -> None:
    x, y = numbers(3).float(), numbers(3).float()
    report = gradvet.check(wrong_in_the_second, (x, y), argnums=0, seed=0)
    assert report.passed
    assert inputs_of(report) == {"input 0"}
