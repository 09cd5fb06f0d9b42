"""Right functions of bad scale: large offsets, tiny inputs, entries that differ by many orders of magnitude."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from tests.gallery import proofs
from tests.gallery.case import Function, right
from tests.gallery.inputs import at, leaf, normal, point, spread, uniform

DECADES = torch.logspace(-4, 4, 9, dtype=torch.float64)
HILBERT = 1 / (torch.arange(5, dtype=torch.float64)[:, None] + torch.arange(5, dtype=torch.float64) + 1)


def apart_from_itself(x: Tensor) -> Tensor:
    """The norm of the difference is the smallest one allowed, 1e-12."""
    y = x.clone()
    return 0.7 * y - functional.normalize(y - x, dim=-1)


def offset(amount: float) -> Function:
    return lambda x: amount + torch.sin(x)


def shifted_and_back(amount: float) -> Function:
    return lambda x: ((amount + x) - amount) * 2


def beside_a_sine(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.sin(x), x.clone()


def double(x: Tensor) -> Tensor:
    return 2 * x


def loss_of_tiny(x: Tensor) -> Tensor:
    odds = torch.softmax(torch.sqrt(x.clamp(-1, 1) ** 2 + x**2 + 0.1), -1).prod()
    return ((1 / (1 + x**2)).square().mean() - odds) ** 2


def tiny_cube(x: Tensor) -> Tensor:
    return 1e16 * x**3


def decades(x: Tensor) -> Tensor:
    return DECADES * torch.exp(0.3 * x)


def decades_within(x: Tensor) -> Tensor:
    return torch.exp(-((x / DECADES) ** 2)).sum()


def hilbert_solution(b: Tensor) -> Tensor:
    return torch.linalg.solve(HILBERT, b)


def energy_over_noise(x: Tensor) -> Tensor:
    """A small term beside a large constant one."""
    return 3e5 + (x**2).sum()


def wilkinson(x: Tensor) -> Tensor:
    roots = torch.arange(1, 11, dtype=x.dtype)
    return (x[:, None] - roots).prod(-1)


def ratio_of_large(x: Tensor) -> Tensor:
    return (1e6 + x) / (1e6 - x)


def log_sum_exp(x: Tensor) -> Tensor:
    return torch.logsumexp(x, -1)


def mean_of_squares(x: Tensor) -> Tensor:
    return (x**2).mean()


def length(x: Tensor, y: Tensor) -> Tensor:
    return torch.sqrt(x * x + y * y + 0.1)


def length_by_powers(x: Tensor, y: Tensor) -> Tensor:
    return (x**2 + y**2 + 0.1) ** 0.5


def beside_tiny() -> tuple[Tensor, Tensor]:
    """Ordinary numbers, and others of size 1e-7."""
    x, y = normal((16,), (16,))
    return x, leaf(1e-7 * y, torch.float64)


def padded_rows() -> tuple[Tensor]:
    (x,) = normal((8, 5))
    return (leaf(torch.where(torch.arange(8)[:, None] < 4, x, torch.zeros_like(x)), torch.float64),)


def normalised(x: Tensor) -> Tensor:
    return functional.normalize(x, dim=-1)


def normalised_by_hand(x: Tensor) -> Tensor:
    length = (x * x).sum(-1, keepdim=True)
    return torch.where(length == 0, x * 1e12, x / torch.where(length == 0, torch.ones_like(length), length).sqrt())


def distances(a: Tensor, b: Tensor) -> Tensor:
    return (a - b).norm(dim=-1)


def far_points() -> tuple[Tensor, ...]:
    return tuple((x.detach() + 5e6).requires_grad_() for x in normal((4, 3), (4, 3)))


def beside_faint_output(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The second output is small, and as precise as the first."""
    return x * x, 1e-12 * torch.sin(y)


