"""Whole small modules, random draws, autocast, and parts of lower precision."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from benchmarks.held_out.attention import attention, memory_order, plain_attention
from benchmarks.held_out.norms import layer_norm, plain_layer_norm
from benchmarks.held_out.record import right, wide, wrong


def in_float64(module: Any) -> Any:
    """The module in float64 with plain torch operations."""
    plain = copy.deepcopy(module).double()
    for part in plain.modules():
        part.fault = None
    return plain


def dropped(x: Tensor, p: float) -> Tensor:
    """Dropout with a mask that does not depend on the precision."""
    return x * (torch.rand(x.shape) >= p).to(x.dtype) / (1 - p)


class ConvBlock(nn.Module):
    """Convolution, batch norm and dropout, in training."""

    def __init__(self, fault: str | None = None) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.fault = fault

    def forward(self, x: Tensor) -> Tensor:
        z = self.conv(x)
        if self.fault == "detached":
            axes = (0, 2, 3)
            mean, var = z.detach().mean(axes, keepdim=True), z.detach().var(axes, keepdim=True, unbiased=False)
            z = (z - mean) / (var + self.norm.eps).sqrt()
            z = z * self.norm.weight[:, None, None] + self.norm.bias[:, None, None]
        else:
            z = self.norm(z)
        return dropped(F.silu(z), 0.3)


class Cell(Function):
    """The elementwise part of an LSTM cell."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, c: Tensor, fault: str) -> Any:
        i, f, o, n = gates.chunk(4, -1)
        i, f, o, n = torch.sigmoid(i), torch.sigmoid(f), torch.sigmoid(o), torch.tanh(n)
        new = f * c + i * n
        ctx.save_for_backward(i, f, o, n, c, torch.tanh(new))
        ctx.fault = fault
        return o * torch.tanh(new), new

    @staticmethod
    def backward(ctx: Any, gh: Tensor, gc: Tensor) -> Any:
        i, f, o, n, c, t = ctx.saved_tensors
        total = gh * o * (1 - t * t)
        if ctx.fault != "cell":
            total = total + gc
        parts = [total * n * i * (1 - i), total * c * f * (1 - f), gh * t * o * (1 - o), total * i * (1 - n * n)]
        if ctx.fault == "forget":
            parts[1] = torch.zeros_like(parts[1])
        return torch.cat(parts, -1), total * f, None


class LSTMCell(nn.Module):
    def __init__(self, fault: str | None = "") -> None:
        super().__init__()
        self.both = nn.Linear(7, 16)
        self.fault = fault

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> Any:
        gates = self.both(torch.cat([x, h], -1))
        if self.fault is not None:
            return Cell.apply(gates, c, self.fault)
        i, f, o, n = gates.chunk(4, -1)
        new = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(n)
        return torch.sigmoid(o) * torch.tanh(new), new


class Block(nn.Module):
    """A transformer block with one head."""

    def __init__(self, fault: str | None = "") -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(8)), nn.Parameter(torch.zeros(8))
        self.mix, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.fault = fault

    def forward(self, x: Tensor) -> Tensor:
        plain = self.fault is None
        norm = plain_layer_norm if plain else layer_norm()
        attend = plain_attention if plain else attention(self.fault)
        q, k, v = self.mix(norm(x, self.weight, self.bias)).chunk(3, -1)
        x = x + self.out(attend(q, k, v))
        return x + self.down(F.gelu(self.up(norm(x, self.weight, self.bias)), approximate="tanh"))


class Adapter(nn.Module):
    """A trained correction of a frozen layer in another precision."""

    def __init__(self, frozen: torch.dtype, fault: str | None = "") -> None:
        super().__init__()
        self.base = nn.Linear(12, 6).requires_grad_(False)
        self.down, self.up = nn.Linear(12, 3, bias=False), nn.Linear(3, 6, bias=False)
        self.frozen, self.fault = frozen, fault

    def to(self, *args: Any, **kwargs: Any) -> Any:
        super().to(*args, **kwargs)
        self.base.to(self.frozen)
        return self

    def forward(self, x: Tensor) -> Tensor:
        given = x.detach() if self.fault == "detached" else x
        return self.base(given.to(self.base.weight.dtype)).to(x.dtype) + self.up(self.down(x))


