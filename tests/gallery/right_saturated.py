"""Right functions whose value is saturated, or whose argument stands next to the edge of its domain.

Where the value is exactly 0 or 1 it shows no roundoff at all, and its slope is 1e-16 or less; next to an edge a step
may leave the domain.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.functions import with_derivative
from tests.gallery import proofs
from tests.gallery.case import right
from tests.gallery.inputs import at, indices, point, spread, uniform


def gelu_by_erfc(x: Tensor) -> Tensor:
    return 0.5 * x * torch.erfc(-x / math.sqrt(2))


def one_plus_erf(x: Tensor) -> Tensor:
    return 1 + torch.erf(x)


def one_plus_erf_exactly(x: Tensor) -> Tensor:
    return torch.erfc(-x)


def log_one_plus_exp(x: Tensor) -> Tensor:
    return torch.log(1 + torch.exp(x))


def log_one_plus_exp_exactly(x: Tensor) -> Tensor:
    return torch.log1p(torch.exp(x))


def log_of_exp_minus_one(x: Tensor) -> Tensor:
    return x - torch.log(torch.exp(x) - 1)


def loss(logits: Tensor) -> Tensor:
    return F.cross_entropy(logits, LABELS[: len(logits)])


def loss_of_each(logits: Tensor) -> Tensor:
    return F.cross_entropy(logits, LABELS[: len(logits)], reduction="none")


def loss_by_odds(logits: Tensor) -> Tensor:
    """The logarithm of one plus the odds of the other classes."""
    rows = zip(logits, LABELS[: len(logits)].tolist(), strict=True)
    return torch.stack([torch.log1p((row - row[k]).exp().sum() - 1) for row, k in rows])


def loss_with_logits(logits: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(logits, (logits > 0).to(logits.dtype))


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def sharp_softmax(x: Tensor) -> Tensor:
    return torch.softmax(50 * x, -1)


def sharp_sigmoid(x: Tensor) -> Tensor:
    return torch.sigmoid(50 * x)


def arcsine_by_arctangent(x: Tensor) -> Tensor:
    return torch.atan2(x, torch.sqrt((1 - x) * (1 + x)))


def arccosine_by_arctangent(x: Tensor) -> Tensor:
    return torch.atan2(torch.sqrt((1 - x) * (1 + x)), x)


def half_circle(x: Tensor) -> Tensor:
    return torch.sqrt((1 - x) * (1 + x))


def half_circle_by_angle(x: Tensor) -> Tensor:
    return torch.sin(torch.acos(x))


def area_tangent_by_logarithms(x: Tensor) -> Tensor:
    return 0.5 * (torch.log1p(x) - torch.log(1 - x))


LABELS = indices([0, 1, 2])
NEXT_TO_ONE = [1 - 1e-6, 0.3, -1 + 1e-7]
SATURATING = [-5.0, -6.0, -7.0, -8.0, -9.0, 0.5]
SHARP = [[0.92, -0.72, -2.6, 0.0], [-0.6, -0.91, 1.02, 1.31], [0.06, 0.38, 0.2, 0.97]]
GATES = [0.66, 0.27, 0.06, 0.62, -0.45, -0.17, -1.52, 0.38, -1.03, -0.56, -0.89, -0.058]
CERTAIN = [[60.0, 0.0, -10.0], [-5.0, 45.0, 3.0]]

CASES = (
    right(
        "tails_of_erfc",
        "One output is near 2, whose roundoff hides the slope of 1e-11 over small steps.",
        at(torch.erfc, point, [5.0, 6.0, -5.0]),
    ),
    right(
        "gelu_at_minus_nine",
        "The value is zero and so is the slope but for 1e-17.",
        at(F.gelu, point, [-9.0, -8.8, -9.5]),
    ),
    right(
        "gelu_at_minus_nine_and_elsewhere",
        "Saturated entries beside ordinary ones.",
        at(F.gelu, point, [-9.0, 0.4, -1.1, 2.0]),
        reference=gelu_by_erfc,
    ),
    right(
        "gelu_from_minus_nine_to_minus_five",
        "At -8 the value is a few roundoffs of one: its differences show another slope.",
        at(F.gelu, point, SATURATING),
        reference=gelu_by_erfc,
    ),
    right(
        "one_plus_erf_at_minus_six",
        "The value is exactly 0, the slope is 3e-16.",
        at(one_plus_erf, point, [-6.0, -6.2]),
        reference=one_plus_erf_exactly,
    ),
    right(
        "one_plus_erf_at_minus_six_and_elsewhere",
        "The same beside an ordinary entry.",
        at(one_plus_erf, point, [-6.0, 0.3, -6.5]),
        reference=one_plus_erf_exactly,
    ),
    right(
        "log_one_plus_exp_at_minus_forty",
        "1 + 4e-18 is 1: the value is exactly 0, the slope is not.",
        at(log_one_plus_exp, point, [-40.0, -42.0, -38.0]),
        reference=log_one_plus_exp_exactly,
    ),
    right(
        "log_of_exp_minus_one_at_forty",
        "The gradient is 1 minus 1, of which roundoff is left: two backward passes need not add up.",
        at(log_of_exp_minus_one, point, [37.9989, 40.9885]),
    ),
    right(
        "certain_cross_entropy",
        "A loss of exactly 0, with gradients of 1e-20.",
        at(loss, point, CERTAIN),
    ),
    right(
        "cross_entropy_of_two_certain_and_one_uncertain",
        "Losses of exactly 0 beside one of about 1.",
        at(loss_of_each, point, [*CERTAIN, [0.3, 0.9, -0.2]]),
        reference=loss_by_odds,
    ),
    right(
        "certain_loss_with_logits",
        "A logit is subtracted from its logarithm: the loss of 1e-14 is a multiple of the roundoff of 31.",
        at(loss_with_logits, point, [29.0, -31.5, 25.3, -39.0]),
    ),
    right(
        "exp_below_the_normal_numbers",
        "A small grad_output times a gradient of 1e-318 has fewer digits, or none.",
        at(with_derivative(torch.exp, torch.exp), point, [-740.0, -730.0, -720.0, 1.0]),
    ),
    right("certain_softmax", "Rows of one 1 and zeros.", at(softmax, point, [[50.0, 0.0, -3.0], [0.0, 60.0, 2.0]])),
    right(
        "sharp_softmax",
        "Roundoff hides the slopes of the probabilities next to 1, and not those of 1e-20: neither matters here.",
        at(sharp_softmax, point, SHARP),
    ),
    right(
        "sharp_sigmoid",
        "On one side of zero the values show slopes of 1e-20, on the other they are 1.",
        at(sharp_sigmoid, point, GATES),
    ),
    right("sigmoid_at_forty", "The value is exactly 1.", at(torch.sigmoid, point, [40.0, 45.0, -40.0])),
    right("tanh_at_twenty", "The value is exactly 1 or -1.", at(torch.tanh, point, [20.0, -21.0, 0.2])),
    right(
        "gelu_at_minus_nine_in_float32",
        "The same in float32.",
        at(F.gelu, point, [-9.0, -6.0, 0.4, 2.0], dtype=torch.float32),
        reference=gelu_by_erfc,
        dtype=torch.float32,
        drop_in=False,
        proof=proofs.precision,
    ),
    right(
        "log_one_plus_exp_at_minus_forty_in_float32",
        "Saturated from -17 on.",
        at(log_one_plus_exp, point, [-40.0, -20.0, 1.0], dtype=torch.float32),
        reference=log_one_plus_exp_exactly,
        dtype=torch.float32,
        drop_in=False,
        proof=proofs.precision,
    ),
    right("gelu_of_wide_inputs", "From dead to linear in one tensor.", at(F.gelu, spread, -12.0, 12.0, 49)),
    right("gelu_of_hundreds", "Arguments of some hundreds.", at(F.gelu, uniform, -300.0, 300.0, (20,))),
    right(
        "gelu_of_wide_inputs_in_float32",
        "Slopes of 0, of 1 and of everything between them.",
        at(F.gelu, spread, -30.0, 30.0, 121, dtype=torch.float32),
        reference=gelu_by_erfc,
        dtype=torch.float32,
        drop_in=False,
        proof=proofs.precision,
    ),
    right(
        "asin_next_to_one",
        "Steep, and undefined a millionth further on.",
        at(torch.asin, point, NEXT_TO_ONE),
        reference=arcsine_by_arctangent,
        drop_in=False,
    ),
    right(
        "acos_next_to_one",
        "The same falling.",
        at(torch.acos, point, NEXT_TO_ONE),
        reference=arccosine_by_arctangent,
        drop_in=False,
    ),
    right(
        "asin_at_1e_4_from_one",
        "A hundred classical steps from the edge.",
        at(torch.asin, point, [1 - 1e-4, -1 + 1e-4, 0.2]),
        reference=arcsine_by_arctangent,
    ),
    right(
        "half_circle_next_to_its_end",
        "Vertical at the end.",
        at(half_circle, point, NEXT_TO_ONE),
        reference=half_circle_by_angle,
        drop_in=False,
    ),
    right(
        "atanh_next_to_one",
        "A pole of the slope.",
        at(torch.atanh, point, NEXT_TO_ONE),
        reference=area_tangent_by_logarithms,
        drop_in=False,
    ),
    right(
        "asin_next_to_one_in_float32",
        "The last numbers before 1.",
        at(torch.asin, point, [1 - 2e-6, 0.3, -1 + 4e-6], dtype=torch.float32),
        reference=arcsine_by_arctangent,
        dtype=torch.float32,
        drop_in=False,
        proof=proofs.precision,
    ),
)
