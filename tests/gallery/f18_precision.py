"""F18: precision is lost in the backward although the inputs and the forward have it.

In low precision the formula is right and a float64 copy of the function passes; only the numbers are worse than they
need be.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tests.functions import with_vjp
from tests.gallery import proofs
from tests.gallery.case import Family
from tests.gallery.inputs import normal, point, uniform
from tests.gallery.mutants import rounded


def sine(x: Tensor) -> Tensor:
    return torch.sin(2 * x)


def quantised(v: Tensor, x: Tensor) -> Tensor:
    """Gradients sent in eight bits."""
    gradient = 2 * v * torch.cos(2 * x)
    step = gradient.abs().max().clamp(min=1e-30) / 127
    return torch.round(gradient / step) * step


def bias(x: Tensor, b: Tensor) -> Tensor:
    return x + b


def bias_summed_one_by_one(v: Tensor, x: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """A sum in the dtype of the data stops growing when one more no longer changes it."""
    total = torch.zeros_like(b)
    for row in v:
        total = total + row
    return v, total


def distance(x: Tensor) -> Tensor:
    """1 - cos(x), by a form without cancellation."""
    return 2 * torch.sin(x / 2) ** 2


def distance_with_cancellation(v: Tensor, x: Tensor) -> Tensor:
    """sin(x) as the root of 1 - cos²(x): nothing is left of small x."""
    return v * torch.sign(x) * torch.sqrt((1 - torch.cos(x) ** 2).clamp(min=0))


def scaled_norm(x: Tensor) -> Tensor:
    return (x.float() ** 2).mean(-1).sqrt().to(x.dtype) if x.dtype == torch.float16 else (x**2).mean(-1).sqrt()


def scaled_norm_with_overflow(v: Tensor, x: Tensor) -> Tensor:
    """The forward squares in float32, the backward in the dtype of the data: 300² is infinite in half precision."""
    return v[..., None] * x / (x.shape[-1] * (x**2).mean(-1, keepdim=True).sqrt())


def layer_norm(x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred * torch.rsqrt((centred**2).mean(-1, keepdim=True) + 1e-5)


def layer_norm_with_half_statistics(v: Tensor, x: Tensor) -> Tensor:
    """Mean and scale are kept in half precision: a large mean loses its small digits."""
    lower = torch.float16 if x.dtype == torch.float32 else x.dtype
    mean = x.mean(-1, keepdim=True)
    scale = torch.rsqrt(((x - mean) ** 2).mean(-1, keepdim=True) + 1e-5).to(lower).to(x.dtype)
    y = (x - mean.to(lower).to(x.dtype)) * scale
    return scale * (v - v.mean(-1, keepdim=True) - y * (v * y).mean(-1, keepdim=True))


def growth_with_cancellation(v: Tensor, x: Tensor) -> Tensor:
    """1 - 1 / (1 + x) instead of x / (1 + x)."""
    return v * (1 - 1 / (1 + x))


def growth(x: Tensor) -> Tensor:
    """x - log(1 + x) by its series."""
    return sum((-1) ** k * x**k / k for k in range(2, 9))


def only_below(dtype: torch.dtype, lossy: Callable[..., object], exact: Callable[..., object]) -> Callable[..., object]:
    """`lossy` in low precision, `exact` in float64: a kernel with one template for each."""

    def backward(v: Tensor, x: Tensor) -> object:
        return lossy(v, x) if x.dtype == dtype else exact(v, x)

    return backward


def logistic(x: Tensor) -> Tensor:
    return torch.sigmoid(x)


def logistic_exactly(v: Tensor, x: Tensor) -> Tensor:
    y = torch.sigmoid(x)
    return v * y * (1 - y)


def logistic_from_table(v: Tensor, x: Tensor) -> Tensor:
    """A table of 64 slopes stands for the formula."""
    place = torch.round((x + 4) * 8).clamp(0, 64) / 8 - 4
    return logistic_exactly(v, place)


wrong = Family("F18", drop_in=False)
by_precision = Family("F18", finds={"precision"}, drop_in=False, proof=proofs.precision)

CASES = (
    wrong(
        "sine_rounded_to_half",
        "Half precision inside a double backward costs 5e-4: less than the classical rtol, more than any error bar.",
    ).at(rounded(sine, torch.float16), sine, normal, (6,)),
    wrong(
        "sine_quantised_to_eight_bits",
        "Compressed gradients are steps, and no longer linear in the cotangent.",
        finds={"reverse", "linearity"},
        special="a cotangent of more than one entry",
    ).at(with_vjp(sine, quantised), sine, normal, (6,)),
    wrong("sine_rounded_to_eight_bits", "Three bits of mantissa are up to 6 per cent.", drop_in=True).at(
        rounded(sine, torch.float8_e4m3fn), sine, normal, (6,)
    ),
    by_precision(
        "bias_summed_in_bfloat16",
        "Small terms are lost in a long sum that is kept in bfloat16.",
        special="a cotangent of one sign",
        proof=proofs.precision_at_ones,
    ).at(with_vjp(bias, bias_summed_one_by_one), bias, normal, (900, 2), (2,), dtype=torch.bfloat16),
    by_precision(
        "distance_with_cancellation", "The formula is right and its evaluation in float32 leaves no digit."
    ).at(with_vjp(distance, distance_with_cancellation), distance, point, [1e-3, -2e-4, 5e-4], dtype=torch.float32),
    by_precision(
        "scaled_norm_with_overflow",
        "The forward was made safe for half precision, the backward was not.",
        finds={"precision", "reverse"},
    ).at(
        with_vjp(scaled_norm, scaled_norm_with_overflow),
        scaled_norm,
        uniform,
        300.0,
        400.0,
        (2, 3),
        dtype=torch.float16,
    ),
    by_precision("layer_norm_with_half_statistics", "Statistics saved in half precision spoil a float32 gradient.").at(
        with_vjp(layer_norm, layer_norm_with_half_statistics),
        layer_norm,
        uniform,
        9.0,
        11.0,
        (2, 5),
        dtype=torch.float32,
    ),
    by_precision("growth_with_cancellation", "1 - 1 / (1 + x) loses as many digits as x is small.").at(
        with_vjp(growth, growth_with_cancellation), growth, uniform, 1e-5, 1e-4, (4,), dtype=torch.float32
    ),
    by_precision(
        "logistic_from_table_in_float32",
        "The float64 template of the kernel is exact, the float32 one takes a short cut: 2 per cent.",
        finds={"precision", "reverse"},
    ).at(
        with_vjp(logistic, only_below(torch.float32, logistic_from_table, logistic_exactly)),
        logistic,
        normal,
        (6,),
        dtype=torch.float32,
    ),
)
