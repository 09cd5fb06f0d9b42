"""F8: conventions at a kink, a tie or a boundary that give a value outside the one-sided slopes.

Any value between the slopes from below and from above would be a fair choice; these are not.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tests.gallery import witnesses
from tests.gallery.case import Case
from tests.gallery.inputs import at, normal, point
from tests.gallery.mutants import rule, wrong_where

AT_KINK = frozenset({"reverse", "points"})


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


def flat_twin(x: Tensor) -> Tensor:
    """Rounding is locally constant."""
    return torch.round(4 * x.detach()) / 4 + 0 * x


def ascending(x: Tensor) -> Tensor:
    return torch.sort(x).values


def ascending_by_value(v: Tensor, x: Tensor) -> Tensor:
    """Finds the place of an entry by its value: equal entries share all their places."""
    return ((x[:, None] == torch.sort(x).values[None, :]).to(v) * v).sum(1)


def hinge(margin: Tensor) -> Tensor:
    return (1 - margin).clamp(min=0).sum()


CASES = (
    Case(
        "leaky_with_both_slopes_at_zero",
        "F8",
        at(rule(leaky, leaky_with_both_slopes_at_zero), point, [-1.2, 0.0, 0.8]),
        "The slopes 0.1 and 1 add up to 1.1 where both masks hold.",
        twin=leaky,
        findings=AT_KINK,
        special="x == 0",
        witness=witnesses.one_sided_slopes,
    ),
    Case(
        "leaky_with_both_slopes_at_unseen_zero",
        "F8",
        at(rule(leaky, leaky_with_both_slopes_at_zero), normal, (5,)),
        "Padding and dead units are exactly zero; random inputs are not.",
        twin=leaky,
        findings=frozenset({"points"}),
        drop_in=False,
        special="x == 0",
        witness=witnesses.one_sided_slopes,
        shown_at=lambda: point([-1.2, 0.0, 0.8, 0.0, 0.3]),
    ),
    Case(
        "largest_to_every_tie",
        "F8",
        at(rule(largest, largest_to_every_tie), point, [[1.5, 0.2, 1.5, 1.5], [0.1, -0.4, -2.0, 0.1]]),
        "Each tied entry alone could have slope 1, but all together must not have more than 1.",
        twin=largest,
        findings=AT_KINK,
        special="tied entries",
        witness=witnesses.one_sided_slopes,
    ),
    Case(
        "clip_minus_one_at_bound",
        "F8",
        at(rule(clip, clip_minus_one_at_bound), point, [-1.0, 0.3, 1.0, 2.0]),
        "At the bound the slope lies between 0 and 1.",
        twin=clip,
        findings=AT_KINK,
        special="x == 1",
        witness=witnesses.one_sided_slopes,
    ),
    Case(
        "magnitude_two_at_zero",
        "F8",
        at(rule(magnitude, magnitude_two_at_zero), point, [-1.2, 0.0, 0.8]),
        "2 is no subgradient of |x| at 0.",
        twin=magnitude,
        findings=AT_KINK,
        special="x == 0",
        witness=witnesses.one_sided_slopes,
    ),
    Case(
        "larger_to_both",
        "F8",
        at(rule(larger, larger_to_both), point, [0.5, 1.0, -2.0], [0.5, 0.2, -2.0]),
        "Equal arguments get the whole gradient each.",
        twin=larger,
        findings=AT_KINK,
        special="a == b",
        witness=witnesses.one_sided_slopes,
    ),
    Case(
        "smooth_l1_with_gap",
        "F8",
        at(rule(smooth_l1, smooth_l1_with_gap), point, [-1.0, 0.3, 1.0, 2.0]),
        "Two strict masks leave out the boundary, where the slope is 1 from both sides.",
        twin=smooth_l1,
        special="|x| == 1",
    ),
    Case(
        "smooth_l1_counted_twice",
        "F8",
        at(rule(smooth_l1, smooth_l1_counted_twice), normal, (5,)),
        "Two inclusive masks count the boundary twice.",
        twin=smooth_l1,
        findings=frozenset({"points"}),
        drop_in=False,
        special="|x| == 1",
        shown_at=lambda: point([-1.0, 0.3, 1.0, 2.0, 1.0]),
    ),
    Case(
        "table_flat_at_knots",
        "F8",
        at(wrong_where(table, lambda x: x == x.round()), point, [0.5, 1.0, 2.0, 2.5]),
        "At a knot between slopes 1 and 3 the slope is not 0.",
        twin=table,
        findings=AT_KINK,
        special="x at a knot",
        witness=witnesses.one_sided_slopes,
    ),
    Case(
        "rounding_straight_through",
        "F8",
        at(rule(rounding, rounding_straight_through), normal, (5,)),
        "The straight-through estimator is useful and is not the derivative, which is 0.",
        twin=flat_twin,
    ),
    Case(
        "ascending_by_value",
        "F8",
        at(rule(ascending, ascending_by_value), point, [0.3, -1.0, 0.3, 2.0]),
        "Equal entries are told apart by their place, not by their value.",
        twin=ascending,
        findings=AT_KINK,
        special="tied entries",
        witness=witnesses.one_sided_slopes,
    ),
    Case(
        "hinge_doubled_at_margin",
        "F8",
        at(wrong_where(hinge, lambda x: x == 1, -1.0), point, [[0.5, 1.0], [1.0, 1.7]]),
        "At the margin the loss may fall or stay; here its gradient points up.",
        twin=hinge,
        findings=AT_KINK,
        special="margin == 1",
        witness=witnesses.one_sided_slopes,
    ),
)
