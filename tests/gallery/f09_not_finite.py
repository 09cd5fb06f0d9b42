"""F9: NaN or Inf where a finite derivative exists. Most of these are plain torch: autograd alone does not protect."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.functions import with_vjp
from tests.gallery.case import Family
from tests.gallery.inputs import normal, point, spread, uniform


def masked_root(x: Tensor) -> Tensor:
    return torch.where(x > 0, torch.sqrt(x), 0.0)


def masked_root_safely(x: Tensor) -> Tensor:
    return torch.where(x > 0, torch.sqrt(torch.where(x > 0, x, 1.0)), 0.0)


def energy_by_norm(x: Tensor) -> Tensor:
    return torch.sqrt((x**2).sum(-1)) ** 2


def energy(x: Tensor) -> Tensor:
    return (x**2).sum(-1)


def spread_by_deviation(x: Tensor) -> Tensor:
    return torch.sqrt(x.var(-1)) ** 2


def spread_by_variance(x: Tensor) -> Tensor:
    return x.var(-1)


PADDING = torch.tensor([[True, True, False], [False, False, False]])


def masked_attention(scores: Tensor) -> Tensor:
    weights = torch.softmax(scores + torch.log(PADDING.to(scores)), -1)
    return torch.nan_to_num(weights)


def masked_attention_safely(scores: Tensor) -> Tensor:
    lifted = torch.exp(scores - scores.detach().amax(-1, keepdim=True)) * PADDING
    return lifted / lifted.sum(-1, keepdim=True).clamp(min=1e-300)


def log_sum_exp(x: Tensor) -> Tensor:
    return torch.logsumexp(x, -1)


def log_sum_exp_without_shift(v: Tensor, x: Tensor) -> Tensor:
    """The forward subtracts the maximum, the backward does not."""
    return v[..., None] * torch.exp(x) / torch.exp(x).sum(-1, keepdim=True)


def logistic_loss(x: Tensor) -> Tensor:
    return torch.nn.functional.softplus(x)


def logistic_loss_by_ratio(v: Tensor, x: Tensor) -> Tensor:
    return v * torch.exp(x) / (1 + torch.exp(x))


def path_length(x: Tensor) -> Tensor:
    """The sum of all distances between points; a point's distance to itself is multiplied by 0."""
    distance = torch.sqrt(((x[:, None] - x[None]) ** 2).sum(-1))
    return (distance * (1 - torch.eye(len(x), dtype=x.dtype))).sum()


def path_length_of_pairs(x: Tensor) -> Tensor:
    first, second = torch.triu_indices(len(x), len(x), 1)
    return 2 * torch.sqrt(((x[first] - x[second]) ** 2).sum(-1)).sum()


def square(x: Tensor) -> Tensor:
    return x**2


def square_by_ratio(v: Tensor, x: Tensor) -> Tensor:
    """p y / x, the trick that saves a power."""
    return v * 2 * x**2 / x


def product_by_logs(x: Tensor) -> Tensor:
    return torch.exp(torch.log(x.abs()).sum(-1)) * torch.sign(x).prod(-1)


def product(x: Tensor) -> Tensor:
    return torch.prod(x, -1)


def smooth_minimum(x: Tensor) -> Tensor:
    """A soft minimum with infinite entries for what must not be chosen."""
    full = torch.cat([x, torch.full_like(x[..., :1], float("inf"))], -1)
    weights = torch.softmax(-full, -1)
    return (weights * full).nan_to_num(0.0).sum(-1)


def smooth_minimum_safely(x: Tensor) -> Tensor:
    return (torch.softmax(-x, -1) * x).sum(-1)


def bounded_ratio(x: Tensor) -> Tensor:
    """x / (eˣ - 1), held constant below 0.5; both branches are computed."""
    return torch.where(x > 0.5, x / torch.expm1(x), 0.5 / torch.expm1(torch.tensor(0.5, dtype=x.dtype)))


