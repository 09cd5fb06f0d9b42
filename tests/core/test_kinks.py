"""Kinks, told from curves and from noise."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gradvet.core.context import Context
from gradvet.core.kinks import bent_rows, exclude_kinks
from gradvet.core.modes import REVERSE
from tests.core.trials import Elementwise, point, trial_of, written


@pytest.mark.parametrize(
    ("function", "bent"),
    [
        (torch.abs, True),
        (lambda x: -torch.relu(x), True),
        (lambda x: 1.0 + x + 1e-3 * x.abs(), True),
        (lambda x: 1e4 * x + 1e-3 * x.abs(), False),
        (torch.exp, False),
        (lambda x: x**2, False),
        (lambda x: 1e9 + x, False),
        (lambda x: 0.0 * x, False),
    ],
)
def test_bend_is_a_kink_if_it_is_no_curve_no_noise_and_no_trifle(function: Elementwise, bent: bool) -> None:
    context = trial_of(lambda x: torch.stack([3.0 * x[0], function(x[0])]), point(0.0))
    found = bent_rows(context, context.first)
    assert ([False, False] if found is None else found.tolist()) == [False, bent]


def test_coarse_formats_leave_kinks_to_the_ladder() -> None:
    context = trial_of(torch.abs, point(0.0, dtype=torch.float32))
    assert bent_rows(context, context.first) is None


def test_columns_at_a_kink_are_set_aside_with_their_likes_and_noted() -> None:
    def function(x: Tensor) -> Tensor:
        return (x - 2.0).abs() + (x + 2.0).abs()

    context = trial_of(function, point(2.0, 1.0, -2.0, 0.5, 2.0))
    columns, wrong = exclude_kinks(context, REVERSE, context.first.u, context.cotangents[0])
    assert columns.tolist() == [True, False, True, False, True]
    assert wrong is None
    (note,) = context.record.notes
    assert "and at 2 more of the same size" in note


def test_single_kink_has_no_likes() -> None:
    context = trial_of(lambda x: (x - 2.0).abs(), point(1.0, 2.0, 3.0))
    columns, wrong = exclude_kinks(context, REVERSE, context.first.u, context.cotangents[0])
    assert columns.tolist() == [False, True, False]
    assert wrong is None
    assert context.record.notes == ["kink at input 0 [1]: the derivative there is held to the slopes on both sides"]


@pytest.mark.parametrize(("slope", "fails"), [(-1.0, False), (0.7, False), (1.0, False), (1.2, True), (-1.2, True)])
def test_entry_at_a_kink_is_wrong_outside_of_its_slopes(slope: float, fails: bool) -> None:
    context = trial_of(written(torch.abs, lambda x: torch.where(x == 0.0, slope, torch.sign(x))), point(0.5, 0.0, 1.0))
    _, wrong = exclude_kinks(context, REVERSE, context.first.u, context.cotangents[0])
    assert (wrong is not None) is fails
    if wrong is not None:
        assert (wrong.row, wrong.column) == (1, 1)
        assert wrong.derivative == pytest.approx(slope)


def largest(share: float) -> Callable[[Tensor], Tensor]:
    """The largest of three numbers; the first and the last are tied, and have this share of the gradient each."""

    class Largest(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return x.amax()

        @staticmethod
        def backward(ctx: object, v: Tensor) -> Tensor:  # type: ignore[override]
            return v * torch.tensor([share, 0.0, share], dtype=v.dtype)

    return Largest.apply  # type: ignore[no-any-return]


@pytest.mark.parametrize(("share", "fails"), [(0.5, False), (1.0, True)])
def test_tied_entries_may_share_the_gradient_but_not_all_have_it(share: float, fails: bool) -> None:
    context = trial_of(largest(share), point(2.0, 1.0, 2.0))
    columns, wrong = exclude_kinks(context, REVERSE, context.first.u, context.cotangents[0])
    assert columns.tolist() == [True, False, True]
    assert (wrong is not None) is fails
    if wrong is not None:
        assert abs(wrong.derivative) > abs(wrong.numerical)


def test_tied_entries_are_reported_with_the_slopes_of_all_that_grow_together(monkeypatch: pytest.MonkeyPatch) -> None:
    context = trial_of(largest(1.0), point(2.0, 1.0, 2.0))
    u, cotangent = context.first.u, context.cotangents[0]
    monkeypatch.setattr(Context, "joint_direction", lambda context: torch.tensor([1.0, 1.0, 0.5], dtype=torch.float64))
    _, wrong = exclude_kinks(context, REVERSE, u, cotangent)
    assert wrong is not None
    # The largest grows by 1 and shrinks by 0.5; both together would be the sum of the two.
    assert (wrong.derivative, wrong.numerical) == (pytest.approx(1.5), pytest.approx(0.75))


@pytest.mark.parametrize(("slope", "fails"), [(0.5, False), (1.5, True)])
def test_likes_of_a_kink_are_judged_too(slope: float, fails: bool) -> None:
    def claimed(x: Tensor) -> Tensor:
        return torch.tensor([0.0, 1.0, slope, 1.0], dtype=x.dtype)

    context = trial_of(written(torch.abs, claimed), point(0.0, 2.0, 0.0, 3.0))
    _, wrong = exclude_kinks(context, REVERSE, context.first.u, context.cotangents[0])
    assert (wrong is not None) is fails
    if wrong is not None:
        assert (wrong.row, wrong.column) == (2, 2)
