"""F2: wrong order of operands, wrong index, axis or argument slot. All shapes let the mistake run without an error."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.functions import with_vjp
from tests.gallery.case import Family
from tests.gallery.inputs import indices, normal
from tests.gallery.mutants import rolled, swapped, transposed


def product(a: Tensor, b: Tensor) -> Tensor:
    return a @ b


def product_without_transpose(v: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    return v @ b, a.mT @ v


def gated(a: Tensor, b: Tensor) -> Tensor:
    return torch.sin(a) * b


def bilinear(x: Tensor, weight: Tensor, y: Tensor) -> Tensor:
    return x @ weight @ y


def prefix_sum(x: Tensor) -> Tensor:
    return torch.cumsum(x * x, -1)


def prefix_sum_without_flip(v: Tensor, x: Tensor) -> Tensor:
    """The adjoint of a sum over all before is a sum over all after."""
    return 2 * x * torch.cumsum(v, -1)


def shift(x: Tensor) -> Tensor:
    return torch.roll(x**2, 1, -1)


def shift_the_same_way(v: Tensor, x: Tensor) -> Tensor:
    return 2 * x * torch.roll(v, 1, -1)


def scores(query: Tensor, key: Tensor) -> Tensor:
    return query @ key.mT / key.shape[-1] ** 0.5


def scores_with_query_for_key(v: Tensor, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    scale = key.shape[-1] ** -0.5
    return scale * v @ query, scale * v.mT @ query


ROWS = indices([2, 0, 1, 2])
CYCLE = (1, 2, 0)


def pick(x: Tensor) -> Tensor:
    """For each row the entry of one column."""
    return torch.gather(x**3, 1, ROWS[:, None])[:, 0]


def pick_along_the_other_axis(v: Tensor, x: Tensor) -> Tensor:
    return 3 * x**2 * torch.zeros_like(x).scatter_add(0, ROWS[None, :], v[None, :])


def correlation(x: Tensor, kernel: Tensor) -> Tensor:
    """A one-dimensional convolution as networks have it: 'same' size, zeros outside."""
    windows = torch.nn.functional.pad(x, (1, 1)).unfold(0, 3, 1)
    return windows @ kernel


def correlation_without_flip(v: Tensor, x: Tensor, kernel: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of the signal is a correlation with the reversed kernel."""
    return correlation(v, kernel), torch.nn.functional.pad(x, (1, 1)).unfold(0, 3, 1).mT @ v


def cross(a: Tensor, b: Tensor) -> Tensor:
    return torch.linalg.cross(a, b)


def cross_in_wrong_order(v: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    return torch.linalg.cross(b, v), torch.linalg.cross(a, v)


def quaternion_product(p: Tensor, q: Tensor) -> Tensor:
    a, u = p[:, :1], p[:, 1:]
    b, w = q[:, :1], q[:, 1:]
    real = a * b - (u * w).sum(-1, keepdim=True)
    return torch.cat([real, a * w + b * u + torch.linalg.cross(u, w)], -1)


def quaternion_product_commuted(v: Tensor, p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """The adjoint of p ↦ p q is v ↦ v q̄, of q ↦ p q is v ↦ p̄ v; here both multiply from the left."""
    mirror = torch.tensor([1.0, -1.0, -1.0, -1.0], dtype=p.dtype)
    return quaternion_product(q * mirror, v), quaternion_product(p * mirror, v)


def difference(x: Tensor) -> Tensor:
    """Forward differences on a ring."""
    return torch.exp(0.3 * (torch.roll(x, -1) - x))


def difference_as_its_own_adjoint(v: Tensor, x: Tensor) -> Tensor:
    g = 0.3 * v * difference(x)
    return torch.roll(g, -1) - g


def cycled(x: Tensor) -> Tensor:
    return (x**2).permute(CYCLE).contiguous()


def cycled_without_inverse(v: Tensor, x: Tensor) -> Tensor:
    return 2 * x * v.permute(CYCLE)


def rotary(x: Tensor) -> Tensor:
    """Rotary position embedding: pairs of features turn by an angle that grows with the position."""
    angle = torch.arange(x.shape[0], dtype=x.dtype)[:, None]
    even, odd = x[:, ::2], x[:, 1::2]
    turned = even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos()
    return torch.stack(turned, -1).reshape(x.shape)


def rotary_turned_twice(v: Tensor, x: Tensor) -> Tensor:
    """The adjoint of a rotation turns back."""
    return rotary(v)


wrong = Family("F2")

CASES = (
    wrong("product_without_transpose", "A square second factor lets a missing transpose run.").at(
        with_vjp(product, product_without_transpose), product, normal, (3, 3), (3, 3)
    ),
    wrong("gated_with_swapped_gradients", "Two gradients of one shape are returned in each other's place.").at(
        swapped(gated), gated, normal, (4,), (4,)
    ),
    wrong(
        "bilinear_weight_transposed",
        "The outer product of a square weight's gradient has its factors in the wrong order.",
    ).at(transposed(bilinear, slot=1), bilinear, normal, (3,), (3, 3), (3,)),
    wrong("prefix_sum_without_flip", "A scan runs backward in its own adjoint.").at(
        with_vjp(prefix_sum, prefix_sum_without_flip), prefix_sum, normal, (2, 5)
    ),
    wrong("shift_the_same_way", "The adjoint of a shift shifts back.").at(
        with_vjp(shift, shift_the_same_way), shift, normal, (2, 5)
    ),
    wrong("scores_with_query_for_key", "With as many keys as queries one may stand for the other.").at(
        with_vjp(scores, scores_with_query_for_key), scores, normal, (3, 4), (3, 4)
    ),
    wrong("pick_along_the_other_axis", "A gather along columns is scattered back along rows.").at(
        with_vjp(pick, pick_along_the_other_axis), pick, normal, (4, 4)
    ),
    wrong("correlation_without_flip", "The adjoint of a correlation is a convolution: the kernel is reversed.").at(
        with_vjp(correlation, correlation_without_flip), correlation, normal, (6,), (3,)
    ),
    wrong("cross_in_wrong_order", "A cross product changes its sign with the order of its factors.").at(
        with_vjp(cross, cross_in_wrong_order), cross, normal, (2, 3), (2, 3)
    ),
    wrong("quaternion_product_commuted", "Quaternions do not commute, and neither do their adjoints.").at(
        with_vjp(quaternion_product, quaternion_product_commuted), quaternion_product, normal, (2, 4), (2, 4)
    ),
    wrong(
        "difference_as_its_own_adjoint", "The adjoint of a forward difference is the negative backward difference."
    ).at(with_vjp(difference, difference_as_its_own_adjoint), difference, normal, (6,)),
    wrong("cycled_without_inverse", "A permutation of three axes is not its own inverse; a cube lets it run.").at(
        with_vjp(cycled, cycled_without_inverse), cycled, normal, (2, 2, 2)
    ),
    wrong("rotary_turned_twice", "The sine keeps its sign in the adjoint of a rotation.").at(
        with_vjp(rotary, rotary_turned_twice), rotary, normal, (3, 4)
    ),
    wrong("gated_rolled_by_one", "Every gradient lands one entry too far.").at(
        rolled(gated), gated, normal, (5,), (5,)
    ),
)
