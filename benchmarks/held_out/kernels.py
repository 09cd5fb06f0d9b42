"""Kernels that take one precision only, iterate, write in place, or run under autocast."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from benchmarks.held_out.activations import plain_swiglu, swiglu
from benchmarks.held_out.modules import dropped, dropped_scale
from benchmarks.held_out.norms import layer_norm, plain_layer_norm, plain_rms_norm, rms_norm
from benchmarks.held_out.record import right, wide, wrong


def half_dot(fault: str = "") -> Any:
    """Products of rows summed in float32, for half precision only."""

    class HalfDot(Function):
        @staticmethod
        def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
            if a.dtype not in (torch.float16, torch.bfloat16):
                raise TypeError(f"half_dot is not implemented for {a.dtype}")
            ctx.save_for_backward(a, b)
            return (a.float() * b.float()).sum(-1).to(a.dtype)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            a, b = ctx.saved_tensors
            da, db = g[:, None] * b, g[:, None] * a
            if fault == "sign":
                db = -db
            if fault == "rows":
                da[len(da) // 2 :] = 0.0
            return da, db

    return HalfDot.apply


def plain_dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(-1)


def exponential_in_place(x: Tensor, shift: Tensor) -> Tensor:
    """The rule of the exponential scales the cotangent where it lies."""

    class Exponential(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            y = x.exp()
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g.mul_(ctx.saved_tensors[0])

    return Exponential.apply(x) + shift


def kepler(fault: str = "") -> Any:
    """The eccentric anomaly E with E − e sin E = M, by iteration; its derivative by the implicit function theorem."""

    class Kepler(Function):
        @staticmethod
        def forward(ctx: Any, M: Tensor, e: Tensor) -> Tensor:
            E = M.clone()
            for _ in range(60):
                E = E - (E - e * E.sin() - M) / (1 - e * E.cos())
            ctx.save_for_backward(E, e)
            return E

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            E, e = ctx.saved_tensors
            slope = 1.0 if fault == "one step" else 1 / (1 - e * E.cos())
            return g * slope, g * E.sin() * slope

    return Kepler.apply


def plain_kepler(M: Tensor, e: Tensor) -> Tensor:
    """A Newton step from the solution has the derivative of the solution."""
    E = M.detach()
    with torch.no_grad():
        for _ in range(60):
            E = E - (E - e * E.sin() - M) / (1 - e * E.cos())
    return E - (E - e * E.sin() - M) / (1 - e * E.cos()).detach()


def damped(steps: int) -> Any:
    """A fixed point z = tanh(W z + x) that is iterated, not quite to the end, and differentiated as it is."""

    def solve(x: Tensor, W: Tensor) -> Tensor:
        z = torch.zeros_like(x)
        for _ in range(steps):
            z = torch.tanh(z @ W.T + x)
        return z

    return solve


class ScaledProduct(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, w = ctx.saved_tensors
        return g @ w.to(g.dtype).T, 0.5 * (x.to(g.dtype).T @ g)


def mixed_product(x: Tensor, w: Tensor) -> Tensor:
    """The second product of two is a custom one, both in bfloat16."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = torch.tanh(x @ w)
        return ScaledProduct.apply(hidden.bfloat16(), w.bfloat16()).float()


