"""Right functions with kinks: away from them, near them, and exactly at them.

At a kink every value between the slopes from below and from above is right. The classical check compares with the mean
of the two and rejects most of them.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.gallery import proofs
from tests.gallery.case import Case, Function, right
from tests.gallery.inputs import at, normal, point, spread


def triangle_wave(x: Tensor) -> Tensor:
    return (x - 2 * torch.round(x / 2)).abs()


def clamped_square(x: Tensor) -> Tensor:
    return x.clamp(0, 1) ** 2


def largest_per_row(x: Tensor) -> Tensor:
    return x.max(-1).values


def spread_evenly(x: Tensor) -> Tensor:
    return x.amax(-1)


def middle(x: Tensor) -> Tensor:
    return x.median(-1).values


def ascending(x: Tensor) -> Tensor:
    return torch.sort(x).values


def running_largest(x: Tensor) -> Tensor:
    return torch.cummax(x, -1).values


def pooled(x: Tensor) -> Tensor:
    return F.max_pool1d(x[None], 2)[0]


def length(x: Tensor) -> Tensor:
    return x.norm()


def hinge(x: Tensor) -> Tensor:
    return (1 - x).clamp(min=0).sum()


def floor_and_fraction(x: Tensor) -> Tensor:
    return torch.floor(x) + (x - torch.floor(x)) ** 2


def dead_zone(x: Tensor) -> Tensor:
    return F.softshrink(x, 0.5)


def clipped(x: Tensor) -> Tensor:
    return x.clamp(-1, 1)


def chosen(a: Tensor, b: Tensor) -> Tensor:
    return torch.where(a > b, a, b)


def network(x: Tensor) -> Tensor:
    """Two layers of relu with seeded weights."""
    generator = torch.Generator().manual_seed(3)
    w1, w2 = (torch.randn(5, 5, generator=generator, dtype=x.dtype) for _ in range(2))
    return torch.relu(w2 @ torch.relu(w1 @ x))


def _at_kink(name: str, why: str, function: Function, *values: object) -> Case:
    return right(
        name,
        why,
        at(function, point, *values),
        reference=function,
        drop_in=False,
        proof=proofs.one_sided_slopes,
    )


CASES = (
    right("relu_away_from_zero", "Kinked somewhere else.", at(torch.relu, point, [-1.2, 0.5, 2.0, -0.3])),
    right("relu_network", "Random inputs are almost never at a kink.", at(network, normal, (5,))),
    right("relu_1e_5_from_zero", "The kink is ten steps away.", at(torch.relu, point, [1e-5, -1e-5, 1.0])),
    right(
        "relu_within_the_step",
        "The classical step straddles the kink; a smaller one does not.",
        at(torch.relu, point, [4e-7, -4e-7, 1.0]),
        drop_in=False,
        proof=proofs.differences(1e-8),
    ),
    _at_kink("relu_at_zero", "0 is a fair choice between 0 and 1.", torch.relu, [-1.0, 0.0, 2.0]),
    _at_kink("leaky_relu_at_zero", "0.1 or 1, but not their sum.", lambda x: F.leaky_relu(x, 0.1), [-1.0, 0.0, 2.0]),
    _at_kink("relu6_at_both_ends", "Kinks at 0 and at 6.", F.relu6, [0.0, 6.0, 3.0]),
    right(
        "abs_at_zero",
        "torch gives 0, the mean of -1 and 1.",
        at(torch.abs, point, [-1.0, 0.0, 2.0]),
        reference=torch.abs,
        proof=proofs.one_sided_slopes,
    ),
    _at_kink("clamp_at_its_bounds", "Inside or outside: both are fair at the bound.", clipped, [-1.0, 0.3, 1.0, 2.0]),
    _at_kink("hardtanh_at_its_bounds", "The other choice at the same kink.", F.hardtanh, [-1.0, 0.3, 1.0]),
    _at_kink("softshrink_at_its_bounds", "A dead zone with two ends.", dead_zone, [-0.5, 0.0, 0.5, 2.0]),
    _at_kink("hardsigmoid_at_its_bounds", "Kinks at -3 and 3.", F.hardsigmoid, [-3.0, 0.0, 3.0]),
    _at_kink(
        "tied_max_to_one",
        "One of the tied entries gets everything.",
        largest_per_row,
        [[1.5, 1.5, 0.2], [0.1, -2.0, 0.1]],
    ),
    right(
        "tied_amax_shared",
        "The tied entries share: that is the mean of the slopes for a pair.",
        at(spread_evenly, point, [[1.5, 1.5, 0.2], [0.1, -2.0, 0.1]]),
        reference=spread_evenly,
        proof=proofs.one_sided_slopes,
    ),
    _at_kink(
        "tied_amax_of_three", "A third each, where the mean of the slopes is one half.", spread_evenly, [1.5, 1.5, 1.5]
    ),
    right(
        "tied_maximum_shared",
        "One half each.",
        at(torch.maximum, point, [0.5, 1.0], [0.5, 0.2]),
        reference=torch.maximum,
        proof=proofs.one_sided_slopes,
    ),
    _at_kink("tied_where", "The comparison decides for one side.", chosen, [0.5, 1.0], [0.5, 0.2]),
    _at_kink("sort_of_ties", "Equal entries are sorted in some order.", ascending, [0.3, -1.0, 0.3, 2.0]),
    _at_kink("median_of_ties", "One of the equal entries is the middle.", middle, [0.3, 2.0, -1.0, 0.3]),
    _at_kink("cummax_of_ties", "A later equal entry takes over.", running_largest, [0.3, 1.0, 1.0, 0.2]),
    _at_kink("max_pool_of_ties", "The first of two equal entries wins.", pooled, [[0.3, 0.3, 1.0, -1.0]]),
    _at_kink("hinge_at_margin", "Between -1 and 0.", hinge, [0.5, 1.0, 1.7]),
    _at_kink("prelu_at_zero", "A slope that is an input itself.", F.prelu, [[-1.0, 0.0, 2.0]], [0.3]),
    right(
        "norm_at_zero",
        "A cone: 0 is the mean of all slopes.",
        at(length, point, [0.0, 0.0]),
        reference=length,
        proof=proofs.one_sided_slopes,
    ),
    right(
        "smooth_l1_at_its_joint",
        "Slope continuous, curvature not.",
        at(lambda x: F.smooth_l1_loss(x, torch.zeros_like(x)), point, [-1.0, 0.3, 1.0]),
    ),
    _at_kink(
        "square_of_clamp_at_both_edges",
        "At 0 the slope is continuous, at 1 it is not; at 2 the output is constant.",
        clamped_square,
        [0.0, 1.0, 0.5, 2.0],
    ),
    right("elu_at_zero", "Smooth to first order at 0.", at(F.elu, point, [-1.0, 0.0, 2.0])),
    right("celu_at_zero", "Smooth at 0 for every alpha.", at(lambda x: F.celu(x, 2.0), point, [-1.0, 0.0, 2.0])),
    right(
        "floor_and_fraction_between_jumps",
        "Jumps at the integers, smooth between.",
        at(floor_and_fraction, point, [0.3, 1.6, -2.4]),
    ),
    right("triangle_wave_between_peaks", "Slopes of ±1.", at(triangle_wave, point, [0.3, 1.6, -2.4])),
    right(
        "floor_between_integers",
        "Constant around the point: zero is the slope.",
        at(torch.floor, spread, -9.3, 8.9, 25),
    ),
    right(
        "rounded_in_float32",
        "Stairs a quarter wide, among which many inputs move together.",
        at(lambda x: (torch.round(4 * x) / 4).sum(), normal, (60,), dtype=torch.float32),
        dtype=torch.float32,
    ),
    right(
        "count_above_a_threshold_in_bfloat16",
        "Which elements are counted changes farther away.",
        at(lambda x: (x > 0.3).to(x).sum(-1) + 0 * x.sum(-1), normal, (4, 9), dtype=torch.bfloat16),
        dtype=torch.bfloat16,
    ),
    right("sort_of_distinct", "A permutation.", at(ascending, normal, (6,)), order=2),
    right("topk_of_distinct", "A selection, with its indices beside it.", at(lambda x: torch.topk(x, 3), normal, (6,))),
    right(
        "huber_at_its_threshold",
        "Its derivative is continuous at errors of exactly 2.",
        at(lambda x: F.huber_loss(x, torch.zeros_like(x), delta=2.0), point, [2.0, -1.0, 3.0, -2.0, 0.0, -4.0, 1.0]),
    ),
    right(
        "ramp_of_a_clamp_at_its_bound",
        "Kinks beside zeros of a square, whose curvature is all that they show.",
        at(lambda x: x * x.clamp(-2, 2), point, [-5.0, -1.0, -2.0, 2.0, 0.0, 1.0, 3.0, 0.0, -3.0, 2.0]),
        reference=lambda x: torch.where(x.abs() > 2, 2 * x.abs(), x * x),
        drop_in=False,
        proof=proofs.one_sided_slopes,
    ),
    right(
        "huber_on_both_sides",
        "Quadratic within, linear without.",
        at(lambda x: F.huber_loss(x, torch.zeros_like(x), delta=0.5), normal, (6,)),
    ),
)
