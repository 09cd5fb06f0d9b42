"""The prices of torch in `core/probe_plans.py` are compared with what torch evaluates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.gradcheck import gradcheck as torch_gradcheck

from gradvet.core import probe_plans
from gradvet.core.modes import REVERSE
from gradvet.core.problem import Problem
from tests.functions import with_vjp

from .wrong_jacobians import context_at, numbers

Function = Callable[[Tensor], Any]

FUNCTIONS: list[Function] = [
    torch.sin,
    torch.sum,
    lambda x: (x.sin(), x.sum()),
    lambda x: (x[:1] * x[1:2], x, x.cos()),
    lambda x: torch.complex(x.cos(), x.sin()),
    lambda x: (torch.complex(x.cos(), x.sin()), torch.complex(x, x * x)),
]


class Counted:
    """A function whose calls and backward passes are counted, spoiled if asked for."""

    def __init__(self, function: Function, *, wrong: bool = False) -> None:
        self.function, self.wrong, self.evaluations = function, wrong, 0

    def __call__(self, x: Tensor) -> Any:
        self.evaluations += 1
        y = x.clone()
        if y.requires_grad:
            y.register_hook(self._pass)
        return self.function(1.1 * y - 0.1 * y.detach() if self.wrong else y)

    def _pass(self, gradient: Tensor) -> None:
        self.evaluations += 1


def evaluations(function: Function, x: Tensor, *, wrong: bool = False, **options: Any) -> int:
    counted = Counted(function, wrong=wrong)
    assert torch_gradcheck(counted, x, raise_exception=False, **options) is not wrong
    return counted.evaluations


def problem_of(function: Function, size: int) -> Problem:
    return context_at(function, numbers((size,), 1)).problem


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("size", [2, 7])
def test_price_of_torch_is_what_torch_evaluates(function: Function, size: int) -> None:
    found, problem = evaluations(function, numbers((size,), 1).requires_grad_()), problem_of(function, size)
    assert found - 2 <= probe_plans.torch_price(problem, REVERSE) <= found + len(problem.codomain.leaves)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("size", [2, 7])
def test_price_of_a_refusal_by_torch_is_what_torch_evaluates(function: Function, size: int) -> None:
    found, problem = evaluations(function, numbers((size,), 1).requires_grad_(), wrong=True), problem_of(function, size)
    assert 1 + probe_plans.torch_refusal_price(problem, REVERSE) == found


@pytest.mark.parametrize("function", FUNCTIONS)
def test_price_of_fast_mode_is_at_most_what_torch_evaluates(function: Function) -> None:
    found = evaluations(function, numbers((7,), 1).requires_grad_(), fast_mode=True)
    assert probe_plans.torch_fast_price(problem_of(function, 7), REVERSE) <= found


def test_certificate_of_few_entries_is_not_tried() -> None:
    assert probe_plans.certificate_evaluations(problem_of(torch.sin, 2), REVERSE) == (0.0, 0.0)
    assert min(probe_plans.certificate_evaluations(problem_of(torch.sin, 10), REVERSE)) >= 2.0


def test_custom_rules_are_repeated_about_as_often_as_there_are_rows() -> None:
    sine = with_vjp(torch.sin, lambda v, x: v * x.cos())

    assert probe_plans.repetitions(problem_of(torch.sin, 10)) == 0
    assert [probe_plans.repetitions(problem_of(sine, size)) for size in (2, 10, 100)] == [0, 7, 50]