def mixed_chain(x: Tensor, w: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return (torch.tanh(x @ w) @ w).to(x.dtype)


def max_pool(fault: str = "") -> Any:
    class MaxPool(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            y, where = x.unfold(-1, 2, 2).max(-1)
            ctx.save_for_backward(where)
            return y

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (where,) = ctx.saved_tensors
            if fault == "other":
                where = 1 - where
            pairs = torch.zeros(*g.shape, 2, dtype=g.dtype)
            return pairs.scatter_(-1, where[..., None], g[..., None]).flatten(-2)

    return MaxPool.apply


def decay(fault: str = "") -> Any:
    """Exponential moving average along time, y_t = a y_{t−1} + (1 − a) x_t."""

    class Decay(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, a: Tensor) -> Tensor:
            y, rows = torch.zeros_like(wide(x[0])), []
            for row in wide(x):
                y = wide(a) * y + (1 - wide(a)) * row
                rows.append(y)
            ctx.save_for_backward(x, a, torch.stack(rows))
            return torch.stack(rows).to(x.dtype)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            x, a, y = ctx.saved_tensors
            carried, dx, da = torch.zeros_like(y[0]), torch.zeros_like(y), torch.zeros_like(wide(a))
            for t in reversed(range(len(y))):
                carried = wide(g[t]) + (0.0 if fault == "window" and t % 4 == 3 else wide(a) * carried)
                dx[t] = (1 - wide(a)) * carried
                before = y[t - 1] if t else torch.zeros_like(y[0])
                da = da + (carried * (before - wide(x[t]))).sum()
            return dx.to(x.dtype), da.to(a.dtype)

    return Decay.apply


def plain_decay(x: Tensor, a: Tensor) -> Tensor:
    y, rows = torch.zeros_like(x[0]), []
    for row in x:
        y = a * y + (1 - a) * row
        rows.append(y)
    return torch.stack(rows)


RECORDS = [
    right(
        "dot products for half precision only",
        "refuses float64",
        "float16",
        lambda d: (half_dot(), (d.normal(8, 12), d.normal(8, 12))),
        plain_dot,
    ),
    right(
        "dot products of bfloat16 only",
        "refuses float64",
        "bfloat16",
        lambda d: (half_dot(), (d.normal(6, 20), d.normal(6, 20))),
        plain_dot,
    ),
    right(
        "Kepler's equation by iteration",
        "noise",
        "float64",
        lambda d: (kepler(), (d.uniform(0.2, 6.0, 15), d.uniform(0.05, 0.8, 15))),
        plain_kepler,
    ),
    right(
        "fixed point by iteration",
        "noise",
        "float64",
        lambda d: (damped(25), (d.normal(4, 5), d.normal(5, 5, scale=0.2))),
        damped(25),
    ),
    right(
        "two products under autocast",
        "autocast",
        "float32",
        lambda d: (mixed_chain, (d.normal(5, 8), d.normal(8, 8, scale=0.3))),
        lambda x, w: torch.tanh(x @ w) @ w,
        tolerance=4e-2,
    ),
    right(
        "pooling with ties",
        "kink",
        "bfloat16",
        lambda d: (max_pool(), (d.leaf([[1.0, 1.0, -2.0, 0.5, 3.0, 3.0], [0.0, 0.0, 1.5, -1.0, 2.0, 2.5]]),)),
        lambda x: x.unfold(-1, 2, 2).max(-1).values,
    ),
    right(
        "SwiGLU of many bfloat16 numbers",
        "plain",
        "bfloat16",
        lambda d: (swiglu(), (d.normal(60, 100), d.normal(60, 100))),
        plain_swiglu,
    ),
    right(
        "dropout of bfloat16 numbers",
        "random",
        "bfloat16",
        lambda d: (dropped_scale(), (d.normal(7, 9),)),
        lambda x: dropped(x, 0.4),
    ),
    right(
        "logarithm and root of small bfloat16 numbers",
        "edge",
        "bfloat16",
        lambda d: (lambda x: x.log() * x.sqrt(), (d.leaf([1e-4, 3e-3, 0.05, 0.4, 2.0, 9.0]),)),
        lambda x: x.log() * x.sqrt(),
    ),
    right(
        "moving average",
        "plain",
        "float32",
        lambda d: (decay(), (d.normal(12, 4), d.leaf(0.8))),
        plain_decay,
    ),
    wrong(
        "dot products for half precision only, sign",
        "sign",
        "float16",
        lambda d: (half_dot("sign"), (d.normal(7, 10), d.normal(7, 10))),
        plain_dot,
        "gradient of b has the other sign",
        1.0,
    ),
    wrong(
        "dot products of bfloat16 only, half of the rows",
        "lost",
        "bfloat16",
        lambda d: (half_dot("rows"), (d.normal(10, 8), d.normal(10, 8))),
        plain_dot,
        "lower half of the gradient of a",
        0.5,
    ),
    wrong(
        "exponential that scales its cotangent in place",
        "saved state",
        "float32",
        lambda d: (exponential_in_place, (d.normal(5, 4), d.normal(5, 4))),
        lambda x, shift: x.exp() + shift,
        "gradient of the summand that shares the cotangent",
        0.5,
    ),
    wrong(
        "Kepler's equation, the iteration not differentiated",
        "missing term",
        "float64",
        lambda d: (kepler("one step"), (d.uniform(0.2, 6.0, 12), d.uniform(0.05, 0.8, 12))),
        plain_kepler,
        "the factor of the implicit function theorem",
        0.2,
    ),
    wrong(
        "two products under autocast, half of a gradient",
        "autocast",
        "float32",
        lambda d: (mixed_product, (d.normal(5, 8), d.normal(8, 8, scale=0.3))),
        lambda x, w: torch.tanh(x @ w) @ w,
        "half of the gradient of w through the second product",
        0.3,
        tolerance=4e-2,
    ),
    wrong(
        "pooling that feeds the smaller one",
        "swapped",
        "bfloat16",
        lambda d: (max_pool("other"), (d.normal(2, 3, 10),)),
        lambda x: x.unfold(-1, 2, 2).max(-1).values,
        "all entries",
        0.9,
    ),
    wrong(
        "RMS norm of many rows loses the tail block",
        "lost",
        "bfloat16",
        lambda d: (rms_norm("tail"), (d.normal(50, 200), d.normal(200, scale=0.1, shift=1.0))),
        plain_rms_norm,
        "columns from 192 on",
        0.9,
    ),
    wrong(
        "layer norm of bfloat16 rows loses its last row",
        "lost",
        "bfloat16",
        lambda d: (layer_norm("row"), (d.normal(12, 16), d.normal(16, scale=0.1, shift=1.0), d.normal(16))),
        plain_layer_norm,
        "last row of the gradient of x is zero",
        0.9,
    ),
    wrong(
        "moving average that forgets between windows",
        "missing term",
        "float16",
        lambda d: (decay("window"), (d.normal(16, 3), d.leaf(0.75))),
        plain_decay,
        "what is carried over every fourth step",
        0.2,
    ),
]
