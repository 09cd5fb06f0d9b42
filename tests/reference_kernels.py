"""Kernels in plain torch beside the plain functions that they replace, and faults to plant in them.

A kernel loads its inputs in their own precision, computes in float32 in tiles, and rounds once, as kernels for GPUs do.
`fused` makes an autograd.Function of a forward and a backward; a fault changes one of the tensors that they return.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Inputs = tuple[Any, ...]
Fault = Callable[[Tensor], Tensor]
Tensors = tuple[Tensor, ...]
VALUE = -1
"""Slot of the first output; the others are numbers of inputs."""


@dataclass(frozen=True)
class Kernel:
    """A kernel, the function that it replaces, and its inputs in float32."""

    name: str
    eager: Callable[..., Any]
    forward: Callable[..., Any]
    """Inputs to (outputs, saved)."""
    backward: Callable[..., Any]
    """Saved and grad_outputs to gradients, None for integers."""
    inputs: Callable[[], Inputs]
    slots: tuple[int, ...] = (0,)
    """Inputs with a gradient."""

    def fused(self, fault: Fault | None = None, slot: int = 0) -> Callable[..., Any]:
        """The kernel, with the fault in one of its tensors."""
        forward, backward = self.forward, self.backward

        class Fused(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, *inputs: Any) -> Any:
                outputs, ctx.saved = forward(*inputs)
                if fault is None or slot != VALUE:
                    return outputs
                return (fault(outputs[0]), *outputs[1:]) if isinstance(outputs, tuple) else fault(outputs)

            @staticmethod
            def backward(ctx: Any, *grads: Any) -> Any:
                found = backward(ctx.saved, *grads)
                found = list(found) if isinstance(found, (tuple, list)) else [found]
                if fault is not None and slot != VALUE:
                    found[slot] = fault(found[slot])
                return tuple(found)

        Fused.__name__ = self.name
        return Fused.apply  # type: ignore[no-any-return]


def low(tensor: Tensor, like: Tensor) -> Tensor:
    return tensor.to(like.dtype)


# Faults: each changes a copy.


def times(factor: float) -> Fault:
    return lambda tensor: (tensor.double() * factor).to(tensor.dtype)


def changed(tensor: Tensor, index: Any, factor: float) -> Tensor:
    copy = tensor.clone()
    copy[index] = copy[index] * factor
    return copy


def lost_row(tensor: Tensor) -> Tensor:
    return changed(tensor, tensor.shape[0] // 2 if tensor.dim() else ..., 0.0)


def lost_tail(tensor: Tensor) -> Tensor:
    return changed(tensor, (..., slice(-max(1, tensor.shape[-1] // 16), None)) if tensor.dim() else ..., 0.0)


def doubled_entry(tensor: Tensor) -> Tensor:
    flat = tensor.detach().abs().flatten()
    # One of typical size: nothing can be seen of the double of nearly nothing.
    place = int((flat - flat.double().square().mean().sqrt()).abs().argmin())
    return changed(tensor.reshape(-1), place, 2.0).view(tensor.shape)


def lost_tile(tensor: Tensor) -> Tensor:
    if tensor.dim() < 2:
        return lost_tail(tensor)
    rows, columns = max(1, tensor.shape[-2] // 4), max(1, tensor.shape[-1] // 4)
    return changed(tensor, (..., slice(-rows, None), slice(-columns, None)), 0.0)


FAULTS: dict[str, Fault] = {
    "factor 1.01": times(1.01),
    "factor 0.9": times(0.9),
    "factor 1.03": times(1.03),
    "sign": times(-1.0),
    "lost row": lost_row,
    "lost tail": lost_tail,
    "lost tile": lost_tile,
    "doubled entry": doubled_entry,
}


# Kernels.


def _softmax(x: Tensor) -> Any:
    e = torch.exp(x.float() - x.float().amax(-1, keepdim=True))
    y = low(e / e.sum(-1, keepdim=True), x)
    return y, (y,)


def _softmax_backward(saved: Tensors, dy: Tensor) -> Any:
    y, g = saved[0].float(), dy.float()
    return low(y * (g - (g * y).sum(-1, keepdim=True)), dy)


def _layer_norm(x: Tensor, w: Tensor, b: Tensor) -> Any:
    xf = x.float()
    mean = xf.mean(-1, keepdim=True)
    rstd = torch.rsqrt((xf - mean).square().mean(-1, keepdim=True) + 1e-5)
    return low((xf - mean) * rstd * w.float() + b.float(), x), (x, w, mean, rstd)


def _layer_norm_backward(saved: Tensors, dy: Tensor) -> Any:
    x, w, mean, rstd = saved
    g, normal = dy.float(), (x.float() - mean) * rstd
    wg = g * w.float()
    dx = rstd * (wg - wg.mean(-1, keepdim=True) - normal * (wg * normal).mean(-1, keepdim=True))
    # Partial sums of blocks of four rows, as kernels add them.
    dw, db = (sum(part.sum(0) for part in t.reshape(-1, t.shape[-1]).split(4)) for t in (g * normal, g))
    return low(dx, x), low(dw, w), low(db, w)


def _rms_norm(x: Tensor, w: Tensor) -> Any:
    xf = x.float()
    rstd = torch.rsqrt(xf.square().mean(-1, keepdim=True) + 1e-6)
    return low(xf * rstd * w.float(), x), (x, w, rstd)


def _rms_norm_backward(saved: Tensors, dy: Tensor) -> Any:
    x, w, rstd = saved
    normal, g = x.float() * rstd, dy.float() * w.float()
    dx = rstd * (g - normal * (g * normal).mean(-1, keepdim=True))
    return low(dx, x), low((dy.float() * normal).reshape(-1, x.shape[-1]).sum(0), w)


def rms_norm(x: Tensor, w: Tensor) -> Tensor:
    xf = x.float()
    return (xf * torch.rsqrt(xf.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w


def _swiglu(a: Tensor, b: Tensor) -> Any:
    return low(F.silu(a.float()) * b.float(), a), (a, b)


def _swiglu_backward(saved: Tensors, dy: Tensor) -> Any:
    a, b = saved
    s = torch.sigmoid(a.float())
    return low(dy.float() * b.float() * s * (1 + a.float() * (1 - s)), a), low(dy.float() * a.float() * s, b)


def _swiglu_once(saved: Tensors, dy: Tensor) -> Any:
    """Writes the gradients over what was saved and over grad_output: a second pass is garbage."""
    da, db = _swiglu_backward(saved, dy)
    dy.zero_()
    return saved[0].data.copy_(da), saved[1].data.copy_(db)


def _cross_entropy(logits: Tensor, target: Tensor) -> Any:
    """Overwrites its input with the gradient in the forward pass."""
    wide = logits.float()
    lse = torch.logsumexp(wide, -1)
    loss = (lse - wide.gather(-1, target[:, None])[:, 0]).mean()
    gradient = torch.exp(wide - lse[:, None])
    gradient[torch.arange(len(target)), target] -= 1.0
    logits.data.copy_(gradient / len(target))
    return low(loss, logits), (logits.detach(),)


def _cross_entropy_backward(saved: Tensors, dy: Tensor) -> Any:
    return saved[0].mul_(dy), None


def _matmul(a: Tensor, b: Tensor) -> Any:
    return low(_tiled(a, b), a), (a, b)


def _tiled(a: Tensor, b: Tensor, width: int = 16) -> Tensor:
    """A product accumulated in float32 over tiles of the inner axis."""
    parts = zip(a.float().split(width, -1), b.float().split(width, -2), strict=True)
    total = torch.zeros((*a.shape[:-1], b.shape[-1]))
    for left, right in parts:
        total = total + left @ right
    return total


def _matmul_backward(saved: Tensors, dy: Tensor) -> Any:
    a, b = saved
    return low(_tiled(dy, b.mT), a), low(_tiled(a.mT, dy), b)


def _attention(q: Tensor, k: Tensor, v: Tensor) -> Any:
    """Causal, with one pass over blocks of keys; the probabilities are rounded before the product with the values."""
    scale, length = q.shape[-1] ** -0.5, q.shape[-2]
    best = torch.full((*q.shape[:-1], 1), -torch.inf)
    total, sums = torch.zeros(v.shape), torch.zeros((*q.shape[:-1], 1))
    rows = torch.arange(length)[:, None]
    for start in range(0, length, 8):
        block = slice(start, start + 8)
        scores = (q.float() @ k[..., block, :].float().mT) * scale
        scores = scores.masked_fill(torch.arange(length)[block] > rows, -torch.inf)
        new = torch.maximum(best, scores.amax(-1, keepdim=True))
        p, shrink = torch.exp(scores - new), torch.exp(best - new)
        sums = sums * shrink + p.sum(-1, keepdim=True)
        total = total * shrink + low(p, q).float() @ v[..., block, :].float()
        best = new
    out = low(total / sums, q)
    return out, (q, k, v, out, best + torch.log(sums))


def _attention_backward(saved: Tensors, dy: Tensor) -> Any:
    q, k, v, out, lse = saved
    scale, length = q.shape[-1] ** -0.5, q.shape[-2]
    mask = torch.ones(length, length, dtype=torch.bool).triu(1)
    scores = ((q.float() @ k.float().mT) * scale).masked_fill(mask, -torch.inf)
    p, g = torch.exp(scores - lse), dy.float()
    delta = (g * out.float()).sum(-1, keepdim=True)
    ds = low(p * (g @ v.float().mT - delta) * scale, q).float()
    return low(ds @ k.float(), q), low(ds.mT @ q.float(), k), low(low(p, q).float().mT @ g, v)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mask = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).triu(1)
    scores = ((q @ k.mT) * q.shape[-1] ** -0.5).masked_fill(mask, -torch.inf)
    return torch.softmax(scores, -1) @ v


def _angles(length: int, width: int) -> Tensor:
    return torch.arange(length)[:, None] * 0.1 ** torch.arange(width // 2)[None, :].repeat(1, 2)


def turned(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1)


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x * cos + turned(x) * sin


def _rope(x: Tensor, cos: Tensor, sin: Tensor) -> Any:
    return low(rope(x.float(), cos.float(), sin.float()), x), (cos, sin)


def _rope_backward(saved: Tensors, dy: Tensor) -> Any:
    cos, sin = (t.float() for t in saved)
    return low(dy.float() * cos - turned(dy.float()) * sin, dy), None, None


def group_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.group_norm(x, 2, w, b)


def _group_norm(x: Tensor, w: Tensor, b: Tensor) -> Any:
    xf = x.float().reshape(x.shape[0], 2, -1)
    mean = xf.mean(-1, keepdim=True)
    rstd = torch.rsqrt(xf.var(-1, keepdim=True, unbiased=False) + 1e-5)
    normal = ((xf - mean) * rstd).reshape(x.shape)
    return low(normal * w.float()[:, None] + b.float()[:, None], x), (x, w, normal, rstd)


def _group_norm_backward(saved: Tensors, dy: Tensor) -> Any:
    x, w, normal, rstd = saved
    g = dy.float()
    wg, n = ((g * w.float()[:, None]).reshape(x.shape[0], 2, -1), normal.reshape(x.shape[0], 2, -1))
    dx = rstd * (wg - wg.mean(-1, keepdim=True) - n * (wg * n).mean(-1, keepdim=True))
    return low(dx.reshape(x.shape), x), low((g * normal).sum((0, 2)), w), low(g.sum((0, 2)), w)


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits, target)


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def layer_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), w, b)


def swiglu(a: Tensor, b: Tensor) -> Tensor:
    return F.silu(a) * b


def rope_inputs() -> Inputs:
    angles = _angles(16, 32)
    return torch.randn(3, 16, 32).requires_grad_(), angles.cos(), angles.sin()


def weights(size: int) -> Tensor:
    return 0.5 + torch.rand(size)


KERNELS: Sequence[Kernel] = (
    Kernel("softmax", softmax, _softmax, _softmax_backward, lambda: (2.0 * torch.randn(12, 40),)),
    Kernel(
        "layer_norm",
        layer_norm,
        _layer_norm,
        _layer_norm_backward,
        lambda: (torch.randn(24, 48) + 0.5, weights(48), torch.randn(48)),
        (0, 1, 2),
    ),
    Kernel("rms_norm", rms_norm, _rms_norm, _rms_norm_backward, lambda: (torch.randn(2, 9, 64), weights(64)), (0, 1)),
    Kernel("swiglu", swiglu, _swiglu, _swiglu_backward, lambda: (torch.randn(10, 36), torch.randn(10, 36)), (0, 1)),
    Kernel(
        "matmul", torch.matmul, _matmul, _matmul_backward, lambda: (torch.randn(20, 48), torch.randn(48, 28)), (0, 1)
    ),
    Kernel(
        "attention",
        attention,
        _attention,
        _attention_backward,
        lambda: tuple(torch.randn(2, 2, 24, 16) for _ in range(3)),
        (0, 1, 2),
    ),
    Kernel("rope", rope, _rope, _rope_backward, rope_inputs),
    Kernel(
        "group_norm",
        group_norm,
        _group_norm,
        _group_norm_backward,
        lambda: (torch.randn(6, 4, 20), weights(4), torch.randn(4)),
        (0, 1, 2),
    ),
)

OVERWRITING: Sequence[Kernel] = (
    Kernel(
        "cross_entropy",
        cross_entropy,
        _cross_entropy,
        _cross_entropy_backward,
        lambda: (torch.randn(12, 30), torch.randint(30, (12,))),
    ),
    Kernel("swiglu_once", swiglu, _swiglu, _swiglu_once, lambda: (torch.randn(10, 36), torch.randn(10, 36)), (0, 1)),
)
"""Kernels whose backward can run once only, and that overwrite inputs or grad_output."""
