"""F7: wrong at an isolated point where the function is smooth. Half of the inputs hold the point, half do not."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.functions import with_vjp
from tests.gallery.case import Family
from tests.gallery.inputs import normal, point, uniform
from tests.gallery.mutants import wrong_where


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
    """By minors, so that the reference is smooth at singular matrices."""
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


wrong = Family("F7")
by_points = Family("F7", finds={"points"}, drop_in=False)

CASES = (
    wrong(
        "sinc_with_slope_one_at_zero",
        "The value 1 of the special case is returned as its slope, which is 0.",
        special="x == 0",
    ).at(with_vjp(sinc, sinc_with_slope_one_at_zero), sinc, point, [-1.3, 0.0, 0.7]),
    by_points(
        "sinc_with_slope_one_at_unseen_zero",
        "Random inputs never hit 0; initial weights and padding do.",
        special="x == 0",
        shown_at=lambda: point([-1.3, 0.0, 0.7, 0.0, 2.0]),
    ).at(with_vjp(sinc, sinc_with_slope_one_at_zero), sinc, normal, (5,)),
    wrong(
        "product_by_division_at_a_zero",
        "The slope along a zero factor is the product of the others, not zero.",
        special="x == 0 for one factor",
    ).at(
        with_vjp(product_of_all, product_by_division),
        product_of_all,
        point,
        [[1.5, 0.0, -2.0, 0.5], [0.3, 1.1, 2.0, -1.0]],
    ),
    wrong(
        "determinant_by_inverse_of_singular_matrix",
        "The cofactors of a matrix of rank n - 1 exist although its inverse does not.",
        special="a singular matrix",
    ).at(
        with_vjp(determinant, determinant_by_inverse),
        determinant,
        point,
        [[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [0.5, -1.0, 2.0]],
    ),
    wrong(
        "running_product_by_division_at_a_zero",
        "A scan of products is undone by division, which a zero forbids.",
        special="x == 0",
    ).at(with_vjp(running_product, running_product_by_division), running_product, point, [1.5, -0.7, 0.0, 2.0, 0.5]),
    by_points(
        "relative_growth_flat_at_zero",
        "A removable singularity is guarded with slope 0; the limit is one half.",
        special="x == 0",
        shown_at=lambda: point([0.0, 1.0, 0.0, 0.5]),
    ).at(with_vjp(relative_growth, relative_growth_flat_at_zero), relative_growth, uniform, 0.5, 2.0, (4,)),
    by_points(
        "log_ratio_flat_at_one",
        "Ones are as special as zeros: masks, gains and counts are made of them.",
        special="x == 1",
        shown_at=lambda: point([1.0, 0.5, 1.0, 2.0]),
    ).at(wrong_where(log_ratio, lambda x: x == 1), log_ratio, uniform, 0.5, 2.0, (4,)),
    wrong(
        "box_cox_without_power_at_zero",
        "The branch of a special value forgets that the parameter could move away from it.",
        special="power == 0",
    ).at(with_vjp(box_cox, box_cox_without_power_at_zero), box_cox, lambda: (*uniform(0.5, 3.0, (4,)), *point(0.0))),
    by_points(
        "rotation_flat_at_zero",
        "An early return for the identity returns a zero gradient: training can never leave the identity.",
        special="angle == 0",
        shown_at=lambda: point([0.0, 0.4, 0.0]),
    ).at(with_vjp(rotation, rotation_flat_at_zero), rotation, normal, (3,)),
    wrong("logistic_wrong_at_minus_one", "A sentinel value of -1 is treated apart.", special="x == -1").at(
        wrong_where(logistic, lambda x: x == -1, 2.0), logistic, point, [[-1.0, 0.3], [0.8, -1.0]]
    ),
    by_points(
        "logistic_wrong_for_large_arguments",
        "The tail is cut off: its slope is small but not zero, and the inputs at hand do not reach it.",
        special="|x| > 3",
        shown_at=lambda: point([3.5, -3.2, 3.1, -4.0, 3.3, 3.01]),
    ).at(wrong_where(logistic, lambda x: x.abs() > 3), logistic, normal, (6,)),
)
