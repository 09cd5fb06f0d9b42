"""F29: reverse mode is right, forward mode is wrong, below float64 alone.

In float64 both modes are right, or the function refuses it: only a comparison of the tangent in the given precision
shows the fault.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.functions import as_tuple, with_rules
from tests.gallery import kernels, proofs
from tests.gallery.case import Family, Function
from tests.gallery.inputs import normal
from tests.gallery.kernels import wide

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


def below_double(formula: Function, vjp: Function, jvp: Function, wrong_jvp: Function, *, refuses: bool = False) -> Any:
    """`formula` with both derivatives; forward mode is `wrong_jvp` in every dtype but float64, which it may refuse."""

    def forward(*inputs: Tensor) -> Any:
        if refuses and inputs[0].dtype == torch.float64:
            raise TypeError("there is no float64 version of this kernel")
        return formula(*inputs)

    def tangent(*values: Tensor) -> Tensor:
        return (jvp if values[0].dtype == torch.float64 else wrong_jvp)(*values)

    return with_rules(forward, lambda *values: as_tuple(vjp(*values)), tangent)


def swish_jvp(u: Tensor, x: Tensor) -> Tensor:
    """Elementwise: the slope is the same in both modes."""
    return kernels.swish_vjp(u, x)


def swish_jvp_of_sigmoid(u: Tensor, x: Tensor) -> Tensor:
    """Without the product rule."""
    return (wide(u) * torch.sigmoid(wide(x))).to(x.dtype)


def squash_jvp(u: Tensor, x: Tensor) -> Tensor:
    return kernels.squash_vjp(u, x)


def squash_jvp_halved(u: Tensor, x: Tensor) -> Tensor:
    return 0.5 * kernels.squash_vjp(u, x)


def softmax_jvp(u: Tensor, x: Tensor) -> Tensor:
    """The Jacobian is symmetric."""
    return kernels.softmax_vjp(u, x)


def softmax_jvp_without_coupling(u: Tensor, x: Tensor) -> Tensor:
    return (wide(u) * torch.softmax(wide(x), -1)).to(x.dtype)


def linear_jvp(du: Tensor, dw: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    return (wide(du) @ wide(weight) + wide(x) @ wide(dw)).to(x.dtype)


def linear_jvp_without_weight(du: Tensor, dw: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    return (wide(du) @ wide(weight)).to(x.dtype)


def growth_jvp(u: Tensor, x: Tensor) -> Tensor:
    return kernels.growth_vjp(u, x)


def growth_jvp_lost(u: Tensor, x: Tensor) -> Tensor:
    return torch.zeros_like(u)


def log_total_jvp(u: Tensor, x: Tensor) -> Tensor:
    return (wide(u) * torch.softmax(wide(x), -1)).sum(-1).to(x.dtype)


def log_total_jvp_without_tail(u: Tensor, x: Tensor) -> Tensor:
    """Only the first block of a row is summed."""
    return (wide(u) * torch.softmax(wide(x), -1))[..., :64].sum(-1).to(x.dtype)


wrong = Family("F29", finds={"forward", "jvp_vjp_agree"}, drop_in=False, proof=proofs.forward_precision)

CASES = (
    wrong("squash_tangent_halved_in_float32", "Reverse mode is right, and in float64 so is forward mode.").at(
        below_double(kernels.squash, kernels.squash_vjp, squash_jvp, squash_jvp_halved),
        kernels.squash,
        normal,
        (7,),
        dtype=F32,
    ),
    wrong("swish_tangent_without_product_rule_in_float32", "One of two terms is missing; float64 is refused.").at(
        below_double(kernels.swish, kernels.swish_vjp, swish_jvp, swish_jvp_of_sigmoid, refuses=True),
        kernels.swish,
        normal,
        (5, 6),
        dtype=F32,
    ),
    wrong("softmax_tangent_without_coupling_in_bfloat16", "The tangent of a row does not add up to zero.").at(
        below_double(kernels.softmax, kernels.softmax_vjp, softmax_jvp, softmax_jvp_without_coupling),
        kernels.softmax,
        normal,
        (3, 4),
        dtype=BF16,
    ),
    wrong("linear_tangent_without_weight_in_bfloat16", "The tangent of the weight is dropped.").at(
        below_double(kernels.linear, kernels.linear_vjp, linear_jvp, linear_jvp_without_weight),
        kernels.linear,
        normal,
        (4, 10),
        (10, 3),
        dtype=BF16,
    ),
    wrong("growth_tangent_lost_in_bfloat16", "A tangent of zeros for 12,800 entries; float64 is refused.").at(
        below_double(kernels.growth, kernels.growth_vjp, growth_jvp, growth_jvp_lost, refuses=True),
        kernels.growth,
        normal,
        (100, 128),
        dtype=BF16,
    ),
    wrong("log_total_tangent_without_tail_in_float16", "Rows of 100 are summed up to their 64th entry.").at(
        below_double(kernels.log_total, kernels.log_total_vjp, log_total_jvp, log_total_jvp_without_tail),
        kernels.log_total,
        normal,
        (6, 100),
        dtype=F16,
    ),
)
