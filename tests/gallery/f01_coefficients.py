"""F1: a wrong coefficient or sign, a missing factor or term."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.functions import with_vjp
from tests.gallery.case import Family
from tests.gallery.inputs import normal, point, uniform
from tests.gallery.mutants import negated, scaled, zeroed


def gelu_by_tanh(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def gelu_without_three(v: Tensor, x: Tensor) -> Tensor:
    """The inner derivative is c (1 + 3 · 0.044715 x²)."""
    c = math.sqrt(2 / math.pi)
    t = torch.tanh(c * (x + 0.044715 * x**3))
    return v * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 0.044715 * x * x))


def gelu_without_density(v: Tensor, x: Tensor) -> Tensor:
    return v * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def swish(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


def swish_without_product_rule(v: Tensor, x: Tensor) -> Tensor:
    return v * torch.sigmoid(x)


def layer_norm(x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred * torch.rsqrt((centred**2).mean(-1, keepdim=True) + 1e-5)


def layer_norm_without_mean_term(v: Tensor, x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    r = torch.rsqrt((centred**2).mean(-1, keepdim=True) + 1e-5)
    y = centred * r
    return r * (v - y * (v * y).mean(-1, keepdim=True))


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt((x**2).mean(-1, keepdim=True) + 1e-5) * weight


def rms_norm_with_r_squared(v: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The second term needs r³; r² is the same number at unit scale, where people test."""
    r = torch.rsqrt((x**2).mean(-1, keepdim=True) + 1e-5)
    g = v * weight
    return g * r - x * r**2 * (g * x).mean(-1, keepdim=True), (v * x * r).sum(0)


def squared_error(y: Tensor, target: Tensor) -> Tensor:
    return ((y - target) ** 2).mean()


def squared_error_without_two(v: Tensor, y: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    g = v * (y - target) / y.numel()
    return g, -g


def gaussian_loss(mean: Tensor, log_scale: Tensor) -> Tensor:
    return (0.5 * ((1.3 - mean) * torch.exp(-log_scale)) ** 2 + log_scale).sum()


def gaussian_loss_with_sign(v: Tensor, mean: Tensor, log_scale: Tensor) -> tuple[Tensor, Tensor]:
    z = (1.3 - mean) * torch.exp(-log_scale)
    return -v * z * torch.exp(-log_scale), v * (1 + z * z)


def squash(x: Tensor) -> Tensor:
    return torch.tanh(x)


def squash_without_square(v: Tensor, x: Tensor) -> Tensor:
    return v * (1 - torch.tanh(x))


def cosine(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1))


def cosine_without_projection(v: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Treats the norm of each own argument as a constant."""
    scale = (v / (a.norm(dim=-1) * b.norm(dim=-1)))[:, None]
    return scale * b, scale * a


def lennard_jones(r: Tensor) -> Tensor:
    return 4 * (r**-12 - r**-6)


def lennard_jones_with_swapped_exponents(v: Tensor, r: Tensor) -> Tensor:
    return v * 4 * (-6 * r**-13 + 12 * r**-7)


def leapfrog(q: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    """One step of a pendulum with step 0.1."""
    half = p - 0.05 * torch.sin(q)
    moved = q + 0.1 * half
    return moved, half - 0.05 * torch.sin(moved)


def leapfrog_without_last_kick(v_q: Tensor, v_p: Tensor, q: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    """Forgets that the second half kick depends on the moved position."""
    to_half = 0.1 * v_q + v_p
    return v_q - 0.05 * torch.cos(q) * to_half, to_half


def log_cosh(x: Tensor) -> Tensor:
    return torch.log(torch.cosh(x))


def faint(x: Tensor) -> Tensor:
    return 1e-6 * torch.sin(3 * x)


def mish(x: Tensor) -> Tensor:
    return x * torch.tanh(torch.nn.functional.softplus(x))


wrong = Family("F1")

CASES = (
    wrong(
        "gelu_without_three",
        "A cube in the forward leaves a factor 3 in the derivative; it is forgotten in the inner one.",
    ).at(with_vjp(gelu_by_tanh, gelu_without_three), gelu_by_tanh, normal, (7,)),
    wrong(
        "gelu_from_minus_nine_without_density",
        "Only the factor x is differentiated, among elements whose values are a few roundoffs of one.",
    ).at(with_vjp(F.gelu, gelu_without_density), F.gelu, point, [-5.0, -7.0, -8.0, -9.0, 0.5, 1.5]),
    wrong("swish_without_product_rule", "Only one of the two factors is differentiated.").at(
        with_vjp(swish, swish_without_product_rule), swish, normal, (7,)
    ),
    wrong("layer_norm_without_mean_term", "The mean that is subtracted depends on the input, too.").at(
        with_vjp(layer_norm, layer_norm_without_mean_term), layer_norm, normal, (3, 5)
    ),
    wrong(
        "rms_norm_with_r_squared", "A power of the reciprocal norm is missing; inputs of unit variance would hide it."
    ).at(with_vjp(rms_norm, rms_norm_with_r_squared), rms_norm, uniform, 1.0, 4.0, (3, 5), (5,)),
    wrong("squared_error_without_two", "The factor 2 of a square is taken for the convention with one half.").at(
        with_vjp(squared_error, squared_error_without_two), squared_error, normal, (6,), (6,)
    ),
    wrong("gaussian_loss_with_wrong_sign", "The sign of one of two terms is wrong, for one of two inputs.").at(
        with_vjp(gaussian_loss, gaussian_loss_with_sign), gaussian_loss, normal, (4,), (4,)
    ),
    wrong("squash_without_square", "The derivative of tanh is 1 - y², not 1 - y.").at(
        with_vjp(squash, squash_without_square), squash, normal, (7,)
    ),
    wrong("cosine_without_projection", "The norms in the denominator are taken for constants.").at(
        with_vjp(cosine, cosine_without_projection), cosine, normal, (3, 4), (3, 4)
    ),
    wrong(
        "lennard_jones_with_swapped_exponents", "The factors of the repulsive and the attractive force changed places."
    ).at(with_vjp(lennard_jones, lennard_jones_with_swapped_exponents), lennard_jones, uniform, 0.9, 1.5, (6,)),
    wrong(
        "leapfrog_without_last_kick",
        "One path through a time step is forgotten; it carries only a few per cent of the gradient.",
    ).at(with_vjp(leapfrog, leapfrog_without_last_kick), leapfrog, normal, (4,), (4,)),
    wrong("log_cosh_one_per_cent_too_large", "A factor of 1.01 is ten times what the classical tolerance allows.").at(
        scaled(log_cosh, 1.01), log_cosh, normal, (7,)
    ),
    wrong(
        "log_cosh_factor_1_0005",
        "A factor within the classical rtol passes there; an error bar sees it.",
        drop_in=False,
    ).at(scaled(log_cosh, 1.0005), log_cosh, normal, (7,)),
    wrong(
        "faint_gradient_is_zero",
        "A gradient of about 1e-6 is lost altogether: the classical atol cannot tell it from zero.",
        drop_in=False,
    ).at(zeroed(faint), faint, normal, (7,)),
    wrong("mish_negated", "A minus that belongs to a descent step stands in the backward.").at(
        negated(mish), mish, normal, (2, 3)
    ),
)