def bounded_ratio_safely(x: Tensor) -> Tensor:
    large = torch.where(x > 0.5, x, 0.5)
    return large / torch.expm1(large)


wrong = Family("F9")
by_points = Family("F9", finds={"points"}, drop_in=False)

CASES = (
    wrong("masked_root_of_negative", "The branch that is not chosen still sends back 0 · NaN.", special="x < 0").at(
        masked_root, masked_root_safely, point, [0.5, -0.5, 2.0, -1.0]
    ),
    wrong(
        "energy_by_norm_of_zero_row",
        "Inside a square the root's vertical tangent at zero is only a detour.",
        special="a row of zeros",
    ).at(energy_by_norm, energy, point, [[0.5, -1.0], [0.0, 0.0]]),
    by_points(
        "energy_by_norm_of_unseen_zero_row",
        "Zero rows come with padding.",
        special="a row of zeros",
        shown_at=lambda: point([[0.0, 0.0], [0.5, -1.0], [0.0, 0.0]]),
    ).at(energy_by_norm, energy, normal, (3, 2)),
    wrong(
        "spread_by_deviation_of_constant_row",
        "A constant row has a variance with slope 0 but a deviation without slope.",
        special="a constant row",
    ).at(spread_by_deviation, spread_by_variance, point, [[1.0, 1.0, 1.0], [0.5, -1.0, 2.0]]),
    wrong(
        "masked_attention_of_empty_row",
        "The value of a fully masked row is repaired, its gradient is not.",
        special="a row that is masked altogether",
    ).at(masked_attention, masked_attention_safely, normal, (2, 3)),
    wrong(
        "log_sum_exp_without_shift", "The backward overflows where the forward was made stable.", special="large x"
    ).at(
        with_vjp(log_sum_exp, log_sum_exp_without_shift), log_sum_exp, point, [[800.0, 799.0, 798.5], [0.3, 1.0, -0.2]]
    ),
    wrong("logistic_loss_by_ratio", "Inf over Inf, where the slope is 1.", special="large x").at(
        with_vjp(logistic_loss, logistic_loss_by_ratio), logistic_loss, point, [900.0, -900.0, 0.5]
    ),
    by_points(
        "logistic_loss_by_ratio_of_unseen_size",
        "Inputs of unit scale never overflow.",
        special="large x",
        shown_at=lambda: point([1e3, -1e3, 1e4, 0.5]),
    ).at(with_vjp(logistic_loss, logistic_loss_by_ratio), logistic_loss, normal, (4,)),
    wrong(
        "path_length_with_itself",
        "The root of a point's distance to itself sends back 0 · Inf.",
        special="a distance of zero",
    ).at(path_length, path_length_of_pairs, normal, (4, 2)),
    by_points(
        "square_by_ratio_at_zero",
        "0 / 0 where the slope is 0.",
        special="x == 0",
        shown_at=lambda: point([0.0, 1.0, 0.0, -1.0]),
    ).at(with_vjp(square, square_by_ratio), square, uniform, 0.5, 2.0, (4,)),
    wrong(
        "product_by_logs_at_zero",
        "The logarithm of a zero factor is infinite, the product and its slope are not.",
        special="x == 0",
    ).at(product_by_logs, product, point, [[1.5, 0.0, -2.0], [0.5, 1.0, 2.0]]),
    wrong(
        "smooth_minimum_with_infinite_entry",
        "An entry of weight 0 and value Inf is removed from the sum but not from its gradient.",
        special="an infinite entry",
    ).at(smooth_minimum, smooth_minimum_safely, normal, (2, 3)),
    wrong(
        "bounded_ratio_at_zero",
        "0 / 0 in the branch that was not chosen; one of the inputs is exactly 0.",
        special="x == 0",
    ).at(bounded_ratio, bounded_ratio_safely, spread, -1.0, 2.0, 4),
)
