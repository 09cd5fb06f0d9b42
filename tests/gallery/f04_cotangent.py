"""F4: the incoming cotangent is ignored, mis-scaled or used non-linearly.

A Jacobian built from unit cotangents cannot see most of these: e, e², sign(e) and e / |e| are the same.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.gallery import conditions
from tests.gallery.case import Case
from tests.gallery.inputs import at, indices, normal
from tests.gallery.mutants import fed, ignoring_cotangent, rule

LABELS = indices([1, 0, 2, 2])


def cross_entropy(logits: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(logits, LABELS)


def softplus(x: Tensor) -> Tensor:
    return torch.nn.functional.softplus(x)


def polynomial(x: Tensor) -> Tensor:
    return x**3 - 2 * x


def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.mean(-1), (x**2).mean(-1)


def moments_of_the_first_only(v_mean: Tensor, v_square: Tensor, x: Tensor) -> Tensor:
    return (v_mean[:, None] / x.shape[-1]).expand_as(x)


def total(x: Tensor) -> Tensor:
    return torch.sin(x).sum()


def unit_length(v: Tensor) -> Tensor:
    return v / v.norm().clamp(min=1e-30)


def relative_to_largest(v: Tensor) -> Tensor:
    return v / v.abs().max().clamp(min=1e-30)


def sum_and_sine(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.cos(x), torch.sin(x)


class OnesForUndefined(torch.autograd.Function):
    """Replaces an undefined cotangent by ones, the habit of `loss.backward()`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x)
        return sum_and_sine(x)

    @staticmethod
    def backward(ctx: Any, v_cos: Tensor | None, v_sin: Tensor | None) -> Tensor:
        (x,) = ctx.saved_tensors
        first = torch.ones_like(x) if v_cos is None else v_cos
        second = torch.ones_like(x) if v_sin is None else v_sin
        return second * torch.cos(x) - first * torch.sin(x)


CASES = (
    Case(
        "cross_entropy_ignores_cotangent",
        "F4",
        at(ignoring_cotangent(cross_entropy), normal, (4, 3)),
        "A loss is mostly the end of the graph, where the cotangent is 1; weighted in a sum it is not.",
        twin=cross_entropy,
        findings=frozenset({"reverse", "linearity"}),
    ),
    Case(
        "softplus_ignores_cotangent",
        "F4",
        at(ignoring_cotangent(softplus), normal, (5,)),
        "A vector of ones for the cotangent is right only below a plain sum.",
        twin=softplus,
        findings=frozenset({"reverse", "linearity"}),
    ),
    Case(
        "softplus_uses_first_cotangent",
        "F4",
        at(fed(softplus, lambda v: v.flatten()[0].expand_as(v)), normal, (5,)),
        "The first number of the cotangent stands for all.",
        twin=softplus,
    ),
    Case(
        "polynomial_uses_sign_of_cotangent",
        "F4",
        at(fed(polynomial, torch.sign), normal, (5,)),
        "A sign-gradient trick left in: unit cotangents cannot tell.",
        twin=polynomial,
        findings=frozenset({"linearity"}),
        drop_in=False,
        special="a cotangent that is not of unit entries",
    ),
    Case(
        "polynomial_clips_cotangent",
        "F4",
        at(fed(polynomial, lambda v: v.clamp(-1, 1)), normal, (5,)),
        "Gradient clipping inside the backward is right for small cotangents only.",
        twin=polynomial,
        findings=frozenset({"linearity"}),
        drop_in=False,
        special="a cotangent larger than 1",
    ),
    Case(
        "polynomial_squares_cotangent",
        "F4",
        at(fed(polynomial, torch.square), normal, (5,)),
        "A cotangent is multiplied in twice: 0 and 1 are their own squares.",
        twin=polynomial,
        findings=frozenset({"linearity"}),
        drop_in=False,
        special="a cotangent that is not of zeros and ones",
    ),
    Case(
        "polynomial_normalises_cotangent",
        "F4",
        at(fed(polynomial, unit_length), normal, (5,)),
        "Gradient normalisation in the backward makes it non-linear.",
        twin=polynomial,
        findings=frozenset({"linearity"}),
        drop_in=False,
        special="a cotangent that is not of unit length",
    ),
    Case(
        "total_drops_loss_scale",
        "F4",
        at(fed(total, relative_to_largest), normal, (5,)),
        "The scale of the loss is divided out although someone else does that later.",
        twin=total,
        findings=frozenset({"linearity"}),
        drop_in=False,
        special="a cotangent other than 1",
    ),
    Case(
        "softplus_divides_by_count",
        "F4",
        at(fed(softplus, lambda v: v / v.numel()), normal, (5,)),
        "The mean of a later loss is divided by here, too.",
        twin=softplus,
    ),
    Case(
        "moments_of_the_first_only",
        "F4",
        at(rule(moments, moments_of_the_first_only), normal, (3, 4)),
        "Of two outputs only the first one's cotangent is used.",
        twin=moments,
    ),
    Case(
        "ones_for_undefined_cotangent",
        "F4",
        at(OnesForUndefined.apply, normal, (4,)),
        "An output that nobody used has a cotangent of zero, not of one.",
        twin=sum_and_sine,
        findings=frozenset({"undefined", "reverse"}),
        special="an output that is not used",
        witness=conditions.undefined_cotangent,
    ),
)
