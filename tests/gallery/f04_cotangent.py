"""F4: the incoming cotangent is ignored, mis-scaled or used non-linearly.

A Jacobian built from unit cotangents cannot see most of these: e, e², sign(e) and e / |e| are the same.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tests.functions import with_cotangents_changed, with_vjp
from tests.gallery import conditions
from tests.gallery.case import Family, Function
from tests.gallery.inputs import indices, normal
from tests.gallery.mutants import ignoring_cotangent

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


def ones_for_undefined(v_cos: Tensor | None, v_sin: Tensor | None, x: Tensor) -> Tensor:
    """Takes an undefined cotangent for ones, which `loss.backward()` starts with."""
    first = torch.ones_like(x) if v_cos is None else v_cos
    second = torch.ones_like(x) if v_sin is None else v_sin
    return second * torch.cos(x) - first * torch.sin(x)


def nothing_for_undefined(v_cos: Tensor | None, v_sin: Tensor | None, x: Tensor) -> Tensor | None:
    if v_cos is None:
        return None
    return (0.0 if v_sin is None else v_sin * torch.cos(x)) - v_cos * torch.sin(x)


def above(least: float, forward: Function) -> Function:
    """Smaller numbers of the cotangent count as zero."""
    return with_cotangents_changed(forward, lambda v: torch.where(v.abs() > least, v, 0.0))


wrong = Family("F4")
by_linearity = Family("F4", finds={"linearity"}, drop_in=False)

CASES = (
    wrong(
        "cross_entropy_ignores_cotangent",
        "A loss is mostly the end of the graph, where the cotangent is 1; weighted in a sum it is not.",
        finds={"reverse", "linearity"},
    ).at(ignoring_cotangent(cross_entropy), cross_entropy, normal, (4, 3)),
    wrong(
        "softplus_ignores_cotangent",
        "A vector of ones for the cotangent is right only below a plain sum.",
        finds={"reverse", "linearity"},
    ).at(ignoring_cotangent(softplus), softplus, normal, (5,)),
    wrong("softplus_uses_first_cotangent", "The first number of the cotangent stands for all.").at(
        with_cotangents_changed(softplus, lambda v: v.flatten()[0].expand_as(v)), softplus, normal, (5,)
    ),
    by_linearity(
        "polynomial_uses_sign_of_cotangent",
        "A sign-gradient trick left in: unit cotangents cannot tell.",
        special="a cotangent that is not of unit entries",
    ).at(with_cotangents_changed(polynomial, torch.sign), polynomial, normal, (5,)),
    by_linearity(
        "polynomial_clips_cotangent",
        "Gradient clipping inside the backward is right for small cotangents only.",
        special="a cotangent larger than 1",
    ).at(with_cotangents_changed(polynomial, lambda v: v.clamp(-1, 1)), polynomial, normal, (5,)),
    by_linearity(
        "polynomial_squares_cotangent",
        "A cotangent is multiplied in twice: 0 and 1 are their own squares.",
        special="a cotangent that is not of zeros and ones",
    ).at(with_cotangents_changed(polynomial, torch.square), polynomial, normal, (5,)),
    by_linearity(
        "polynomial_normalises_cotangent",
        "Gradient normalisation in the backward makes it non-linear.",
        special="a cotangent that is not of unit length",
    ).at(with_cotangents_changed(polynomial, unit_length), polynomial, normal, (5,)),
    by_linearity(
        "total_drops_loss_scale",
        "The scale of the loss is divided out although someone else does that later.",
        special="a cotangent other than 1",
    ).at(with_cotangents_changed(total, relative_to_largest), total, normal, (5,)),
    by_linearity(
        "polynomial_of_large_cotangents_alone",
        "What looks like padding is skipped: the mean over a batch has cotangents as small.",
        special="a small cotangent",
        proof=conditions.small_cotangent,
    ).at(above(1e-4, polynomial), polynomial, normal, (5,)),
    by_linearity(
        "polynomial_of_large_cotangents_alone_in_bfloat16",
        "Half precision with the range of float32.",
        special="a small cotangent",
        proof=conditions.small_cotangent,
    ).at(above(1e-4, polynomial), polynomial, normal, (5,), dtype=torch.bfloat16),
    wrong(
        "polynomial_of_large_cotangents_alone_in_float16",
        "A threshold that rounding hides in float16 shows in float64.",
        special="a small cotangent",
        finds={"precision"},
        drop_in=False,
        proof=conditions.cotangent(lambda v: 2.0**-9 * v),
    ).at(above(1e-2, polynomial), polynomial, normal, (5,), dtype=torch.float16),
    by_linearity(
        "polynomial_clips_at_a_thousand",
        "A guard against overflow: scaled losses have cotangents as large.",
        special="a large cotangent",
        proof=conditions.large_cotangent,
    ).at(with_cotangents_changed(polynomial, lambda v: v.clamp(-1e3, 1e3)), polynomial, normal, (5,)),
    wrong("softplus_divides_by_count", "The mean of a later loss is divided by here, too.").at(
        with_cotangents_changed(softplus, lambda v: v / v.numel()), softplus, normal, (5,)
    ),
    wrong("moments_of_the_first_only", "Of two outputs only the first one's cotangent is used.").at(
        with_vjp(moments, moments_of_the_first_only), moments, normal, (3, 4)
    ),
    wrong(
        "ones_for_undefined_cotangent",
        "An output that is not used has a cotangent of zero, not of one.",
        finds={"none_grad_output", "reverse"},
        special="an output that is not used",
        proof=conditions.undefined_cotangent,
    ).at(with_vjp(sum_and_sine, ones_for_undefined, materialize=False), sum_and_sine, normal, (4,)),
    wrong(
        "sine_lost_where_the_cosine_is_not_used",
        "Without a cotangent for the first output backward returns nothing, though the second has one.",
        finds={"none_grad_output"},
        special="an output that is not used",
        proof=conditions.undefined_cotangent,
    ).at(with_vjp(sum_and_sine, nothing_for_undefined, materialize=False), sum_and_sine, normal, (4,)),
)
