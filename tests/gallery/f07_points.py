"""F7: wrong at an isolated point where the function is smooth. Half of the inputs hold the point, half do not."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.gallery.case import Case
from tests.gallery.inputs import at, normal, point, uniform
from tests.gallery.mutants import rule, wrong_where

POINTS = frozenset({"points"})


def sinc(x: Tensor) -> Tensor:
    """sin(x) / x, by its series near 0 so that autograd is right there."""
    near = x.abs() < 1e-2
    safe = torch.where(near, 1.0, x)
    return torch.where(near, 1 - x**2 / 6 + x**4 / 120, torch.sin(safe) / safe)


def sinc_with_slope_one_at_zero(v: Tensor, x: Tensor) -> Tensor:
    safe = torch.where(x == 0, 1.0, x)
    return v * torch.where(x == 0, 1.0, (torch.cos(safe) - torch.sin(safe) / safe) / safe)


def product_of_all(x: Tensor) -> Tensor:
    return torch.prod(x, -1)


def product_by_division(v: Tensor, x: Tensor) -> Tensor:
    """y / x is the product of the others, except at 0."""
    y = torch.prod(x, -1, keepdim=True)
    return v[..., None] * torch.where(x == 0, 0.0, y / x)


def determinant(a: Tensor) -> Tensor:
    """By minors, so that the twin is smooth at singular matrices."""
    minors = torch.linalg.cross(a[..., 1, :], a[..., 2, :])
    return (a[..., 0, :] * minors).sum(-1)


def determinant_by_inverse(v: Tensor, a: Tensor) -> Tensor:
    return v[..., None, None] * determinant(a)[..., None, None] * torch.linalg.pinv(a).mT


def running_product(x: Tensor) -> Tensor:
    steps = [x[..., 0]]
    for index in range(1, x.shape[-1]):
        steps.append(steps[-1] * x[..., index])
    return torch.stack(steps, -1)


def running_product_by_division(v: Tensor, x: Tensor) -> Tensor:
    reversed_sum = (v * running_product(x)).flip(-1).cumsum(-1).flip(-1)
    return torch.where(x == 0, 0.0, reversed_sum / x)


def relative_growth(x: Tensor) -> Tensor:
    """(eˣ - 1) / x, by its series near 0."""
    near = x.abs() < 1e-2
    safe = torch.where(near, 1.0, x)
    return torch.where(near, 1 + x / 2 + x**2 / 6 + x**3 / 24 + x**4 / 120, torch.expm1(safe) / safe)


def relative_growth_flat_at_zero(v: Tensor, x: Tensor) -> Tensor:
    """The limit of the derivative is 1/2."""
    safe = torch.where(x == 0, 1.0, x)
    return v * torch.where(x == 0, 0.0, (torch.exp(safe) * (safe - 1) + 1) / safe**2)


def log_ratio(x: Tensor) -> Tensor:
    """log(x) / (x - 1), by its series near 1."""
    t = x - 1
    near = t.abs() < 1e-2
    safe = torch.where(near, 1.0, t)
    series = sum((-t) ** k / (k + 1) for k in range(8))
    return torch.where(near, series, torch.log1p(safe) / safe)


def box_cox(x: Tensor, power: Tensor) -> Tensor:
    return torch.log(x) * relative_growth(power * torch.log(x))


def box_cox_without_power_at_zero(v: Tensor, x: Tensor, power: Tensor) -> tuple[Tensor, Tensor]:
    """The branch log(x) of power 0 has no power in it, but its limit has: d/dp = log²(x) / 2."""
    safe = torch.where(power == 0, 1.0, power)
    y = torch.log(x)
    raised = torch.exp(safe * y)
    slope = (raised * (safe * y - 1) + 1) / safe**2
    return v * torch.exp((power - 1) * y), torch.where(power == 0, 0.0, (v * slope).sum())


def rotation(angle: Tensor) -> Tensor:
    """A plane rotation of (3, 1)."""
    return torch.stack([3 * torch.cos(angle) - torch.sin(angle), 3 * torch.sin(angle) + torch.cos(angle)])


def rotation_flat_at_zero(v: Tensor, angle: Tensor) -> Tensor:
    """An early return for the identity: `if angle == 0: return zeros`."""
    slope = torch.stack([-3 * torch.sin(angle) - torch.cos(angle), 3 * torch.cos(angle) - torch.sin(angle)])
    return torch.where(angle == 0, 0.0, (v * slope).sum(0))


def logistic(x: Tensor) -> Tensor:
    return torch.sigmoid(2 * x)


CASES = (
    Case(
        "sinc_with_slope_one_at_zero",
        "F7",
        at(rule(sinc, sinc_with_slope_one_at_zero), point, [-1.3, 0.0, 0.7]),
        "The value 1 of the special case is returned as its slope, which is 0.",
        twin=sinc,
        special="x == 0",
    ),
    Case(
        "sinc_with_slope_one_at_unseen_zero",
        "F7",
        at(rule(sinc, sinc_with_slope_one_at_zero), normal, (5,)),
        "Random inputs never hit 0; initial weights and padding do.",
        twin=sinc,
        findings=POINTS,
        drop_in=False,
        special="x == 0",
        shown_at=lambda: point([-1.3, 0.0, 0.7, 0.0, 2.0]),
    ),
    Case(
        "product_by_division_at_a_zero",
        "F7",
        at(rule(product_of_all, product_by_division), point, [[1.5, 0.0, -2.0, 0.5], [0.3, 1.1, 2.0, -1.0]]),
        "The slope along a zero factor is the product of the others, not zero.",
        twin=product_of_all,
        special="x == 0 for one factor",
    ),
    Case(
        "determinant_by_inverse_of_singular_matrix",
        "F7",
        at(rule(determinant, determinant_by_inverse), point, [[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [0.5, -1.0, 2.0]]),
        "The cofactors of a matrix of rank n - 1 exist although its inverse does not.",
        twin=determinant,
        special="a singular matrix",
    ),
    Case(
        "running_product_by_division_at_a_zero",
        "F7",
        at(rule(running_product, running_product_by_division), point, [1.5, -0.7, 0.0, 2.0, 0.5]),
        "A scan of products is undone by division, which a zero forbids.",
        twin=running_product,
        special="x == 0",
    ),
    Case(
        "relative_growth_flat_at_zero",
        "F7",
        at(rule(relative_growth, relative_growth_flat_at_zero), uniform, 0.5, 2.0, (4,)),
        "A removable singularity is guarded with slope 0; the limit is one half.",
        twin=relative_growth,
        findings=POINTS,
        drop_in=False,
        special="x == 0",
        shown_at=lambda: point([0.0, 1.0, 0.0, 0.5]),
    ),
    Case(
        "log_ratio_flat_at_one",
        "F7",
        at(wrong_where(log_ratio, lambda x: x == 1), uniform, 0.5, 2.0, (4,)),
        "Ones are as special as zeros: masks, gains and counts are made of them.",
        twin=log_ratio,
        findings=POINTS,
        drop_in=False,
        special="x == 1",
        shown_at=lambda: point([1.0, 0.5, 1.0, 2.0]),
    ),
    Case(
        "box_cox_without_power_at_zero",
        "F7",
        at(rule(box_cox, box_cox_without_power_at_zero), lambda: (*uniform(0.5, 3.0, (4,)), *point(0.0))),
        "The branch of a special value forgets that the parameter could move away from it.",
        twin=box_cox,
        special="power == 0",
    ),
    Case(
        "rotation_flat_at_zero",
        "F7",
        at(rule(rotation, rotation_flat_at_zero), normal, (3,)),
        "An early return for the identity returns a zero gradient: training can never leave the identity.",
        twin=rotation,
        findings=POINTS,
        drop_in=False,
        special="angle == 0",
        shown_at=lambda: point([0.0, 0.4, 0.0]),
    ),
    Case(
        "logistic_wrong_at_minus_one",
        "F7",
        at(wrong_where(logistic, lambda x: x == -1, 2.0), point, [[-1.0, 0.3], [0.8, -1.0]]),
        "A sentinel value of -1 is treated apart.",
        twin=logistic,
        special="x == -1",
    ),
    Case(
        "logistic_wrong_for_large_arguments",
        "F7",
        at(wrong_where(logistic, lambda x: x.abs() > 3), normal, (6,)),
        "The tail is cut off: its slope is small but not zero, and the inputs at hand do not reach it.",
        twin=logistic,
        findings=POINTS,
        drop_in=False,
        special="|x| > 3",
        shown_at=lambda: point([3.5, -3.2, 3.1, -4.0, 3.3, 3.01]),
    ),
)
