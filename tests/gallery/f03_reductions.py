"""F3: the adjoint of a broadcast is a sum, that of a sum is a broadcast; here one of them is missing or wrong."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.gallery.case import Case
from tests.gallery.inputs import at, normal
from tests.gallery.mutants import rule


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


CASES = (
    Case(
        "affine_with_mean",
        "F3",
        at(rule(affine, affine_with_mean), normal, (4, 3), (3,)),
        "The gradient of a bias is the sum over the batch, not the mean.",
        twin=affine,
    ),
    Case(
        "affine_over_wrong_axis",
        "F3",
        at(rule(affine, affine_over_wrong_axis), normal, (3, 3), (3,)),
        "A square batch hides which axis is summed from everything but the numbers.",
        twin=affine,
    ),
    Case(
        "affine_from_first_row",
        "F3",
        at(rule(affine, affine_from_first_row), normal, (4, 3), (3,)),
        "The sum over the batch is missing: the first row has the right shape.",
        twin=affine,
    ),
    Case(
        "row_mean_without_count",
        "F3",
        at(rule(row_mean, row_mean_without_count), normal, (3, 4)),
        "A mean is differentiated as a sum.",
        twin=row_mean,
    ),
    Case(
        "variance_with_population_count",
        "F3",
        at(rule(variance, variance_with_population_count), normal, (3, 5)),
        "The forward divides by n - 1, the backward by n.",
        twin=variance,
    ),
    Case(
        "log_sum_exp_broadcast_along_rows",
        "F3",
        at(rule(log_sum_exp, log_sum_exp_broadcast_along_rows), normal, (4, 4)),
        "A reduced axis must come back where it was.",
        twin=log_sum_exp,
    ),
    Case(
        "outer_difference_with_swapped_sums",
        "F3",
        at(rule(outer_difference, outer_difference_with_swapped_sums), normal, (4,), (4,)),
        "Each argument was broadcast along the other's axis and must be summed there.",
        twin=outer_difference,
    ),
    Case(
        "gain_with_largest",
        "F3",
        at(rule(gain, gain_with_largest), normal, (4, 3), (1, 3)),
        "A reduction to shape (1, n) by the wrong operation still has the right shape.",
        twin=gain,
    ),
    Case(
        "probabilities_summed_over_batch",
        "F3",
        at(rule(probabilities, probabilities_summed_over_batch), normal, (3, 4)),
        "The inner sum of softmax runs over the classes, not over the batch.",
        twin=probabilities,
    ),
    Case(
        "group_centred_over_all",
        "F3",
        at(rule(group_centred, group_centred_over_all), normal, (2, 6)),
        "Means are taken per group in the forward and over all channels in the backward.",
        twin=group_centred,
    ),
)