class Mixed(nn.Module):
    """Two layers under autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(10, 8), nn.Linear(8, 4)
        self.fault: str | None = ""

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.fault is not None):
            return self.two(torch.tanh(self.one(x))).to(x.dtype)


class Experts(nn.Module):
    """Two experts of which each row takes the likelier one."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(5, 2), nn.ModuleList([nn.Linear(5, 4), nn.Linear(5, 4)])

    def forward(self, x: Tensor) -> Tensor:
        p, chosen = torch.softmax(self.gate(x), -1).max(-1)
        rows = [self.experts[int(k)](row) for k, row in zip(chosen, x, strict=True)]
        return torch.stack(rows) * p[:, None]


def sampled(mean: Tensor, log_std: Tensor) -> Tensor:
    """A sample by reparametrisation."""
    return mean + log_std.exp() * torch.randn(mean.shape, dtype=torch.float64).to(mean.dtype)


def dropped_scale(fault: str = "", p: float = 0.4) -> Any:
    class Dropout(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            keep = torch.rand(x.shape) >= p
            ctx.save_for_backward(keep)
            return x * keep / (1 - p)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (keep,) = ctx.saved_tensors
            return g * keep if fault == "scale" else g * keep / (1 - p)

    return Dropout.apply


def stale_linear(d: Any) -> Any:
    """A linear map that keeps a transposed copy of its weight; the copy is of an earlier step."""
    copy_of_weight = d.constant(6, 9)

    class Stale(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x @ weight.T

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            (x,) = ctx.saved_tensors
            return g @ copy_of_weight.to(g.dtype), g.T @ x

    return Stale.apply


def row_scale(fault: str = "") -> Any:
    class RowScale(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, s: Tensor) -> Tensor:
            ctx.save_for_backward(x, s)
            return x * s[:, None]

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            x, s = ctx.saved_tensors
            if fault == "strides":
                g = memory_order(g)
            dx = g * s[:, None]
            if fault == "zero rows":  # an empty row is taken for padding, and what follows it too
                live = (g != 0).any(1).to(g.dtype).cumprod(0)
                dx = dx * live[:, None]
            if fault == "bfloat16" and x.dtype == torch.bfloat16:
                return dx, (g * x)[:, : x.shape[1] // 2].sum(1)
            return dx, (wide(g) * wide(x)).sum(1).to(g.dtype)

    return RowScale.apply


def plain_row_scale(x: Tensor, s: Tensor) -> Tensor:
    return x * s[:, None]


def expanded_leaf(d: Any) -> Tensor:
    """Four equal columns that share their memory."""
    return d.constant(5, 1).expand(5, 4).requires_grad_()


RECORDS = [
    right(
        "convolution, batch norm and dropout",
        "random",
        "float32",
        lambda d: (d.module(ConvBlock), (d.normal(3, 2, 5, 5),)),
        in_float64,
        tolerance=1e-3,
    ),
    right(
        "sample by reparametrisation",
        "random",
        "float64",
        lambda d: (sampled, (d.normal(6, 3), d.normal(6, 3))),
        sampled,
    ),
    right(
        "dropout in half precision",
        "random",
        "float16",
        lambda d: (dropped_scale(), (d.normal(8, 8),)),
        lambda x: dropped(x, 0.4),
    ),
    right(
        "LSTM cell",
        "module",
        "float64",
        lambda d: (d.module(LSTMCell), (d.normal(2, 3), d.normal(2, 4), d.normal(2, 4))),
        in_float64,
    ),
    right(
        "transformer block",
        "module",
        "bfloat16",
        lambda d: (d.module(Block), (d.normal(5, 8),)),
        in_float64,
        tolerance=6e-2,
    ),
    right(
        "transformer block in float32",
        "module",
        "float32",
        lambda d: (d.module(Block), (d.normal(2, 6, 8),)),
        in_float64,
        tolerance=1e-4,
    ),
    right(
        "adapter of a frozen bfloat16 layer",
        "frozen low precision",
        "float32",
        lambda d: (d.module(lambda: Adapter(torch.bfloat16)), (d.normal(4, 12),)),
        in_float64,
        tolerance=2e-2,
    ),
    right(
        "adapter of a frozen float16 layer",
        "frozen low precision",
        "bfloat16",
        lambda d: (d.module(lambda: Adapter(torch.float16)), (d.normal(4, 12),)),
        in_float64,
    ),
    right(
        "two layers under autocast",
        "autocast",
        "float32",
        lambda d: (d.module(Mixed), (d.normal(6, 10),)),
        in_float64,
        tolerance=4e-2,
    ),
    right(
        "experts chosen by row",
        "module",
        "float32",
        lambda d: (d.module(Experts), (d.normal(7, 5),)),
        in_float64,
    ),
    right(
        "rows scaled, columns that share memory",
        "views",
        "float32",
        lambda d: (row_scale(), (expanded_leaf(d), d.normal(5))),
        plain_row_scale,
    ),
    right(
        "rows scaled in half precision",
        "plain",
        "float16",
        lambda d: (row_scale(), (d.normal(6, 9), d.normal(6))),
        plain_row_scale,
    ),
    wrong(
        "convolution and batch norm, statistics as constants",
        "detached",
        "float32",
        lambda d: (d.module(lambda: ConvBlock("detached")), (d.normal(3, 2, 4, 4),)),
        in_float64,
        "the terms through mean and variance",
        0.1,
    ),
    wrong(
        "LSTM cell without its forget gate",
        "lost",
        "float32",
        lambda d: (d.module(lambda: LSTMCell("forget")), (d.normal(3, 3), d.normal(3, 4), d.normal(3, 4))),
        in_float64,
        "a quarter of the gates",
        0.3,
    ),
    wrong(
        "LSTM cell, cell output ignored",
        "missing term",
        "float64",
        lambda d: (d.module(lambda: LSTMCell("cell")), (d.normal(2, 3), d.normal(2, 4), d.normal(2, 4))),
        in_float64,
        "the cotangent of the cell state",
        0.3,
    ),
    wrong(
        "transformer block, attention without row sums",
        "missing term",
        "float32",
        lambda d: (d.module(lambda: Block("no row sum")), (d.normal(6, 8),)),
        in_float64,
        "softmax term in the attention",
        0.02,
    ),
    wrong(
        "adapter that detaches its frozen layer",
        "detached",
        "bfloat16",
        lambda d: (d.module(lambda: Adapter(torch.bfloat16, "detached")), (d.normal(5, 12),)),
        in_float64,
        "the part of the gradient of x through the frozen layer",
        0.5,
    ),
    wrong(
        "dropout without its scale",
        "factor",
        "float32",
        lambda d: (dropped_scale("scale"), (d.normal(10, 10),)),
        lambda x: dropped(x, 0.4),
        "gradient times 0.6",
        0.3,
    ),
    wrong(
        "linear map with an old copy of its weight",
        "saved state",
        "float16",
        lambda d: (stale_linear(d), (d.normal(4, 9), d.normal(6, 9))),
        lambda x, weight: x @ weight.T,
        "gradient of x",
        0.5,
    ),
    wrong(
        "rows scaled, rows after an empty one taken for padding",
        "zero rows",
        "float32",
        lambda d: (row_scale("zero rows"), (d.normal(7, 4), d.normal(7))),
        plain_row_scale,
        "rows after a zero row of the cotangent",
        0.3,
        shown_by="zero rows",
    ),
    wrong(
        "rows scaled, half a sum in bfloat16",
        "low precision",
        "bfloat16",
        lambda d: (row_scale("bfloat16"), (d.normal(6, 10), d.normal(6))),
        plain_row_scale,
        "half of the columns in the gradient of the scales, in bfloat16 only",
        0.3,
    ),
    wrong(
        "rows scaled, cotangent in memory order",
        "strides",
        "bfloat16",
        lambda d: (row_scale("strides"), (d.normal(6, 5), d.normal(6))),
        plain_row_scale,
        "gradients for a cotangent that is not contiguous",
        0.5,
        shown_by="strided",
    ),
]
