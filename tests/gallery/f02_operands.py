"""F2: wrong order of operands, wrong index, axis or argument slot. All shapes let the mistake run without an error."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.gallery.case import Case
from tests.gallery.inputs import at, indices, normal
from tests.gallery.mutants import rolled, rule, swapped, transposed


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


CASES = (
    Case(
        "product_without_transpose",
        "F2",
        at(rule(product, product_without_transpose), normal, (3, 3), (3, 3)),
        "A square second factor lets a missing transpose run.",
        twin=product,
    ),
    Case(
        "gated_with_swapped_gradients",
        "F2",
        at(swapped(gated), normal, (4,), (4,)),
        "Two gradients of one shape are returned in each other's place.",
        twin=gated,
    ),
    Case(
        "bilinear_weight_transposed",
        "F2",
        at(transposed(bilinear, slot=1), normal, (3,), (3, 3), (3,)),
        "The outer product of a square weight's gradient has its factors in the wrong order.",
        twin=bilinear,
    ),
    Case(
        "prefix_sum_without_flip",
        "F2",
        at(rule(prefix_sum, prefix_sum_without_flip), normal, (2, 5)),
        "A scan runs backward in its own adjoint.",
        twin=prefix_sum,
    ),
    Case(
        "shift_the_same_way",
        "F2",
        at(rule(shift, shift_the_same_way), normal, (2, 5)),
        "The adjoint of a shift shifts back.",
        twin=shift,
    ),
    Case(
        "scores_with_query_for_key",
        "F2",
        at(rule(scores, scores_with_query_for_key), normal, (3, 4), (3, 4)),
        "With as many keys as queries one may stand for the other.",
        twin=scores,
    ),
    Case(
        "pick_along_the_other_axis",
        "F2",
        at(rule(pick, pick_along_the_other_axis), normal, (4, 4)),
        "A gather along columns is scattered back along rows.",
        twin=pick,
    ),
    Case(
        "correlation_without_flip",
        "F2",
        at(rule(correlation, correlation_without_flip), normal, (6,), (3,)),
        "The adjoint of a correlation is a convolution: the kernel is reversed.",
        twin=correlation,
    ),
    Case(
        "cross_in_wrong_order",
        "F2",
        at(rule(cross, cross_in_wrong_order), normal, (2, 3), (2, 3)),
        "A cross product changes its sign with the order of its factors.",
        twin=cross,
    ),
    Case(
        "quaternion_product_commuted",
        "F2",
        at(rule(quaternion_product, quaternion_product_commuted), normal, (2, 4), (2, 4)),
        "Quaternions do not commute, and neither do their adjoints.",
        twin=quaternion_product,
    ),
    Case(
        "difference_as_its_own_adjoint",
        "F2",
        at(rule(difference, difference_as_its_own_adjoint), normal, (6,)),
        "The adjoint of a forward difference is the negative backward difference.",
        twin=difference,
    ),
    Case(
        "cycled_without_inverse",
        "F2",
        at(rule(cycled, cycled_without_inverse), normal, (2, 2, 2)),
        "A permutation of three axes is not its own inverse; a cube lets it run.",
        twin=cycled,
    ),
    Case(
        "rotary_turned_twice",
        "F2",
        at(rule(rotary, rotary_turned_twice), normal, (3, 4)),
        "The sine keeps its sign in the adjoint of a rotation.",
        twin=rotary,
    ),
    Case(
        "gated_rolled_by_one",
        "F2",
        at(rolled(gated), normal, (5,), (5,)),
        "Every gradient lands one entry too far.",
        twin=gated,
    ),
)
