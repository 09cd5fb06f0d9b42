"""F26: a wrong gradient at an entry whose value happens to be that of another entry at a kink.

Zeros and ones are where parameters begin and where padding, clipping and rectifying have their kinks. Nothing excuses
the gradient of an entry but a kink of that entry.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.functions import with_vjp
from tests.gallery import proofs
from tests.gallery.case import Family
from tests.gallery.inputs import point
from tests.gallery.mutants import scaled, wrong_where

PADDED = [[0.8, -1.2, 0.4], [0.0, 0.0, 0.0]]
"""A row of data and a row of padding."""


def gated(x: Tensor, gate: Tensor) -> Tensor:
    """A branch behind a gate that begins closed."""
    return torch.relu(x) + gate * torch.tanh(x + 0.3)


def gated_by_detached(x: Tensor, gate: Tensor) -> Tensor:
    return gated(x, gate.detach())


def clipped_and_weighted(x: Tensor, weight: Tensor) -> Tensor:
    return F.hardtanh(x) * weight


def cutoff(r: Tensor) -> Tensor:
    """Smooth up to the first derivative at 5."""
    return torch.where(r < 5, 0.5 * (torch.cos(torch.pi * r / 5) + 1), torch.zeros_like(r))


def huber(x: Tensor) -> Tensor:
    """Smooth up to the first derivative at 2 and -2."""
    return F.huber_loss(x, torch.zeros_like(x), reduction="none", delta=2.0)


def huber_too_flat_beyond(v: Tensor, x: Tensor) -> Tensor:
    return v * torch.where(x.abs() <= 2, x, 1.8 * x.sign())


def exponential_unit_too_flat_below(v: Tensor, x: Tensor) -> Tensor:
    return v * torch.where(x >= 0, 1.0, 0.9 * x.exp())


def squared_hinge(x: Tensor) -> Tensor:
    return torch.relu(1 - x) ** 2


def squared_hinge_halved_below_zero(v: Tensor, x: Tensor) -> Tensor:
    return -2.0 * v * torch.relu(1 - x) * torch.where(x < 0, 0.5, 1.0)


def ramp_of_a_clamp(x: Tensor) -> Tensor:
    """A square up to 2, where its slope is halved."""
    return x * x.clamp(-2, 2)


def clamped_and_weighted(x: Tensor, gate: Tensor) -> Tensor:
    return F.relu6(x) * gate


CLIPPED = [[-0.8, -1.0, 0.15, 1.0], [0.04, -0.8, -0.45, 1.0], [-1.0, 1.0, -0.75, 0.3]]
"""Data that was clipped at 1 before."""


def clipped_beside_square(x: Tensor, weight: Tensor) -> Tensor:
    return F.hardtanh(x) * weight**2 + x


def clipped_beside_detached_square(x: Tensor, weight: Tensor) -> Tensor:
    return clipped_beside_square(x, weight.detach())


def rectified_and_bent(x: Tensor) -> Tensor:
    """A relu of the first three entries, a sine of the others."""
    return torch.cat([torch.relu(x[:3]), torch.sin(x[3:])])


def sine_lost_at_zero(x: Tensor) -> Tensor:
    return (x == 0) & (torch.arange(len(x)) >= 3)


def clipped_and_grown(x: Tensor) -> Tensor:
    """The first two entries are clipped at 1, the others are not."""
    return torch.cat([x[:2].clamp(max=1), torch.exp(x[2:])])


def grown_lost_at_minus_one(x: Tensor) -> Tensor:
    return x == -1


def shifted_then_rectified(x: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
    """A gain of ones and a shift of zeros, as a norm begins."""
    return torch.relu(x) * gain + torch.exp(shift)


def largest_beside_table(a: Tensor, b: Tensor, table: Tensor) -> Tensor:
    return torch.maximum(a, b) + table**2


def magnitude_and_sine(x: Tensor, phase: Tensor) -> Tensor:
    return x.abs() + torch.sin(phase)


wrong = Family("F26", special="an entry of the same value is at a kink", proof=proofs.one_sided_slopes)

CASES = (
    wrong(
        "gate_of_zeros_detached_beside_padding",
        "The padding is at the kink of the relu; the gate is zero as well, is at no kink, and is never trained.",
    ).at(gated_by_detached, gated, point, PADDED, [0.0, 0.0, 0.0]),
    wrong(
        "square_of_ones_lost_beside_clamp_at_one",
        "Inputs of 1 and -1 are at kinks of hardtanh; the weights of 1 are not trained.",
    ).at(clipped_beside_detached_square, clipped_beside_square, point, CLIPPED, [1.0, 1.0, 1.0, 1.0]),
    wrong(
        "weight_of_ones_halved_beside_hardtanh_at_one",
        "An input of 1 is at the kink of hardtanh; a weight of 1 is only a factor.",
    ).at(
        scaled(clipped_and_weighted, 0.5, slot=1),
        clipped_and_weighted,
        point,
        [[1.0, 0.3, -0.6], [0.2, 1.0, 2.0]],
        [1.0, 1.0, 1.0],
    ),
    wrong(
        "sine_lost_at_zero_beside_relu_at_zero",
        "Two entries of one tensor are zero: one goes through a relu, the other through a sine of slope 1.",
    ).at(
        wrong_where(rectified_and_bent, sine_lost_at_zero), rectified_and_bent, point, [0.0, -1.0, 2.0, 0.0, 0.5, 0.0]
    ),
    wrong(
        "exponential_lost_at_minus_one_beside_clamp_at_one",
        "The same magnitude with the other sign: -1 has nothing to do with a bound at 1.",
    ).at(
        wrong_where(clipped_and_grown, grown_lost_at_minus_one),
        clipped_and_grown,
        point,
        [1.0, 0.3, -1.0, 0.2, -1.0],
    ),
    wrong(
        "shift_of_zeros_lost_beside_padding",
        "A norm begins with gains of one and shifts of zero, and padded rows are zero too.",
    ).at(
        scaled(shifted_then_rectified, 0.0, slot=2),
        shifted_then_rectified,
        point,
        PADDED,
        [1.0, 1.0, 1.0],
        [0.0, 0.0, 0.0],
    ),
    wrong(
        "table_doubled_beside_a_tie_of_the_same_value",
        "Two arguments of a maximum are tied at 0.5; the entries of a third input are 0.5 and tied with nothing.",
    ).at(
        scaled(largest_beside_table, 2.0, slot=2),
        largest_beside_table,
        point,
        [0.5, 1.0, -2.0],
        [0.5, 0.2, 0.7],
        [0.5, 0.5, 0.5],
    ),
    wrong(
        "phase_of_zeros_negated_beside_abs_at_zero",
        "The magnitude of zero is a kink; a phase of zero is the steepest point of a sine.",
    ).at(scaled(magnitude_and_sine, -1.0, slot=1), magnitude_and_sine, point, [0.0, -1.2, 0.0], [0.0, 0.0, 0.0]),
    wrong(
        "gate_of_zeros_halved_beside_clamped_values",
        "The product of two zeros bends and has no slope: over one step it seems further off than the gate is.",
    ).at(
        scaled(clamped_and_weighted, 0.5, slot=1),
        clamped_and_weighted,
        point,
        [[6.0, 0.0, 2.0, -1.0], [6.0, 0.0, 0.0, 3.0]],
        [0.0, 0.0, 0.0, 0.0],
    ),
    wrong(
        "cutoff_at_its_end_too_steep",
        "The curvature changes at the end of a cutoff: beside it a wrong factor of other elements is seen.",
    ).at(scaled(cutoff, 1.1), cutoff, point, [5.0, 1.0, 4.9, 6.0]),
    wrong(
        "huber_of_threshold_too_flat_beyond",
        "The wrong derivative jumps at errors of exactly 2, as if it were noisy; those of 3 and 4 are wrong.",
    ).at(with_vjp(huber, huber_too_flat_beyond), huber, point, [2.0, -1.0, 3.0, -2.0, 0.0, -4.0, 1.0]),
    wrong(
        "exponential_unit_too_flat_below_zeros",
        "The same at zeros, where an exponential unit is smooth.",
    ).at(with_vjp(F.elu, exponential_unit_too_flat_below), F.elu, point, [0.0, -1.0, 0.0, -2.0, 2.0, 0.0, -1.0]),
    wrong(
        "squared_hinge_halved_below_zeros",
        "The function does not change at zero at all.",
    ).at(
        with_vjp(squared_hinge, squared_hinge_halved_below_zero),
        squared_hinge,
        point,
        [0.0, -1.0, 0.0, 2.0, 1.0, 0.0, -2.0],
    ),
    wrong(
        "ramp_of_a_clamp_too_steep",
        "Zeros of a square have no slope and weigh most: their curvature hides that the kinks at 2 are at the point.",
    ).at(scaled(ramp_of_a_clamp, 1.02), ramp_of_a_clamp, point, [-5.0, -1.0, -2.0, 2.0, 0.0, 1.0, 3.0, 0.0, -3.0, 2.0]),
    wrong(
        "padding_lost_through_the_smooth_branch",
        "A padded zero at no kink: only the first row is rectified, and the padding goes through a sine.",
    ).at(
        wrong_where(
            lambda x: torch.cat([torch.relu(x[:1]), torch.sin(x[1:])]),
            lambda x: (x == 0) & (torch.arange(len(x))[:, None] > 0),
        ),
        lambda x: torch.cat([torch.relu(x[:1]), torch.sin(x[1:])]),
        point,
        [[0.0, -1.2, 0.4], [0.0, 0.0, 0.0]],
    ),
)
