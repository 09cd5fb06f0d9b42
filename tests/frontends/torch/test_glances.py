"""A glance at several points: each is answered for by itself, however many share a backward pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradvet.core.problem import Cost
from gradvet.frontends.torch.binding import Binding, Request, bind
from gradvet.frontends.torch.glances import Glance


class Picky(torch.autograd.Function):
    """The square; not finite above 100, refused above 50, its gradient doubled above 10, its backward refused at 7."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        if bool(((x > 50.0) & (x < 100.0)).any()):
            raise ValueError("too large")
        ctx.save_for_backward(x)
        return torch.where(x > 100.0, torch.inf, x * x)

    @staticmethod
    def backward(ctx: Any, *v: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        if bool((x == 7.0).any()):
            raise RuntimeError("not here")
        return v[0] * 2.0 * x * torch.where(x > 10.0, 2.0, 1.0)


def at(*numbers: float) -> Binding:
    x = torch.tensor(numbers, dtype=torch.float64, requires_grad=True)
    return bind(Request(lambda x: Picky.apply(x), (x,)))  # type: ignore[no-untyped-call]


def glance() -> Glance:
    return Glance(1e6, 0.0, 0, Cost())


def test_points_of_one_shape_share_a_backward_pass() -> None:
    found = glance()
    assert found.agree([at(1.0, 2.0), at(-3.0, 0.0), at(5.0, 0.5)]) == [True] * 3
    assert (found.cost.forwards, found.cost.pulls) == (6, 1)


def test_points_of_other_shapes_are_apart() -> None:
    found = glance()
    assert found.agree([at(1.0, 2.0), at(-3.0), at(4.0, 5.0)]) == [True] * 3
    assert found.cost.pulls == 2


def test_wrong_point_is_told_from_right_ones_beside_it() -> None:
    assert glance().agree([at(1.0, 2.0), at(3.0, 20.0), at(4.0, 5.0)]) == [True, False, True]


def test_point_that_is_refused_or_not_finite_does_not_spoil_the_others() -> None:
    assert glance().agree([at(1.0, 60.0), at(1.0, 200.0), at(4.0, 5.0)]) == [False, False, True]


def test_backward_pass_that_raises_is_asked_for_each_point_alone() -> None:
    assert glance().agree([at(1.0, 2.0), at(3.0, 7.0), at(4.0, 5.0)]) == [True, False, True]


def test_no_point_agrees_with_nothing() -> None:
    assert glance().agree([]) == []


def test_where_there_is_no_number_a_backward_pass_must_run() -> None:
    class Unready(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return 2.0 * x

        @staticmethod
        def backward(ctx: Any, *v: Tensor) -> Tensor:
            return 2.0 * v[0] / v[0].max()

    empty = torch.zeros(0, dtype=torch.float64, requires_grad=True)
    unready = bind(Request(lambda x: Unready.apply(x), (empty,)))  # type: ignore[no-untyped-call]
    assert glance().agree([at()]) == [True]
    assert glance().agree([unready]) == [False]


def test_points_of_very_different_size_are_held_to_bars_of_their_own() -> None:
    def tilted(x: Tensor) -> Tensor:
        return x * torch.tensor([1.0, 1.0], dtype=x.dtype) + 0.2 * (x - x.detach()) * (x.detach().abs() < 1e-3)

    points = [torch.tensor(numbers, dtype=torch.float64) for numbers in ([1e-5, 2e-5], [1e4, 2e4])]
    bindings = [bind(Request(tilted, (point.requires_grad_(),))) for point in points]
    assert glance().agree(bindings) == [False, True]
