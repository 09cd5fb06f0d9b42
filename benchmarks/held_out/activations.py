"""Elementwise functions and gates."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from benchmarks.held_out.record import right, wide, wrong


def swiglu(fault: str = "") -> Any:
    class SwiGLU(Function):
        @staticmethod
        def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
            ctx.save_for_backward(gate, up)
            s = torch.sigmoid(wide(gate))
            return (wide(gate) * s * wide(up)).to(gate.dtype)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            gate, up = ctx.saved_tensors
            s, z, g = torch.sigmoid(wide(gate)), wide(gate), wide(g)
            dgate = g * wide(up) * (s + z * s * (1 - s))
            dup = g * z * s
            if fault == "swapped":
                dgate, dup = dup, dgate
            if fault == "one":
                dup.view(-1)[dup.numel() // 2] *= 2.0
            if fault == "half" and gate.dtype == torch.float16:
                dgate = g * wide(up) * s
            return dgate.to(gate.dtype), dup.to(up.dtype)

    return SwiGLU.apply


def plain_swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def geglu(fault: str = "") -> Any:
    root = math.sqrt(2 / math.pi)

    class GeGLU(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            a, b = wide(x).chunk(2, -1)
            t = torch.tanh(root * (a + 0.044715 * a**3))
            ctx.save_for_backward(x, t)
            return (0.5 * a * (1 + t) * b).to(x.dtype)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            x, t = ctx.saved_tensors
            a, b = wide(x).chunk(2, -1)
            g = wide(g)
            slope = 0.5 * (1 + t) + 0.5 * a * (1 - t * t) * root * (1 + 3 * 0.044715 * a * a)
            da, db = g * b * slope, g * 0.5 * a * (1 + t)
            if fault == "0.9":
                da = da * 0.9
            if fault == "zero half":
                db = torch.zeros_like(db)
            return torch.cat([da, db], -1).to(x.dtype)

    return GeGLU.apply


def plain_geglu(x: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return F.gelu(a, approximate="tanh") * b


def mish(fault: str = "") -> Any:
    class Mish(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * torch.tanh(F.softplus(x))

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            t = torch.tanh(F.softplus(x))
            slope = t if fault == "term" else t + x * (1 - t * t) * torch.sigmoid(x)
            if fault == "1.03":
                slope = slope * 1.03
            if fault == "1.004":
                slope = slope * 1.004
            if fault == "zeros":
                slope = slope * (x != 0)
            return g * slope

    return Mish.apply


class InPlaceSigmoid(Function):
    """The backward works in a buffer of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = torch.sigmoid(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        buffer = y.clone()
        return buffer.neg_().add_(1.0).mul_(y).mul_(g)


class SpoilingTanh(Function):
    """The backward overwrites what was saved."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = torch.tanh(x)
        ctx.factor = 1 - y * y
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return ctx.factor.mul_(g).clone()


class SavedWorkspace:
    """exp(−x²) whose derivative lies in one buffer for all calls."""

    def __init__(self, like: Tensor) -> None:
        workspace = torch.zeros_like(like, requires_grad=False)

        class Gaussian(Function):
            @staticmethod
            def forward(ctx: Any, x: Tensor) -> Tensor:
                y = torch.exp(-x * x)
                if workspace.shape == x.shape and workspace.dtype == x.dtype:
                    workspace.copy_(-2 * x * y)
                    ctx.slope = workspace
                else:
                    ctx.slope = -2 * x * y
                return y

            @staticmethod
            def backward(ctx: Any, g: Tensor) -> Tensor:
                return g * ctx.slope

        self.apply = Gaussian.apply


def powers(fault: str = "") -> Any:
    """x³ + 2x with both modes by hand."""

    class Cubic(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            ctx.save_for_forward(x)
            return x**3 + 2 * x

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            if fault == "second":
                x = x.detach()
            return g * (3 * x * x + 2)

        @staticmethod
        def jvp(ctx: Any, t: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return t * (3 * x * x + (0 if fault == "forward" else 2))

    return Cubic.apply


class SoftClip(Function):
    """Zero within the threshold, shifted outside."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.where(x > 0.5, x - 0.5, torch.where(x < -0.5, x + 0.5, torch.zeros_like(x)))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return g * (x.abs() >= 0.5)


def product_with_clamp(fault: str = "") -> Any:
    class Product(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
            ctx.save_for_backward(x, y)
            return x * x * y.clamp(0, 1)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            x, y = ctx.saved_tensors
            inside = (y > 0) & (y < 1)
            dx = 2 * g * x * y.clamp(0, 1)
            if fault == "ones":
                dx = torch.where(x == 1, 0.0, dx).to(dx.dtype)
            return dx, torch.where(inside, g * x * x, 0.0).to(g.dtype)

    return Product.apply


class Logit32(Function):
    """Takes float32 only."""

    @staticmethod
    def forward(ctx: Any, p: Tensor) -> Tensor:
        if p.dtype != torch.float32:
            raise TypeError("expected float32")
        ctx.save_for_backward(p)
        return torch.log(p) - torch.log1p(-p)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (p,) = ctx.saved_tensors
        return g / (p * (1 - p))


def swish32(fault: str = "") -> Any:
    """Computes in float32 whatever it gets."""

    class Swish(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return F.silu(x.float()).to(x.dtype)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            x = ctx.saved_tensors[0].float()
            s = torch.sigmoid(x)
            slope = s * (1 + x * (1 - s))
            if fault == "0.9":
                slope = slope * 0.9
            if fault == "0.95":
                slope = slope * 0.95
            return (g.float() * slope).to(g.dtype)

    return Swish.apply


def spread(d: Any, *shape: int) -> Tensor:
    """Values of both signs with some exact zeros."""
    x = d.normal(*shape).detach()
    x.view(-1)[::4] = 0.0
    return x.requires_grad_()


RECORDS = [
    right("SwiGLU", "plain", "float16", lambda d: (swiglu(), (d.normal(6, 20), d.normal(6, 20))), plain_swiglu),
    right(
        "SwiGLU of a hundred thousand",
        "plain",
        "float32",
        lambda d: (swiglu(), (d.normal(100, 500), d.normal(100, 500))),
        plain_swiglu,
    ),
    right("GeGLU", "plain", "bfloat16", lambda d: (geglu(), (d.normal(5, 24),)), plain_geglu),
    right(
        "sigmoid, mostly saturated",
        "saturated",
        "float32",
        lambda d: (InPlaceSigmoid.apply, (d.normal(40, scale=12.0),)),
        torch.sigmoid,
    ),
    right(
        "sigmoid in half precision, partly saturated",
        "saturated",
        "float16",
        lambda d: (InPlaceSigmoid.apply, (d.normal(30, scale=3.0),)),
        torch.sigmoid,
    ),
    right(
        "softplus, linear and flat ends",
        "saturated",
        "bfloat16",
        lambda d: (F.softplus, (d.leaf([-60.0, -8.0, -1.0, 0.0, 0.5, 3.0, 19.0, 50.0]),)),
        F.softplus,
    ),
    right(
        "tanh network far from its bend",
        "saturated",
        "float64",
        lambda d: (lambda x, w: torch.tanh(x @ w), (d.normal(6, 5), d.normal(5, 4, scale=5.0))),
        lambda x, w: torch.tanh(x @ w),
    ),
    right("ReLU with exact zeros", "kink", "float64", lambda d: (torch.relu, (spread(d, 6, 5),)), torch.relu),
    right(
        "squared ReLU with exact zeros",
        "kink",
        "float16",
        lambda d: (lambda x: torch.relu(x) ** 2, (spread(d, 40),)),
        lambda x: torch.relu(x) ** 2,
    ),
    right(
        "soft threshold at the threshold",
        "kink",
        "float32",
        lambda d: (SoftClip.apply, (d.leaf([-2.0, -0.5, -0.2, 0.0, 0.3, 0.5, 0.7, 4.0]),)),
        lambda x: torch.where(x.abs() >= 0.5, x - 0.5 * x.sign(), 0.0 * x),
    ),
    right(
        "clamped product at both ends",
        "kink",
        "bfloat16",
        lambda d: (product_with_clamp(), (d.normal(6), d.leaf([0.0, 1.0, 0.5, -1.0, 0.25, 2.0]))),
        lambda x, y: x * x * (torch.where((y > 0) & (y < 1), y, y.detach().clamp(0, 1))),
    ),
    right(
        "logit that takes float32 only",
        "refuses float64",
        "float32",
        lambda d: (Logit32.apply, (d.uniform(0.05, 0.95, 4, 6),)),
        torch.logit,
    ),
    right(
        "swish computed in float32",
        "refuses float64",
        "bfloat16",
        lambda d: (swish32(), (d.normal(9, 4),)),
        F.silu,
    ),
    right("cubic in both modes", "plain", "float64", lambda d: (powers(), (d.normal(7),)), lambda x: x**3 + 2 * x),
    right(
        "square root and logarithm near zero",
        "edge",
        "float64",
        lambda d: (lambda x: x.sqrt() + 1e-3 * x.log(), (d.leaf([1e-7, 1e-5, 1e-3, 0.1, 2.0]),)),
        lambda x: x.sqrt() + 1e-3 * x.log(),
    ),
    wrong(
        "SwiGLU, gate and input swapped",
        "swapped",
        "bfloat16",
        lambda d: (swiglu("swapped"), (d.normal(8, 10), d.normal(8, 10))),
        plain_swiglu,
        "the two gradients are exchanged",
        0.5,
    ),
    wrong(
        "SwiGLU, one entry twice",
        "one entry",
        "float64",
        lambda d: (swiglu("one"), (d.normal(20, 30), d.normal(20, 30, shift=1.0))),
        plain_swiglu,
        "one entry of the gradient of the second input is doubled",
        0.02,
    ),
    wrong(
        "SwiGLU, short cut in float16",
        "low precision",
        "float16",
        lambda d: (swiglu("half"), (d.normal(5, 16), d.normal(5, 16))),
        plain_swiglu,
        "gradient of the gate lacks a term in float16 only",
        0.3,
    ),
    wrong(
        "GeGLU, 10 % short",
        "factor",
        "float32",
        lambda d: (geglu("0.9"), (d.normal(12, 20),)),
        plain_geglu,
        "first half times 0.9",
        0.1,
    ),
    wrong(
        "GeGLU, second half lost",
        "lost",
        "float16",
        lambda d: (geglu("zero half"), (d.normal(7, 12),)),
        plain_geglu,
        "second half is zero",
        0.5,
    ),
    wrong(
        "mish without the inner slope",
        "missing term",
        "float64",
        lambda d: (mish("term"), (d.normal(30),)),
        F.mish,
        "the term through tanh",
        0.1,
    ),
    wrong(
        "mish, 3 % too much",
        "factor",
        "float64",
        lambda d: (mish("1.03"), (d.normal(3),)),
        F.mish,
        "gradient times 1.03",
        0.03,
    ),
    wrong(
        "mish, nothing at zero",
        "kink value",
        "float64",
        lambda d: (mish("zeros"), (spread(d, 16),)),
        F.mish,
        "entries where x is exactly zero",
        0.3,
    ),
    wrong(
        "product, nothing at one",
        "kink value",
        "float32",
        lambda d: (product_with_clamp("ones"), (d.leaf([1.0, 0.5, 2.0, 1.0, -1.0]), d.uniform(0.3, 0.8, 5))),
        lambda x, y: x * x * y.clamp(0, 1),
        "gradient of x where x is exactly one",
        0.3,
    ),
    wrong(
        "tanh that overwrites its slope",
        "saved state",
        "float64",
        lambda d: (SpoilingTanh.apply, (d.normal(4, 4),)),
        torch.tanh,
        "second backward pass through the same graph",
        0.3,
        shown_by="again",
    ),
    wrong(
        "Gaussian with one workspace",
        "saved state",
        "float32",
        lambda d: (SavedWorkspace(d.constant(5, 6)).apply, (d.normal(5, 6),)),
        lambda x: torch.exp(-x * x),
        "backward after another call",
        0.3,
        shown_by="interleaved",
    ),
    wrong(
        "cubic, forward mode lacks a term",
        "forward mode",
        "float64",
        lambda d: (powers("forward"), (d.normal(6),)),
        lambda x: x**3 + 2 * x,
        "2 is missing from the JVP",
        0.2,
        shown_by="forward",
    ),
    wrong(
        "cubic, second derivative lost",
        "order 2",
        "float64",
        lambda d: (powers("second"), (d.normal(6),)),
        lambda x: x**3 + 2 * x,
        "the slope is detached in the backward",
        0.9,
        order=2,
        shown_by="second",
    ),
    wrong(
        "swish computed in float32, 10 % short",
        "factor",
        "float32",
        lambda d: (swish32("0.9"), (d.normal(50),)),
        F.silu,
        "gradient times 0.9",
        0.1,
    ),
    wrong(
        "mish, 0.4 % too much",
        "below",
        "float64",
        lambda d: (mish("1.004"), (d.normal(20),)),
        F.mish,
        "gradient times 1.004",
        0.004,
    ),
    wrong(
        "swish in half precision, 5 % short",
        "below",
        "float16",
        lambda d: (swish32("0.95"), (d.normal(40),)),
        F.silu,
        "gradient times 0.95",
        0.05,
    ),
]
