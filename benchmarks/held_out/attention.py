"""Attention, rotary embedding and linear maps."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from benchmarks.held_out.record import right, wide, wrong


def attention(fault: str = "", causal: bool = False) -> Any:
    class Attention(Function):
        @staticmethod
        def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            scale = 1 / math.sqrt(q.shape[-1])
            scores = wide(q) @ wide(k).mT * scale
            if causal:
                n = q.shape[-2]
                scores = scores.masked_fill(torch.ones(n, n).triu(1).bool(), float("-inf"))
            p = torch.softmax(scores, -1)
            ctx.save_for_backward(q, k, v, p)
            ctx.scale = scale
            return (p @ wide(v)).to(q.dtype)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            q, k, v, p = ctx.saved_tensors
            g_ = wide(g)
            dv = (p if fault == "transposed" else p.mT) @ g_
            dp = g_ @ wide(v).mT
            ds = p * (dp - (0.0 if fault == "no row sum" else (dp * p).sum(-1, keepdim=True)))
            dq, dk = ds @ wide(k) * ctx.scale, ds.mT @ wide(q) * ctx.scale
            if fault == "no scale":
                dk = dk / ctx.scale
            if fault == "last key":
                dk[..., -1, :] = 0.0
            if fault == "frozen" and not (ctx.needs_input_grad[1] and ctx.needs_input_grad[2]):
                dq = torch.zeros_like(dq)
            return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)

    return Attention.apply


def plain_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1) @ v


def plain_causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def angles(length: int, width: int) -> Tensor:
    rates = 100.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    return torch.arange(length, dtype=torch.float64)[:, None] * rates


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


def rotary(length: int, width: int, dtype: torch.dtype, fault: str = "") -> Any:
    """With tables in the precision of the model."""
    cos, sin = angles(length, width).cos().to(dtype), angles(length, width).sin().to(dtype)

    class Rotary(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return rotate(wide(x), cos.to(wide(x).dtype), sin.to(wide(x).dtype)).to(x.dtype)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            c, s = cos.to(wide(g).dtype), sin.to(wide(g).dtype)
            if fault == "positions":
                c, s = c.roll(1, 0), s.roll(1, 0)
            return rotate(wide(g), c, s if fault == "sign" else -s).to(g.dtype)

    return Rotary.apply


def plain_rotary(dtype: torch.dtype) -> Any:
    def rotated(x: Tensor) -> Tensor:
        table = angles(x.shape[-2], x.shape[-1])
        return rotate(x, table.cos().to(dtype).to(x.dtype), table.sin().to(dtype).to(x.dtype))

    return rotated


def memory_order(t: Tensor) -> Tensor:
    """The numbers of `t` in the order of memory, as a kernel reads them that trusts its argument to be contiguous."""
    if t.is_contiguous():
        return t
    held = t.untyped_storage().nbytes() // t.element_size() - t.storage_offset()
    flat = t.as_strided((min(held, t.numel()),), (1,))
    return flat.repeat(-(-t.numel() // len(flat)))[: t.numel()].reshape(t.shape)


def linear(fault: str = "") -> Any:
    class Linear(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            ctx.save_for_backward(x, weight)
            return x @ weight.mT + bias

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            x, weight = ctx.saved_tensors
            if fault == "strides":
                g = memory_order(g)
            if fault == "input strides":
                x = memory_order(x)
            dx = g @ (weight.mT if fault == "transposed" else weight)
            dw = g.mT @ x
            db = g.sum(0)
            if fault == "bias":
                db = g.mean(0)
            if fault == "no graph" and not ctx.needs_input_grad[1]:
                dx = None
            if fault == "0.998":
                dx = dx * 0.998
            if fault == "0.98":
                dw = dw * 0.98
            return dx, dw, db

    return Linear.apply


def gated(fault: str = "") -> Any:
    """x ⊙ σ(x W): the backward is differentiable or not."""

    class Gated(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            s = torch.sigmoid(x @ w)
            ctx.save_for_backward(x, w, s)
            return x * s

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            x, w, s = ctx.saved_tensors
            if fault != "saved":  # what forward computed has no graph: compute it again
                s = torch.sigmoid(x @ w)
            dz = g * x * s * (1 - s)
            return g * s + dz @ w.mT, x.mT @ dz

    return Gated.apply


def plain_gated(x: Tensor, w: Tensor) -> Tensor:
    return x * torch.sigmoid(x @ w)


def bilinear(fault: str = "") -> Any:
    class Bilinear(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, a: Tensor, y: Tensor) -> Tensor:
            ctx.save_for_backward(x, a, y)
            ctx.save_for_forward(x, a, y)
            return torch.einsum("bi,ij,bj->b", x, a, y)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            x, a, y = ctx.saved_tensors
            g = g[:, None]
            return g * (y @ a.T), x.T @ (g * y), g * (x @ a)

        @staticmethod
        def jvp(ctx: Any, tx: Any, ta: Any, ty: Any) -> Tensor:
            x, a, y = ctx.saved_tensors
            total = torch.zeros_like(x[:, 0])
            if tx is not None:
                total = total + torch.einsum("bi,ij,bj->b", tx, a, y)
            if ta is not None:
                total = total + torch.einsum("bi,ij,bj->b", x, ta, y)
            if ty is not None and fault != "forward":
                total = total + torch.einsum("bi,ij,bj->b", x, a, ty)
            return total

    return Bilinear.apply


def plain_bilinear(x: Tensor, a: Tensor, y: Tensor) -> Tensor:
    return torch.einsum("bi,ij,bj->b", x, a, y)


def transposed_leaf(d: Any, rows: int, columns: int) -> Tensor:
    return d.constant(columns, rows).T.requires_grad_()


RECORDS = [
    right(
        "attention of two heads",
        "plain",
        "float64",
        lambda d: (attention(), (d.normal(2, 5, 4), d.normal(2, 6, 4), d.normal(2, 6, 3))),
        plain_attention,
    ),
    right(
        "causal attention",
        "plain",
        "bfloat16",
        lambda d: (attention(causal=True), (d.normal(2, 8, 8), d.normal(2, 8, 8), d.normal(2, 8, 8))),
        plain_causal_attention,
    ),
    right(
        "attention with sharp scores",
        "saturated",
        "float32",
        lambda d: (attention(), (d.normal(6, 8, scale=6.0), d.normal(9, 8, scale=6.0), d.normal(9, 4))),
        plain_attention,
        tolerance=2e-4,
    ),
    right(
        "rotary embedding with tables",
        "captured table",
        "bfloat16",
        lambda d: (rotary(10, 16, torch.bfloat16), (d.normal(2, 10, 16),)),
        plain_rotary(torch.bfloat16),
    ),
    right(
        "rotary embedding with float16 tables",
        "captured table",
        "float16",
        lambda d: (rotary(6, 12, torch.float16), (d.normal(6, 12),)),
        plain_rotary(torch.float16),
    ),
    right(
        "linear map of a transposed input",
        "views",
        "float64",
        lambda d: (linear(), (transposed_leaf(d, 7, 5), d.normal(4, 5), d.normal(4))),
        F.linear,
    ),
    right(
        "gated map, twice differentiable",
        "plain",
        "float64",
        lambda d: (gated(), (d.normal(4, 3), d.normal(3, 3))),
        plain_gated,
        order=2,
    ),
    wrong(
        "attention, values transposed",
        "transposed",
        "float32",
        lambda d: (attention("transposed"), (d.normal(6, 4), d.normal(6, 4), d.normal(6, 5))),
        plain_attention,
        "gradient of v uses the weights untransposed",
        0.3,
    ),
    wrong(
        "attention without the row sums",
        "missing term",
        "bfloat16",
        lambda d: (attention("no row sum"), (d.normal(5, 6), d.normal(7, 6), d.normal(7, 6))),
        plain_attention,
        "softmax term of q and k",
        0.2,
    ),
    wrong(
        "causal attention, scale forgotten for k",
        "factor",
        "float16",
        lambda d: (attention("no scale", causal=True), (d.normal(6, 4), d.normal(6, 4), d.normal(6, 4))),
        plain_causal_attention,
        "gradient of k times 2",
        0.9,
    ),
    wrong(
        "attention loses the last key",
        "lost",
        "float64",
        lambda d: (attention("last key"), (d.normal(3, 16, 8), d.normal(3, 33, 8), d.normal(3, 33, 8))),
        plain_attention,
        "last row of the gradient of k",
        0.3,
    ),
    wrong(
        "attention with frozen keys",
        "frozen",
        "bfloat16",
        lambda d: (attention("frozen"), (d.normal(4, 6), d.normal(5, 6), d.normal(5, 6))),
        plain_attention,
        "gradient of q where k or v is frozen",
        0.9,
        shown_by="frozen",
    ),
    wrong(
        "rotary embedding turns the same way back",
        "sign",
        "bfloat16",
        lambda d: (rotary(7, 8, torch.bfloat16, "sign"), (d.normal(3, 7, 8),)),
        plain_rotary(torch.bfloat16),
        "sign of the sine",
        0.5,
    ),
    wrong(
        "rotary embedding, positions off by one",
        "swapped",
        "float32",
        lambda d: (rotary(12, 8, torch.float32, "positions"), (d.normal(12, 8),)),
        plain_rotary(torch.float32),
        "tables rolled by one position",
        0.5,
    ),
    wrong(
        "linear map that reads the cotangent in memory order",
        "strides",
        "float64",
        lambda d: (linear("strides"), (d.normal(6, 5), d.normal(4, 5), d.normal(4))),
        F.linear,
        "all gradients for a cotangent that is not contiguous",
        0.3,
        shown_by="strided",
    ),
    wrong(
        "linear map that reads its input in memory order",
        "strides",
        "float32",
        lambda d: (linear("input strides"), (transposed_leaf(d, 6, 4), d.normal(3, 4), d.normal(3))),
        F.linear,
        "gradient of the weight",
        0.3,
    ),
    wrong(
        "square linear map, weight transposed",
        "transposed",
        "float16",
        lambda d: (linear("transposed"), (d.normal(5, 6), d.normal(6, 6, scale=0.4), d.normal(6))),
        F.linear,
        "gradient of x",
        0.5,
    ),
    wrong(
        "linear map, mean instead of sum for the bias",
        "factor",
        "float16",
        lambda d: (linear("bias"), (d.normal(4, 9), d.normal(5, 9, scale=0.3), d.normal(5))),
        F.linear,
        "gradient of the bias times 0.25",
        0.7,
    ),
    wrong(
        "linear map with a frozen weight",
        "frozen",
        "float64",
        lambda d: (linear("no graph"), (d.normal(4, 5), d.constant(3, 5), d.normal(3))),
        F.linear,
        "no gradient for x: the weight is frozen",
        0.9,
    ),
    wrong(
        "linear map, 0.2 % short",
        "below",
        "float32",
        lambda d: (linear("0.998"), (d.normal(8, 12), d.normal(10, 12), d.normal(10))),
        F.linear,
        "gradient of x times 0.998",
        0.002,
    ),
    wrong(
        "linear map in half precision, 2 % short",
        "below",
        "bfloat16",
        lambda d: (linear("0.98"), (d.normal(8, 12), d.normal(6, 12, scale=0.3), d.normal(6))),
        F.linear,
        "gradient of the weight times 0.98",
        0.015,
    ),
    wrong(
        "gated map that uses what it saved",
        "order 2",
        "float64",
        lambda d: (gated("saved"), (d.normal(4, 3), d.normal(3, 3))),
        plain_gated,
        "the gate has no graph in the backward",
        0.2,
        order=2,
        shown_by="second",
    ),
    wrong(
        "bilinear form, forward mode forgets an input",
        "forward mode",
        "float32",
        lambda d: (bilinear("forward"), (d.normal(5, 3), d.normal(3, 4), d.normal(5, 4))),
        plain_bilinear,
        "the tangent of y is not used",
        0.3,
        shown_by="forward",
    ),
]