CASES = (
    right(
        "input_of_a_faint_output",
        "Its slopes are far below those of the other output.",
        lambda: (beside_faint_output, normal((3,), (3,))),
    ),
    right(
        "tiny_input_of_a_norm",
        "Over steps of its own size it changes the values by less than their roundoff.",
        lambda: (length, beside_tiny()),
        reference=length_by_powers,
    ),
    right(
        "zero_rows_normalised",
        "At a row of zeros the slope is 1e12, over steps up to 1e-12.",
        lambda: (normalised, padded_rows()),
        reference=normalised_by_hand,
        drop_in=False,
        step=1e-14,
    ),
    right(
        "sine_with_offset_1e8",
        "The offset eats eight of sixteen digits; a fixed step of 1e-6 eats the rest.",
        at(offset(1e8), normal, (5,)),
        reference=torch.sin,
        drop_in=False,
    ),
    right(
        "identity_behind_1e10_beside_a_sine",
        "Two outputs: one is seen at small steps, the other at wide ones.",
        at(lambda x: (torch.sin(x), 1e10 + x), normal, (5,)),
        reference=beside_a_sine,
        drop_in=False,
    ),
    right(
        "constant_of_1e12_beside_a_sine",
        "An output without any slope has a derivative of zero.",
        at(lambda x: (torch.sin(x), 1e12 + 0 * x), normal, (5,)),
    ),
    right(
        "identity_behind_100_beside_a_sine_in_float32",
        "The same in float32.",
        at(lambda x: (torch.sin(x), 100 + x), normal, (5,), dtype=torch.float32),
        reference=beside_a_sine,
        drop_in=False,
        dtype=torch.float32,
    ),
    right(
        "normalised_difference_of_equals",
        "Gradients of 1e12 cancel and leave their roundoff.",
        at(apart_from_itself, point, [-2.0]),
        resolution=1e-3,
    ),
    right("sine_with_offset_1e3", "A small offset is harmless.", at(offset(1e3), normal, (5,)), reference=torch.sin),
    right(
        "shifted_by_1e8_and_back",
        "The values are steps of 1.5e-8: exact in the large, noise in the small.",
        at(shifted_and_back(1e8), normal, (5,)),
        reference=double,
        drop_in=False,
    ),
    right(
        "shifted_by_1e5_and_back",
        "Steps of 1.5e-11 are still below the tolerance.",
        at(shifted_and_back(1e5), normal, (5,)),
        reference=double,
    ),
    right(
        "cube_of_tiny_inputs",
        "At 1e-8 a step of 1e-6 is a hundred times the input.",
        at(tiny_cube, uniform, 1e-8, 3e-8, (4,)),
        drop_in=False,
        proof=proofs.differences(1e-10),
    ),
    right(
        "square_of_tiny_inputs",
        "A gradient of 1e-8 is below every absolute tolerance.",
        at(torch.square, uniform, 1e-8, 3e-8, (4,)),
    ),
    right(
        "sine_of_small_argument",
        "Inputs of 1e6 with a gradient of 1e-6.",
        at(lambda x: torch.sin(1e-6 * x), uniform, 1e5, 1e6, (4,)),
    ),
    right("outputs_over_eight_decades", "Each row has a scale of its own.", at(decades, normal, (9,))),
    right(
        "inputs_over_eight_decades",
        "One step cannot suit inputs of 1e-4 and of 1e4.",
        at(decades_within, lambda: ((0.7 * DECADES).requires_grad_(),)),
        drop_in=True,
        proof=proofs.differences(1e-6),
    ),
    right(
        "hilbert_solution", "A condition number of 5e5, in a linear map.", at(hilbert_solution, normal, (5,)), order=2
    ),
    right(
        "energy_over_large_constant",
        "A loss with a large constant term.",
        at(energy_over_noise, normal, (6,)),
        reference=lambda x: (x**2).sum(),
    ),
    right("wilkinson_polynomial", "Large factors of both signs, large slopes.", at(wilkinson, spread, 1.3, 9.7, 4)),
    right("ratio_of_large_numbers", "A gradient of 2e-6 from numbers of 1e6.", at(ratio_of_large, normal, (5,))),
    right(
        "log_sum_exp_of_1e4",
        "Stable although every exponential overflows.",
        at(log_sum_exp, lambda: ((normal((2, 4))[0].detach() + 1e4).requires_grad_(),)),
    ),
    right("mean_of_squares_of_1e5", "Values of 1e10 with slopes of 1e5.", at(mean_of_squares, uniform, 1e5, 2e5, (4,))),
    right(
        "exponential_of_20x",
        "A slope of 20 times a value of up to 1e8.",
        at(lambda x: torch.exp(20 * x), uniform, -1.0, 1.0, (5,)),
    ),
    right(
        "softplus_far_below_zero",
        "Value and slope are both 1e-14.",
        at(torch.nn.functional.softplus, point, [-32.0, -30.0, -35.0]),
    ),
    right(
        "distance_far_from_origin",
        "Two points 1 apart at 1e6.",
        at(lambda a, b: (a - b).norm(), lambda: tuple((x.detach() + 1e6).requires_grad_() for x in normal((3,), (3,)))),
    ),
    right(
        "distance_of_far_points",
        "A step of the inputs' size is far wider than the distance: over it the distance looks like an absolute value.",
        at(distances, far_points),
    ),
    right(
        "square_through_1e10",
        "Small steps do not change the rounded factor, so that the slope seems to be x instead of 2x.",
        at(lambda x: ((x + 1e10) - 1e10) * x, normal, (5,)),
        reference=torch.square,
        drop_in=False,
    ),
    right("product_of_many", "Forty factors of about one.", at(lambda x: x.prod(), uniform, 0.5, 1.5, (40,)), order=2),
    right(
        "loss_of_tiny_numbers",
        "The effect of numbers of 1e-6 over steps of their own size is below the roundoff of the values.",
        at(loss_of_tiny, lambda: (leaf(1e-6 * normal((8, 16))[0], torch.float64),)),
    ),
)
