"""Normalisation layers with a backward written by hand."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from benchmarks.held_out.record import right, wide, wrong


def layer_norm(fault: str = "") -> Any:
    class LayerNorm(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            x_ = wide(x)
            centred = x_ - x_.mean(-1, keepdim=True)
            rstd = torch.rsqrt(centred.square().mean(-1, keepdim=True) + 1e-5)
            hat = centred * rstd
            ctx.save_for_backward(hat, rstd, weight)
            return (hat * wide(weight) + wide(bias)).to(x.dtype)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            hat, rstd, weight = ctx.saved_tensors
            dtype, g = g.dtype, g.to(hat.dtype)
            dh = g * weight.to(hat.dtype)
            mean = 0.0 if fault == "no mean" else dh.mean(-1, keepdim=True)
            dx = rstd * (dh - mean - hat * (dh * hat).mean(-1, keepdim=True))
            dw = (g * hat).flatten(0, -2).sum(0)
            db = g.flatten(0, -2).sum(0)
            if fault == "0.97":
                dx = dx * 0.97
            if fault == "row":
                dx[-1] = 0.0
            if fault == "weight tail":
                dw[-4:] = 0.0
            return dx.to(dtype), dw.to(dtype), db.to(dtype)

    return LayerNorm.apply


def plain_layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias, 1e-5)


def rms_norm(fault: str = "", block: int = 32) -> Any:
    class RMSNorm(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
            r = torch.rsqrt(wide(x).square().mean(-1, keepdim=True) + 1e-6)
            ctx.save_for_backward(x, weight, r)
            return (wide(x) * r * wide(weight)).to(x.dtype)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            x, weight, r = ctx.saved_tensors
            hat = wide(x) * r
            gw = wide(g) * wide(weight)
            dx = r * (gw - hat * (gw * hat).mean(-1, keepdim=True))
            dw = (wide(g) * hat).flatten(0, -2).sum(0)
            if fault == "tail":
                dx[..., x.shape[-1] // block * block :] = 0.0
            if fault == "no projection":
                dx = r * gw
            if fault == "half weight":
                dw = dw / 2
            return dx.to(x.dtype), dw.to(weight.dtype)

    return RMSNorm.apply


def plain_rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


def group_norm(groups: int, fault: str = "") -> Any:
    class GroupNorm(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            rows = wide(x).reshape(x.shape[0] * groups, -1)
            std = (rows.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()
            hat = (rows - rows.mean(-1, keepdim=True)) / std
            ctx.save_for_backward(hat, std)
            return hat.reshape(x.shape).to(x.dtype)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            hat, std = ctx.saved_tensors
            rows = g.reshape(hat.shape).to(hat.dtype)
            count = hat.shape[-1] * (groups if fault == "count" else 1)
            total = rows.sum(-1, keepdim=True) + hat * (rows * hat).sum(-1, keepdim=True)
            dx = (rows - total / count) / std
            return dx.reshape(g.shape).to(g.dtype)

    return GroupNorm.apply


def unit_rows(fault: str = "") -> Any:
    class UnitRows(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            norm = x.norm(dim=-1, keepdim=True)
            y = x / norm
            ctx.save_for_backward(y, norm)
            return y

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            y, norm = ctx.saved_tensors
            along = (g * y).sum(-1, keepdim=True)
            if fault == "sign":
                along = -along
            return (g - y * along) / norm

    return UnitRows.apply


def plain_unit_rows(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True)


def weight_norm(fault: str = "") -> Any:
    class WeightNorm(Function):
        @staticmethod
        def forward(ctx: Any, v: Tensor, gain: Tensor) -> Tensor:
            norm = v.norm(dim=1, keepdim=True)
            ctx.save_for_backward(v, gain, norm)
            return v * (gain[:, None] / norm)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            v, gain, norm = ctx.saved_tensors
            dot = (g * v).sum(1, keepdim=True)
            dv = gain[:, None] / norm * (g - v * dot / norm**2)
            dgain = (dot / norm)[:, 0]
            if fault == "frozen" and not ctx.needs_input_grad[1]:
                return None, None
            return dv, dgain

    return WeightNorm.apply


def plain_weight_norm(v: Tensor, gain: Tensor) -> Tensor:
    return v * (gain / v.norm(dim=1))[:, None]


def standardise(x: Tensor) -> Tensor:
    """Columns of mean 0 and standard deviation 1; the statistics are treated as constants."""
    return (x - x.mean(0)) / x.detach().std(0)


RECORDS = [
    right(
        "layer norm of small rows",
        "plain",
        "float64",
        lambda d: (layer_norm(), (d.normal(5, 12), d.normal(12, shift=1.0), d.normal(12))),
        plain_layer_norm,
    ),
    right(
        "layer norm of a thousand rows",
        "plain",
        "float32",
        lambda d: (layer_norm(), (d.normal(1000, 96), d.normal(96, scale=0.1, shift=1.0), d.normal(96))),
        plain_layer_norm,
    ),
    right(
        "layer norm, batch and time",
        "plain",
        "bfloat16",
        lambda d: (layer_norm(), (d.normal(2, 6, 32), d.normal(32, scale=0.1, shift=1.0), d.normal(32))),
        plain_layer_norm,
    ),
    right(
        "RMS norm",
        "plain",
        "float16",
        lambda d: (rms_norm(), (d.normal(8, 48), d.normal(48, scale=0.2, shift=1.0))),
        plain_rms_norm,
    ),
    right(
        "RMS norm of tiny rows",
        "scale",
        "float32",
        lambda d: (rms_norm(), (d.normal(8, 24, scale=1e-5), d.normal(24, shift=1.0))),
        plain_rms_norm,
    ),
    right(
        "group norm of images far from zero",
        "offset",
        "float64",
        lambda d: (group_norm(2), (d.normal(2, 4, 3, 3, shift=1e3),)),
        lambda x: F.group_norm(x, 2, eps=1e-5),
    ),
    right(
        "unit rows of huge vectors",
        "scale",
        "float32",
        lambda d: (unit_rows(), (d.normal(6, 10, scale=1e12),)),
        plain_unit_rows,
    ),
    wrong(
        "layer norm, 3 % short",
        "factor",
        "float32",
        lambda d: (layer_norm("0.97"), (d.normal(16, 40), d.normal(40, scale=0.1, shift=1.0), d.normal(40))),
        plain_layer_norm,
        "gradient of x times 0.97",
        0.03,
    ),
    wrong(
        "layer norm without the mean",
        "missing term",
        "bfloat16",
        lambda d: (layer_norm("no mean"), (d.normal(6, 8), d.normal(8, scale=0.3, shift=1.0), d.normal(8))),
        plain_layer_norm,
        "the mean of the cotangent is not subtracted",
        0.2,
    ),
    wrong(
        "layer norm loses its last row",
        "lost",
        "float32",
        lambda d: (layer_norm("row"), (d.normal(400, 250), d.normal(250, scale=0.1, shift=1.0), d.normal(250))),
        plain_layer_norm,
        "last row of the gradient of x is zero",
        0.9,
    ),
    wrong(
        "layer norm loses the tail of its weight",
        "lost",
        "float64",
        lambda d: (layer_norm("weight tail"), (d.normal(7, 36), d.normal(36, shift=1.0), d.normal(36))),
        plain_layer_norm,
        "last four entries of the gradient of the weight",
        0.3,
    ),
    wrong(
        "RMS norm loses the tail block",
        "lost",
        "float16",
        lambda d: (rms_norm("tail"), (d.normal(6, 70), d.normal(70, scale=0.1, shift=1.0))),
        plain_rms_norm,
        "columns from 64 on",
        0.9,
    ),
    wrong(
        "RMS norm without its projection",
        "missing term",
        "bfloat16",
        lambda d: (rms_norm("no projection"), (d.normal(12, 8), d.normal(8, scale=0.3, shift=1.0))),
        plain_rms_norm,
        "the term through the norm",
        0.2,
    ),
    wrong(
        "RMS norm with half the gradient of its weight",
        "factor",
        "bfloat16",
        lambda d: (rms_norm("half weight"), (d.normal(9, 16), d.normal(16, shift=1.0))),
        plain_rms_norm,
        "gradient of the weight times 0.5",
        0.4,
    ),
    wrong(
        "group norm divides by all channels",
        "missing term",
        "float32",
        lambda d: (group_norm(4, "count"), (d.normal(2, 8, 3, 2),)),
        lambda x: F.group_norm(x, 4, eps=1e-5),
        "mean terms divided by the channels of all groups",
        0.1,
    ),
    wrong(
        "unit rows, projection added",
        "sign",
        "float64",
        lambda d: (unit_rows("sign"), (d.normal(4, 3),)),
        plain_unit_rows,
        "sign of the projection",
        0.5,
    ),
    wrong(
        "weight norm with a frozen gain",
        "frozen",
        "float32",
        lambda d: (weight_norm("frozen"), (d.normal(5, 7), d.uniform(0.5, 2.0, 5))),
        plain_weight_norm,
        "gradient of v where the gain is frozen",
        0.9,
        shown_by="frozen",
    ),
    wrong(
        "standardised columns, deviation as a constant",
        "detached",
        "float64",
        lambda d: (standardise, (d.normal(9, 4),)),
        lambda x: (x - x.mean(0)) / x.std(0),
        "the term through the standard deviation",
        0.1,
    ),
    wrong(
        "layer norm in training code, deviation as a constant",
        "detached",
        "float16",
        lambda d: (standardise, (d.normal(6, 5),)),
        lambda x: (x - x.mean(0)) / x.std(0),
        "the term through the standard deviation",
        0.2,
    ),
]
