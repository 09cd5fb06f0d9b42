"""F9: NaN or Inf where a finite derivative exists. Most of these are plain torch: autograd alone does not protect."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.gallery.case import Case
from tests.gallery.inputs import at, normal, point, spread, uniform
from tests.gallery.mutants import rule


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


CASES = (
    Case(
        "masked_root_of_negative",
        "F9",
        at(masked_root, point, [0.5, -0.5, 2.0, -1.0]),
        "The branch that is not chosen still sends back 0 · NaN.",
        twin=masked_root_safely,
        special="x < 0",
    ),
    Case(
        "energy_by_norm_of_zero_row",
        "F9",
        at(energy_by_norm, point, [[0.5, -1.0], [0.0, 0.0]]),
        "Inside a square the root's vertical tangent at zero is only a detour.",
        twin=energy,
        special="a row of zeros",
    ),
    Case(
        "energy_by_norm_of_unseen_zero_row",
        "F9",
        at(energy_by_norm, normal, (3, 2)),
        "Zero rows come with padding.",
        twin=energy,
        findings=frozenset({"points"}),
        drop_in=False,
        special="a row of zeros",
        shown_at=lambda: point([[0.0, 0.0], [0.5, -1.0], [0.0, 0.0]]),
    ),
    Case(
        "spread_by_deviation_of_constant_row",
        "F9",
        at(spread_by_deviation, point, [[1.0, 1.0, 1.0], [0.5, -1.0, 2.0]]),
        "A constant row has a variance with slope 0 but a deviation without slope.",
        twin=spread_by_variance,
        special="a constant row",
    ),
    Case(
        "masked_attention_of_empty_row",
        "F9",
        at(masked_attention, normal, (2, 3)),
        "The value of a fully masked row is repaired, its gradient is not.",
        twin=masked_attention_safely,
        special="a row that is masked altogether",
    ),
    Case(
        "log_sum_exp_without_shift",
        "F9",
        at(rule(log_sum_exp, log_sum_exp_without_shift), point, [[800.0, 799.0, 798.5], [0.3, 1.0, -0.2]]),
        "The backward overflows where the forward was made stable.",
        twin=log_sum_exp,
        special="large x",
    ),
    Case(
        "logistic_loss_by_ratio",
        "F9",
        at(rule(logistic_loss, logistic_loss_by_ratio), point, [900.0, -900.0, 0.5]),
        "Inf over Inf, where the slope is 1.",
        twin=logistic_loss,
        special="large x",
    ),
    Case(
        "logistic_loss_by_ratio_of_unseen_size",
        "F9",
        at(rule(logistic_loss, logistic_loss_by_ratio), normal, (4,)),
        "Inputs of unit scale never overflow.",
        twin=logistic_loss,
        findings=frozenset({"points"}),
        drop_in=False,
        special="large x",
        shown_at=lambda: point([1e3, -1e3, 1e4, 0.5]),
    ),
    Case(
        "path_length_with_itself",
        "F9",
        at(path_length, normal, (4, 2)),
        "The root of a point's distance to itself sends back 0 · Inf.",
        twin=path_length_of_pairs,
        special="a distance of zero",
    ),
    Case(
        "square_by_ratio_at_zero",
        "F9",
        at(rule(square, square_by_ratio), uniform, 0.5, 2.0, (4,)),
        "0 / 0 where the slope is 0.",
        twin=square,
        findings=frozenset({"points"}),
        drop_in=False,
        special="x == 0",
        shown_at=lambda: point([0.0, 1.0, 0.0, -1.0]),
    ),
    Case(
        "product_by_logs_at_zero",
        "F9",
        at(product_by_logs, point, [[1.5, 0.0, -2.0], [0.5, 1.0, 2.0]]),
        "The logarithm of a zero factor is infinite, the product and its slope are not.",
        twin=product,
        special="x == 0",
    ),
    Case(
        "smooth_minimum_with_infinite_entry",
        "F9",
        at(smooth_minimum, normal, (2, 3)),
        "An entry of weight 0 and value Inf is removed from the sum but not from its gradient.",
        twin=smooth_minimum_safely,
        special="an infinite entry",
    ),
    Case(
        "bounded_ratio_at_zero",
        "F9",
        at(bounded_ratio, spread, -1.0, 2.0, 4),
        "0 / 0 in the branch that was not chosen; one of the inputs is exactly 0.",
        twin=bounded_ratio_safely,
        special="x == 0",
    ),
)
