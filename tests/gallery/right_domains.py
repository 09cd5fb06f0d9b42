"""Right functions near the edge of their domain, where the classical step is large or leaves the domain."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tests.gallery import proofs
from tests.gallery.case import Case, Function, right
from tests.gallery.inputs import at, normal, point

NEAR_ONE = 1 - 1e-5


def entropy(p: Tensor) -> Tensor:
    return -(p * torch.log(p)).sum()


def divergence(p: Tensor, q: Tensor) -> Tensor:
    return (p * torch.log(p / q)).sum()


def divergence_of_softmax(a: Tensor, b: Tensor) -> Tensor:
    return torch.nn.functional.kl_div(a.log_softmax(-1), b.softmax(-1), reduction="batchmean")


def thermal_radiation(temperature: Tensor) -> Tensor:
    """Planck's law for infrared light, in units of its own."""
    return 1.0 / torch.expm1(14400.0 / temperature)


def logit(p: Tensor) -> Tensor:
    return torch.log(p) - torch.log1p(-p)


def half_circle(x: Tensor) -> Tensor:
    return torch.sqrt(1 - x * x)


def barrier(x: Tensor) -> Tensor:
    """A log barrier at 1."""
    return -torch.log(1 - x)


def black_scholes(spot: Tensor, time: Tensor) -> Tensor:
    """A call with strike 1, shortly before it expires."""
    root = 0.2 * torch.sqrt(time)
    d1 = (torch.log(spot) + 0.02 * time) / root
    return spot * torch.special.ndtr(d1) - torch.special.ndtr(d1 - root)


def power(x: Tensor) -> Tensor:
    return x**0.3


def _edge(name: str, why: str, function: Function, step: float, *values: object) -> Case:
    """A case that needs a smaller step than the classical one."""
    return right(name, why, at(function, point, *values), drop_in=False, proof=proofs.differences(step))


CASES = (
    right(
        "divergence_of_softmax",
        "A thousand times larger the softmax is exactly 0 or 1 and torch's gradient NaN: no fault at these inputs.",
        at(divergence_of_softmax, normal, (3, 5), (3, 5)),
    ),
    right(
        "thermal_radiation",
        "At one kelvin the exponential overflows, and so does its gradient: no fault at these inputs.",
        at(thermal_radiation, point, [300.0, 1000.0, 5800.0]),
    ),
    _edge("log_at_1e_5", "The step is a tenth of the input.", torch.log, 1e-8, [1e-5, 2e-5]),
    right("log_at_1e_2", "The step is small against the input.", at(torch.log, point, [1e-2, 3e-2]), order=2),
    _edge("sqrt_at_5e_7", "The step leaves the domain.", torch.sqrt, 1e-9, [5e-7, 8e-7]),
    right("sqrt_at_1e_4", "A steep slope, not yet vertical.", at(torch.sqrt, point, [1e-4, 1e-3])),
    _edge("reciprocal_at_1e_5", "A pole ten steps away.", torch.reciprocal, 1e-8, [1e-5, -3e-5]),
    right("reciprocal_at_1e_3", "A pole far enough away.", at(torch.reciprocal, point, [1e-3, -2e-3])),
    right(
        "asin_near_one",
        "The slope is 224.",
        at(torch.asin, point, [NEAR_ONE, -NEAR_ONE, 0.5]),
        drop_in=False,
        proof=proofs.differences(1e-8),
    ),
    _edge(
        "asin_at_1e_9_from_one", "Every usual step leaves the domain.", torch.asin, 1e-10, [1 - 1e-9, -1 + 1e-8, 0.5]
    ),
    _edge("acos_within_a_step_of_one", "The step leaves the domain.", torch.acos, 1e-10, [1 - 3e-7, -1 + 5e-7]),
    _edge("atanh_near_one", "A logarithmic pole at 1.", torch.atanh, 1e-8, [NEAR_ONE, -NEAR_ONE]),
    _edge("acosh_near_one", "A vertical tangent at 1.", torch.acosh, 1e-9, [1 + 2e-6, 1.5]),
    _edge("log1p_near_minus_one", "The domain ends at -1.", torch.log1p, 1e-8, [-NEAR_ONE, 0.0]),
    _edge("power_at_1e_6", "A fractional power of a small number.", power, 1e-9, [2e-6, 1e-6]),
    _edge("entropy_near_a_corner", "A probability of 1e-6 beside a large one.", entropy, 1e-9, [2e-6, 0.999, 0.001]),
    right(
        "divergence_of_unlikely_events",
        "Ratios of small probabilities.",
        at(divergence, point, [1e-3, 0.2, 0.8], [2e-3, 0.5, 0.4]),
    ),
    _edge("logit_near_zero_and_one", "Poles on both sides.", logit, 1e-8, [1e-5, NEAR_ONE]),
    _edge("half_circle_near_its_end", "A vertical tangent at 1.", half_circle, 1e-9, [1 - 1e-6, 0.3]),
    _edge("barrier_near_its_pole", "An interior-point method close to the constraint.", barrier, 1e-8, [NEAR_ONE, 0.2]),
    _edge("lgamma_near_zero", "The gamma function has a pole at 0.", torch.lgamma, 1e-8, [1e-5, 2.5]),
    _edge("tan_near_its_pole", "A slope of 1e10.", torch.tan, 1e-9, [math.pi / 2 - 1e-5, 0.2]),
    _edge("erfinv_near_one", "A slope of 1e5.", torch.erfinv, 1e-9, [NEAR_ONE, 0.1]),
    _edge("digamma_near_a_pole", "A pole at -1.", torch.digamma, 1e-8, [-1 + 1e-5, 0.7]),
    right(
        "call_option_before_expiry",
        "A kink in the making: smooth on the scale of 1e-2.",
        at(black_scholes, point, [0.99, 1.01], [1e-3, 1e-3]),
    ),
)
