"""What was seen of torch's own rules is not asked again; what is the user's own is asked every time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import gradvet
from gradvet.core.observation import observed
from gradvet.core.problem import Cost, Trait
from gradvet.core.results import Report
from gradvet.frontends.torch import acquaintance
from gradvet.frontends.torch.problem import TorchProblem


@pytest.fixture(autouse=True)
def unacquainted() -> Iterator[None]:
    acquaintance.forget()
    yield
    acquaintance.forget()


def point() -> Tensor:
    return torch.linspace(0.3, 1.2, 12, dtype=torch.float64).requires_grad_()


def problem(function: Callable[..., Any], *inputs: Tensor) -> TorchProblem:
    return TorchProblem(function, inputs, seed=1)


def cost_of(function: Callable[..., Any], **settings: bool) -> Cost:
    reports: list[Report] = []
    with observed(reports.append, seed=3):
        assert gradvet.gradcheck(function, point(), **settings)
    return reports[-1].cost


class Squared(torch.autograd.Function):
    """x², whose backward sees nothing where only one cotangent is not zero, if it is `fussy`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, fussy: bool) -> Tensor:
        ctx.save_for_backward(x)
        ctx.fussy = fussy
        return x.square()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        alone = ctx.fussy and int(torch.count_nonzero(g)) == 1
        return torch.zeros_like(x) if alone else 2.0 * x * g, None


@pytest.mark.parametrize("trait", Trait)
def test_graph_is_known_when_every_kind_of_its_nodes_was_seen(trait: Trait) -> None:
    both = problem(lambda x: x.sin().exp(), point())
    assert not both.is_known(trait)
    problem(lambda x: x.sin(), point()).remember(trait)
    assert not both.is_known(trait)
    problem(lambda x: x.exp(), point()).remember(trait)
    assert both.is_known(trait)


@pytest.mark.parametrize("trait", Trait)
def test_rules_of_the_users_own_are_never_known(trait: Trait) -> None:
    for _ in range(2):
        own = problem(lambda x: Squared.apply(x, False), point())
        assert not own.is_known(trait)
        own.remember(trait)


@pytest.mark.parametrize("trait", Trait)
def test_rules_behind_a_hook_are_never_known(trait: Trait) -> None:
    def hooked(x: Tensor) -> Tensor:
        y = x.sin()
        y.register_hook(lambda g: g)
        return y.exp()

    problem(lambda x: x.sin().exp(), point()).remember(trait)
    assert not problem(hooked, point()).is_known(trait)
    with_hook = point()
    with_hook.register_hook(lambda g: g)
    assert not problem(lambda x: x.sin().exp(), with_hook).is_known(trait)


def test_second_check_of_the_same_kinds_needs_fewer_backward_passes() -> None:
    first, second = cost_of(torch.sin), cost_of(lambda x: x.sin())
    assert (first.forwards, first.pulls) == (second.forwards, second.pulls + 2)
    assert cost_of(lambda x: Squared.apply(x, False)).pulls == cost_of(lambda x: Squared.apply(x, False)).pulls


def test_missing_cotangent_alone_is_asked_for_in_fast_mode() -> None:
    first, second = cost_of(torch.sin, fast_mode=True), cost_of(torch.sin, fast_mode=True)
    assert first.pulls == second.pulls + 1


def test_own_rule_among_known_kinds_is_still_asked_for_a_single_row() -> None:
    assert gradvet.gradcheck(lambda x: x.sin(), point())
    assert gradvet.gradcheck(lambda x: Squared.apply(x.sin(), False), point())
    with pytest.raises(gradvet.GradcheckError):
        gradvet.gradcheck(lambda x: Squared.apply(x.sin(), True), point())
