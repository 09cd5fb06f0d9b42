"""F3: the adjoint of a broadcast is a sum, that of a sum is a broadcast; here one of them is missing or wrong."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.functions import with_vjp
from tests.gallery.case import Family
from tests.gallery.inputs import normal


def affine(x: Tensor, bias: Tensor) -> Tensor:
    return torch.tanh(x) + bias


def affine_with_mean(v: Tensor, x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    return v * (1 - torch.tanh(x) ** 2), v.mean(0)


def affine_over_wrong_axis(v: Tensor, x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    return v * (1 - torch.tanh(x) ** 2), v.sum(1)


def affine_from_first_row(v: Tensor, x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    return v * (1 - torch.tanh(x) ** 2), v[0]


def row_mean(x: Tensor) -> Tensor:
    return torch.exp(x).mean(-1)


def row_mean_without_count(v: Tensor, x: Tensor) -> Tensor:
    return v[:, None] * torch.exp(x)


def variance(x: Tensor) -> Tensor:
    return x.var(-1)


def variance_with_population_count(v: Tensor, x: Tensor) -> Tensor:
    """Bessel's correction divides by n - 1."""
    return v[:, None] * 2 * (x - x.mean(-1, keepdim=True)) / x.shape[-1]


def log_sum_exp(x: Tensor) -> Tensor:
    return torch.logsumexp(x, 1)


def log_sum_exp_broadcast_along_rows(v: Tensor, x: Tensor) -> Tensor:
    """Without `[:, None]` a square matrix broadcasts the cotangent along the wrong axis."""
    return torch.softmax(x, 1) * v


def outer_difference(x: Tensor, y: Tensor) -> Tensor:
    return (x[:, None] - y[None, :]) ** 2


def outer_difference_with_swapped_sums(v: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    g = 2 * v * (x[:, None] - y[None, :])
    return g.sum(0), -g.sum(1)


def gain(x: Tensor, scale: Tensor) -> Tensor:
    """A scale of shape (1, n) for every row."""
    return x * scale


def gain_with_largest(v: Tensor, x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    return v * scale, (v * x).amax(0, keepdim=True)


def probabilities(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def probabilities_summed_over_batch(v: Tensor, x: Tensor) -> Tensor:
    y = torch.softmax(x, -1)
    return y * (v - (v * y).sum(0, keepdim=True))


def group_centred(x: Tensor) -> Tensor:
    """Two groups of channels, each without its own mean."""
    groups = x.view(x.shape[0], 2, -1)
    return (groups - groups.mean(-1, keepdim=True)).reshape(x.shape) ** 3


def group_centred_over_all(v: Tensor, x: Tensor) -> Tensor:
    groups = x.view(x.shape[0], 2, -1)
    g = v * 3 * ((groups - groups.mean(-1, keepdim=True)).reshape(x.shape)) ** 2
    return g - g.mean(-1, keepdim=True)


wrong = Family("F3")

CASES = (
    wrong("affine_with_mean", "The gradient of a bias is the sum over the batch, not the mean.").at(
        with_vjp(affine, affine_with_mean), affine, normal, (4, 3), (3,)
    ),
    wrong("affine_over_wrong_axis", "A square batch hides which axis is summed from everything but the numbers.").at(
        with_vjp(affine, affine_over_wrong_axis), affine, normal, (3, 3), (3,)
    ),
    wrong("affine_from_first_row", "The sum over the batch is missing: the first row has the right shape.").at(
        with_vjp(affine, affine_from_first_row), affine, normal, (4, 3), (3,)
    ),
    wrong("row_mean_without_count", "A mean is differentiated as a sum.").at(
        with_vjp(row_mean, row_mean_without_count), row_mean, normal, (3, 4)
    ),
    wrong("variance_with_population_count", "The forward divides by n - 1, the backward by n.").at(
        with_vjp(variance, variance_with_population_count), variance, normal, (3, 5)
    ),
    wrong("log_sum_exp_broadcast_along_rows", "A reduced axis must come back where it was.").at(
        with_vjp(log_sum_exp, log_sum_exp_broadcast_along_rows), log_sum_exp, normal, (4, 4)
    ),
    wrong(
        "outer_difference_with_swapped_sums",
        "Each argument was broadcast along the other's axis and must be summed there.",
    ).at(with_vjp(outer_difference, outer_difference_with_swapped_sums), outer_difference, normal, (4,), (4,)),
    wrong("gain_with_largest", "A reduction to shape (1, n) by the wrong operation still has the right shape.").at(
        with_vjp(gain, gain_with_largest), gain, normal, (4, 3), (1, 3)
    ),
    wrong("probabilities_summed_over_batch", "The inner sum of softmax runs over the classes, not over the batch.").at(
        with_vjp(probabilities, probabilities_summed_over_batch), probabilities, normal, (3, 4)
    ),
    wrong(
        "group_centred_over_all", "Means are taken per group in the forward and over all channels in the backward."
    ).at(with_vjp(group_centred, group_centred_over_all), group_centred, normal, (2, 6)),
)
