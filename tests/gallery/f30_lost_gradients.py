"""F30: a gradient of zero where the function has a slope that small steps do not show.

A large offset in the value leaves few digits for its changes. To claim zero needs as much evidence as to claim anything
else: a step that is wide enough shows the slope of every function here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tests.functions import with_vjp
from tests.gallery.case import Family
from tests.gallery.inputs import leaf, normal, spread, uniform
from tests.gallery.mutants import scaled, zeroed
from tests.gallery.right_scales import distances, far_points


def far_identity(x: Tensor) -> Tensor:
    return 1e10 + x


def far_identity_cut(x: Tensor) -> Tensor:
    return 1e10 + x.detach() + 0.0 * x


def far_sine(x: Tensor) -> Tensor:
    return 1e6 + torch.sin(x)


def very_far_sine(x: Tensor) -> Tensor:
    return 1e8 + torch.sin(x)


def square_through(x: Tensor) -> Tensor:
    """A factor that has lost twelve digits."""
    return ((x + 1e12) - 1e12) * x


def wide_wave(x: Tensor) -> Tensor:
    """A slope of about one on an offset of 1e9, which only steps of about one can show."""
    return 1e9 + 100 * torch.sin(x / 100)


def total_of_large(x: Tensor, y: Tensor) -> Tensor:
    """A sum of some 1e8 to which y adds a little."""
    return (1e8 * torch.ones_like(x) + 1e-3 * x).sum() + torch.sin(y).sum()


def loss_with_constant(x: Tensor, weight: Tensor) -> Tensor:
    """A log-likelihood with its constant term."""
    return 3e7 + 0.5 * ((x @ weight) ** 2).sum(-1)


def energy_in_single(x: Tensor) -> Tensor:
    return 1e4 + torch.sin(x)


def far_product(x: Tensor, y: Tensor) -> Tensor:
    return 1e8 + x * y


def shifted_softmax(x: Tensor, shift: Tensor) -> Tensor:
    return torch.softmax(torch.cat([x[:2] - shift, x[2:]]), -1)


def with_tiny_shift(*shapes: tuple[int, ...]) -> tuple[Tensor, ...]:
    x, shift = normal(*shapes)
    return x, leaf(2e-8 * shift, shift.dtype)


def level_and_sine(x: Tensor) -> Tensor:
    """Steps of one, on which a small wave is smooth."""
    return torch.floor(x) + 0.01 * torch.sin(x)


def level_and_sine_cut(x: Tensor) -> Tensor:
    return torch.floor(x) + 0.01 * torch.sin(x).detach() + 0.0 * x


def counted_and_weighed(x: Tensor) -> Tensor:
    """How many elements of a row are large, and a small part of their sum."""
    return (x > 0.3).to(x).sum(-1) + 1e-2 * x.sum(-1)


def square_and_far_identity(x: Tensor) -> tuple[Tensor, Tensor]:
    return x * x, 1e10 + x


def far_identity_lost(v: Tensor, w: Tensor, x: Tensor) -> Tensor:
    return 2 * v * x


def square_before_far_product(x: Tensor, y: Tensor) -> Tensor:
    """Both in one output: the rows of the product have an offset."""
    return torch.cat([x * x, 1e10 + 3 * x * y])


def far_product_scaled(v: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    square, product = v.split(x.shape[0])
    return 2 * square * x + 3 * product * y, 2 * product * x


def norm_and_energy(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.norm(), 1e3 + torch.sin(x)


def norm_and_energy_cut(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.norm(), 1e3 + torch.sin(x).detach() + 0.0 * x


wrong = Family("F30")

CASES = (
    wrong("identity_behind_1e10_lost", "Values come in steps of 2e-6: a step of 1e-6 is noise.", step=100.0).at(
        zeroed(far_identity), far_identity, normal, (5,)
    ),
    wrong(
        "identity_behind_1e10_detached",
        "The graph ends in a product with zero.",
        step=100.0,
    ).at(far_identity_cut, far_identity, normal, (4,)),
    wrong("sine_behind_1e6_lost", "The offset leaves ten digits, of which a small step takes six.", step=1e-2).at(
        zeroed(far_sine), far_sine, normal, (5,)
    ),
    wrong("sine_behind_1e8_halved", "Small steps of a single entry show nothing but noise.", step=1e-2).at(
        scaled(very_far_sine, 0.5), very_far_sine, normal, (5,)
    ),
    wrong(
        "square_through_1e12_halved",
        "Only the widest steps show more than the lost digits.",
        drop_in=False,
        special="steps wider than the lost digits",
        resolution=1e-3,
    ).at(scaled(square_through, 0.5), torch.square, normal, (5,)),
    wrong("wide_wave_behind_1e9_lost", "A wide step shows the slope of one that is claimed to be zero.", step=1.0).at(
        zeroed(wide_wave), wide_wave, uniform, 100.0, 200.0, (5,)
    ),
    wrong("small_input_beside_large_total_lost", "A sum of 5e8 hides a small input.", step=1e-2).at(
        zeroed(total_of_large, slot=1), total_of_large, normal, (5,), (3,)
    ),
    wrong("loss_with_constant_term_lost", "The constant of a likelihood hides a slope of one.", step=1e-1).at(
        zeroed(loss_with_constant, slot=1), loss_with_constant, normal, (4, 3), (3, 2)
    ),
    wrong("product_behind_1e8_halved", "Not zero but half: the offset hides one as well as the other.", step=1.0).at(
        scaled(far_product, 0.5), far_product, normal, (4,), (4,)
    ),
    wrong("distance_of_far_points_halved", "Over the usual step the distance looks like a kink.", step=1e-2).at(
        scaled(distances, 0.5), distances, far_points
    ),
    wrong(
        "sine_behind_1e4_lost_in_float32",
        "In float32 an offset of 1e4 leaves three digits.",
        drop_in=False,
        special="an offset that leaves three digits",
    ).at(zeroed(energy_in_single), energy_in_single, normal, (6,), dtype=torch.float32),
    wrong("tiny_shift_before_softmax_lost", "The shift moves the values by a hundred millionth of their size.").at(
        zeroed(shifted_softmax, slot=1), shifted_softmax, with_tiny_shift, (7,), ()
    ),
    wrong("sine_on_stairs_lost", "Between the jumps the slope is not zero.").at(
        level_and_sine_cut, level_and_sine, spread, -9.3, 8.9, 25
    ),
    wrong("sine_on_stairs_lost_in_float32", "The same in low precision.", drop_in=False, special="jumps nearby").at(
        zeroed(level_and_sine), level_and_sine, spread, -9.3, 8.9, 25, dtype=torch.float32
    ),
    wrong("weight_beside_a_count_lost", "Most of the change over a wide step is that of the count.").at(
        zeroed(counted_and_weighed), counted_and_weighed, normal, (4, 9)
    ),
    wrong(
        "identity_behind_1e10_lost_beside_a_square",
        "Another output is seen so sharply that this one has no weight.",
        step=100.0,
    ).at(with_vjp(square_and_far_identity, far_identity_lost), square_and_far_identity, normal, (6,)),
    wrong(
        "product_behind_1e10_scaled_beside_a_square",
        "Rows of one output: those with an offset are two thirds of the slope.",
        step=100.0,
    ).at(with_vjp(square_before_far_product, far_product_scaled), square_before_far_product, normal, (4,), (4,)),
    wrong(
        "energy_lost_beside_a_norm_in_float32",
        "In float32 an offset of 1e3 leaves four digits.",
        drop_in=False,
        special="an offset that leaves four digits",
    ).at(norm_and_energy_cut, norm_and_energy, normal, (6,), dtype=torch.float32),
)
