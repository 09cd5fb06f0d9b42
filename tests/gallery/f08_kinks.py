"""F8: conventions at a kink, a tie or a boundary that give a value outside the one-sided slopes.

Any value between the slopes from below and from above would be a fair choice; these are not.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tests.functions import with_vjp
from tests.gallery import proofs
from tests.gallery.case import Family
from tests.gallery.inputs import normal, point
from tests.gallery.mutants import wrong_where


def leaky(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, 0.1 * x)


def leaky_with_both_slopes_at_zero(v: Tensor, x: Tensor) -> Tensor:
    """Both masks hold at 0 and add up."""
    return v * ((x >= 0).to(x) + 0.1 * (x <= 0).to(x))


def largest(x: Tensor) -> Tensor:
    return x.amax(-1)


def largest_to_every_tie(v: Tensor, x: Tensor) -> Tensor:
    return v[:, None] * (x == x.amax(-1, keepdim=True)).to(x)


def clip(x: Tensor) -> Tensor:
    return x.clamp(-1, 1)


def clip_minus_one_at_bound(v: Tensor, x: Tensor) -> Tensor:
    """Inside minus at the bound: -1 at the bound itself."""
    return v * ((x.abs() < 1).to(x) - (x.abs() == 1).to(x))


def magnitude(x: Tensor) -> Tensor:
    return x.abs()


def magnitude_two_at_zero(v: Tensor, x: Tensor) -> Tensor:
    return v * (torch.where(x >= 0, 1.0, -1.0) + (x == 0).to(x))


def larger(a: Tensor, b: Tensor) -> Tensor:
    return torch.maximum(a, b)


def larger_to_both(v: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    return v * (a >= b).to(v), v * (b >= a).to(v)


def smooth_l1(x: Tensor) -> Tensor:
    return torch.where(x.abs() <= 1, 0.5 * x * x, x.abs() - 0.5)


def smooth_l1_with_gap(v: Tensor, x: Tensor) -> Tensor:
    """Strict masks on both sides leave out |x| = 1, where the function is smooth."""
    return v * (x * (x.abs() < 1).to(x) + x.sign() * (x.abs() > 1).to(x))


def smooth_l1_counted_twice(v: Tensor, x: Tensor) -> Tensor:
    return v * (x * (x.abs() <= 1).to(x) + x.sign() * (x.abs() >= 1).to(x))


def table(x: Tensor) -> Tensor:
    """Linear interpolation in a table with rising values."""
    knots = torch.tensor([0.0, 1.0, 2.0, 3.0], dtype=x.dtype)
    values = torch.tensor([0.0, 1.0, 4.0, 9.0], dtype=x.dtype)
    left = torch.searchsorted(knots, x.detach(), right=True).clamp(1, 3) - 1
    return values[left] + (values[left + 1] - values[left]) * (x - knots[left])


def rounding(x: Tensor) -> Tensor:
    return torch.round(4 * x) / 4


def rounding_straight_through(v: Tensor, x: Tensor) -> Tensor:
    return v


def flat_reference(x: Tensor) -> Tensor:
    """Rounding is locally constant."""
    return torch.round(4 * x.detach()) / 4 + 0 * x


def ascending(x: Tensor) -> Tensor:
    return torch.sort(x).values


def ascending_by_value(v: Tensor, x: Tensor) -> Tensor:
    """Finds the place of an entry by its value: equal entries share all their places."""
    return ((x[:, None] == torch.sort(x).values[None, :]).to(v) * v).sum(1)


def hinge(margin: Tensor) -> Tensor:
    # Not clamp, whose slope at its bound is another one from torch 2.14 or 2.15 on.
    return torch.where(margin > 1, 0.0, 1 - margin).sum()


wrong = Family("F8", finds={"reverse", "points"})

CASES = (
    wrong(
        "leaky_with_both_slopes_at_zero",
        "The slopes 0.1 and 1 add up to 1.1 where both masks hold.",
        special="x == 0",
        proof=proofs.one_sided_slopes,
    ).at(with_vjp(leaky, leaky_with_both_slopes_at_zero), leaky, point, [-1.2, 0.0, 0.8]),
    wrong(
        "leaky_with_both_slopes_at_unseen_zero",
        "Padding and dead units are exactly zero; random inputs are not.",
        finds={"points"},
        drop_in=False,
        special="x == 0",
        proof=proofs.one_sided_slopes,
        shown_at=lambda: point([-1.2, 0.0, 0.8, 0.0, 0.3]),
    ).at(with_vjp(leaky, leaky_with_both_slopes_at_zero), leaky, normal, (5,)),
    wrong(
        "largest_to_every_tie",
        "Each tied entry alone could have slope 1, but all together must not have more than 1.",
        special="tied entries",
        proof=proofs.one_sided_slopes,
    ).at(with_vjp(largest, largest_to_every_tie), largest, point, [[1.5, 0.2, 1.5, 1.5], [0.1, -0.4, -2.0, 0.1]]),
    wrong(
        "clip_minus_one_at_bound",
        "At the bound the slope lies between 0 and 1.",
        special="x == 1",
        proof=proofs.one_sided_slopes,
    ).at(with_vjp(clip, clip_minus_one_at_bound), clip, point, [-1.0, 0.3, 1.0, 2.0]),
    wrong(
        "magnitude_two_at_zero",
        "2 is no subgradient of |x| at 0.",
        special="x == 0",
        proof=proofs.one_sided_slopes,
    ).at(with_vjp(magnitude, magnitude_two_at_zero), magnitude, point, [-1.2, 0.0, 0.8]),
    wrong(
        "larger_to_both",
        "Equal arguments get the whole gradient each.",
        special="a == b",
        proof=proofs.one_sided_slopes,
    ).at(with_vjp(larger, larger_to_both), larger, point, [0.5, 1.0, -2.0], [0.5, 0.2, -2.0]),
    wrong(
        "smooth_l1_with_gap",
        "Two strict masks leave out the boundary, where the slope is 1 from both sides.",
        finds={"reverse"},
        special="|x| == 1",
    ).at(with_vjp(smooth_l1, smooth_l1_with_gap), smooth_l1, point, [-1.0, 0.3, 1.0, 2.0]),
    wrong(
        "smooth_l1_counted_twice",
        "Two inclusive masks count the boundary twice.",
        finds={"points"},
        drop_in=False,
        special="|x| == 1",
        shown_at=lambda: point([-1.0, 0.3, 1.0, 2.0, 1.0]),
    ).at(with_vjp(smooth_l1, smooth_l1_counted_twice), smooth_l1, normal, (5,)),
    wrong(
        "table_flat_at_knots",
        "At a knot between slopes 1 and 3 the slope is not 0.",
        special="x at a knot",
        proof=proofs.one_sided_slopes,
    ).at(wrong_where(table, lambda x: x == x.round()), table, point, [0.5, 1.0, 2.0, 2.5]),
    wrong(
        "rounding_straight_through",
        "The straight-through estimator is useful and is not the derivative, which is 0.",
        finds={"reverse"},
    ).at(with_vjp(rounding, rounding_straight_through), flat_reference, normal, (5,)),
    wrong(
        "ascending_by_value",
        "Equal entries are told apart by their place, not by their value.",
        special="tied entries",
        proof=proofs.one_sided_slopes,
    ).at(with_vjp(ascending, ascending_by_value), ascending, point, [0.3, -1.0, 0.3, 2.0]),
    wrong(
        "hinge_doubled_at_margin",
        "At the margin the loss may fall or stay; here its gradient points up.",
        special="margin == 1",
        proof=proofs.one_sided_slopes,
    ).at(wrong_where(hinge, lambda x: x == 1, -1.0), hinge, point, [[0.5, 1.0], [1.0, 1.7]]),
)
