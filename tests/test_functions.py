"""The helpers for derivatives by hand give torch exactly the rules that they are given."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from tests.functions import (
    Function,
    with_cotangents_changed,
    with_derivative,
    with_gradients_changed,
    with_jvp,
    with_matrix,
    with_rules,
    with_vjp,
)

A = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 7.0]], dtype=torch.float64)


def point() -> Tensor:
    return torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64, requires_grad=True)


def gradient(function: Function, v: Tensor) -> list[float]:
    x = point()
    return torch.autograd.grad(function(x), x, v)[0].tolist()


@pytest.mark.parametrize(
    "function",
    [
        with_derivative(torch.sin, torch.cos),
        with_matrix(lambda x: A @ x, A),
        with_rules(torch.sin, lambda v, x: v * torch.cos(x), lambda u, x: u * torch.cos(x), vmap=True),
    ],
    ids=["derivative", "matrix", "rules"],
)
def test_right_rules_are_right_in_both_modes(function: Function) -> None:
    assert gradcheck(function, point(), check_forward_ad=True)


def test_rules_are_used_as_given() -> None:
    v, u = torch.ones(3, dtype=torch.float64), torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    assert gradient(with_vjp(torch.sin, lambda v, x: 5.0 * v), v) == [5.0] * 3
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(point().detach(), u)
        tangent = torch.autograd.forward_ad.unpack_dual(with_jvp(torch.sin, lambda u, x: 3.0 * u)(dual)).tangent
        assert tangent is not None
        assert tangent.tolist() == [3.0, 6.0, 12.0]


def test_changes_apply_to_the_true_gradient_and_to_the_cotangent() -> None:
    v = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    doubled = with_gradients_changed(torch.square, lambda gradients, inputs: [2.0 * gradients[0]])
    assert gradient(doubled, v) == (4.0 * v * point()).tolist()
    assert gradient(with_cotangents_changed(torch.square, torch.ones_like), v) == (2.0 * point()).tolist()


def test_undefined_cotangents_are_zeros_or_none() -> None:
    seen = []

    def vjp(first: Tensor | None, second: Tensor | None, x: Tensor) -> Tensor:
        seen.append(first is None)
        return torch.zeros_like(x)

    for materialize in (True, False):
        x = point()
        with_vjp(lambda x: (x.sin(), x.cos()), vjp, materialize=materialize)(x)[1].sum().backward()
    assert seen == [False, True]


def test_other_arguments_reach_the_rule_and_get_no_gradient() -> None:
    function = with_vjp(lambda x, factor: factor * x, lambda v, x, factor: factor * v)
    assert gradient(lambda x: function(x, 3.0), torch.ones(3, dtype=torch.float64)) == [3.0] * 3
