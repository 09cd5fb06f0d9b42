"""Kernels in plain torch that behave like hand-written ones: tiles, float32 inside, memory that is written twice.

Each works in float32, bfloat16 and float16 and rounds once at the end of a pass. `spoil` changes the gradients of the
backward pass, so that every kernel has wrong versions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils._python_dispatch import _disable_current_modes

TILE = 4
"""Columns that are treated at a time."""

Gradients = tuple[Tensor | None, ...]
Spoil = Callable[[Gradients], Gradients]
Kernel = Callable[..., Any]

TYPES = (torch.float32, torch.bfloat16, torch.float16)


def unspoiled(gradients: Gradients) -> Gradients:
    return gradients


def opaque_function(forward: Kernel, backward: Kernel, spoil: Spoil = unspoiled) -> Kernel:
    """A function whose passes are these. Like compiled kernels, they hide their operators from torch's modes."""

    def opaque(ctx: Any, *inputs: Any) -> Any:
        with _disable_current_modes():
            return forward(ctx, *inputs)

    @once_differentiable  # type: ignore[untyped-decorator]
    def spoiled(ctx: Any, *cotangents: Tensor) -> Any:
        with _disable_current_modes():
            return spoil(backward(ctx, *cotangents))

    members = {"forward": staticmethod(opaque), "backward": staticmethod(spoiled)}
    kernel: Any = type("Kernel", (torch.autograd.Function,), members)
    return kernel.apply  # type: ignore[no-any-return]


def _tiles(columns: int) -> range:
    return range(0, columns, TILE)


def rms_norm(
    spoil: Spoil = unspoiled, *, in_place: bool = False, refuses_float64: bool = False, count: int | None = None
) -> Kernel:
    """x / rms(x) · w, row by row. With `in_place` the gradient of x is written over grad_output.

    `count` is the number of columns that backward divides by, if it is not the right one.
    """

    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        wide = x.float()
        squares = sum((wide[:, i : i + TILE] ** 2).sum(-1, keepdim=True) for i in _tiles(x.shape[1]))
        scale = torch.rsqrt(squares / x.shape[1] + 1e-6)
        ctx.save_for_backward(x, w, scale)
        return (wide * scale * w.float()).to(x.dtype)

    def backward(ctx: Any, v: Tensor) -> Gradients:
        x, w, scale = ctx.saved_tensors
        if refuses_float64:
            {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}[x.dtype]
        normed, weighted = x.float() * scale, v.float() * w.float()
        mean = sum((weighted * normed)[:, i : i + TILE].sum(-1, keepdim=True) for i in _tiles(x.shape[1]))
        mean = mean / (count or x.shape[1])
        dw = (v.float() * normed).sum(0).to(w.dtype)
        dx = (scale * (weighted - normed * mean)).to(x.dtype)
        return (v.copy_(dx) if in_place else dx), dw

    return opaque_function(forward, backward, spoil)


def swiglu(spoil: Spoil = unspoiled) -> Kernel:
    """silu(a) · b. The backward pass writes the gradients over the inputs that it saved."""

    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.a, ctx.b = a.detach(), b.detach()
        return (torch.nn.functional.silu(a.float()) * b.float()).to(a.dtype)

    def backward(ctx: Any, v: Tensor) -> Gradients:
        for i in _tiles(v.shape[-1]):
            a, b, g = (t[..., i : i + TILE] for t in (ctx.a, ctx.b, v))
            wide, sigmoid = a.float(), torch.sigmoid(a.float())
            da = g.float() * b.float() * sigmoid * (1.0 + wide * (1.0 - sigmoid))
            b.data.copy_(g.float() * wide * sigmoid)
            a.data.copy_(da)
        return ctx.a, ctx.b

    return opaque_function(forward, backward, spoil)


def gated(spoil: Spoil = unspoiled) -> Kernel:
    """silu(a) · b with a in float32 whatever its dtype, and b and the product in the dtype of b."""

    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return torch.nn.functional.silu(a.float()).to(b.dtype) * b

    def backward(ctx: Any, v: Tensor) -> Gradients:
        a, b = ctx.saved_tensors
        wide, sigmoid = a.float(), torch.sigmoid(a.float())
        return v * sigmoid * (1.0 + wide * (1.0 - sigmoid)) * b, v * (wide * sigmoid)

    return opaque_function(forward, backward, spoil)


def cross_entropy(spoil: Spoil = unspoiled) -> Kernel:
    """The mean cross entropy. The forward pass writes the gradient over the logits; the backward pass scales it."""

    def forward(ctx: Any, logits: Tensor, target: Tensor) -> Tensor:
        wide = logits.float()
        ctx.gradient = logits.detach()
        loss = (torch.logsumexp(wide, -1) - wide.gather(1, target[:, None])[:, 0]).mean()
        if logits.requires_grad:
            hot = torch.nn.functional.one_hot(target, logits.shape[1])
            ctx.gradient.data.copy_((torch.softmax(wide, -1) - hot) / len(logits))
        return loss.to(logits.dtype)

    def backward(ctx: Any, v: Tensor) -> Gradients:
        ctx.gradient.data.mul_(v)
        return ctx.gradient, None

    return opaque_function(forward, backward, spoil)


def linear_loss(spoil: Spoil = unspoiled) -> Kernel:
    """The mean of softplus(x wᵀ). The forward pass computes the gradients, the backward pass scales them in place."""

    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        logits = x.float() @ w.float().t()
        slope = torch.sigmoid(logits) / logits.numel()
        ctx.gradients = (slope @ w.float()).to(x.dtype), (slope.t() @ x.float()).to(w.dtype)
        return torch.nn.functional.softplus(logits).mean().to(x.dtype)

    def backward(ctx: Any, v: Tensor) -> Gradients:
        return tuple(gradient.data.mul_(v) for gradient in ctx.gradients)

    return opaque_function(forward, backward, spoil)


def rope(cosine: Tensor, sine: Tensor, spoil: Spoil = unspoiled, *, dtype: torch.dtype | None = None) -> Kernel:
    """The rotary embedding with captured tables, computed in `dtype`, by default that of the tables."""

    def turned(x: Tensor, sign: float) -> Tensor:
        half = x.shape[-1] // 2
        given = x.to(dtype or cosine.dtype)
        one, other = given[..., :half], given[..., half:]
        return torch.cat([one * cosine - sign * other * sine, other * cosine + sign * one * sine], -1).to(x.dtype)

    def forward(ctx: Any, x: Tensor) -> Tensor:
        return turned(x, 1.0)

    def backward(ctx: Any, v: Tensor) -> Gradients:
        return (turned(v, -1.0),)

    return opaque_function(forward, backward, spoil)


def layer_norm(spoil: Spoil = unspoiled) -> Kernel:
    """(x - mean) / deviation · w + b; the gradients of w and b are summed over blocks of rows."""

    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        wide = x.float()
        mean = wide.mean(-1, keepdim=True)
        scale = torch.rsqrt(wide.var(-1, keepdim=True, unbiased=False) + 1e-5)
        ctx.save_for_backward(x, w, mean, scale)
        return ((wide - mean) * scale * w.float() + b.float()).to(x.dtype)

    def backward(ctx: Any, v: Tensor) -> Gradients:
        x, w, mean, scale = ctx.saved_tensors
        normed, wide = (x.float() - mean) * scale, v.float()
        weighted = wide * w.float()
        centred = weighted - weighted.mean(-1, keepdim=True) - normed * (weighted * normed).mean(-1, keepdim=True)
        blocks = range(0, len(x), TILE)
        dw = sum((wide * normed)[i : i + TILE].sum(0) for i in blocks)
        db = sum(wide[i : i + TILE].sum(0) for i in blocks)
        return (scale * centred).to(x.dtype), dw.to(w.dtype), db.to(w.dtype)

    return opaque_function(forward, backward, spoil)


def cut_off_to_tf32(x: Tensor) -> Tensor:
    """In float32 with ten bits, as tensor cores read it."""
    return (x.float().contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32)


def tf32_attention(spoil: Spoil = unspoiled) -> Kernel:
    """Causal attention whose products are in TF32; backward from the saved log-sum-exp."""

    def dot(a: Tensor, b: Tensor) -> Tensor:
        return cut_off_to_tf32(a) @ cut_off_to_tf32(b)

    def probabilities(q: Tensor, k: Tensor, lse: Tensor | None = None) -> tuple[Tensor, Tensor]:
        past = torch.ones(q.shape[-2:-1] * 2, dtype=torch.bool).tril()
        scores = (dot(q, k.mT) * q.shape[-1] ** -0.5).masked_fill(~past, -torch.inf)
        lse = torch.logsumexp(scores, -1, keepdim=True) if lse is None else lse
        return torch.exp(scores - lse), lse

    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        p, lse = probabilities(q, k)
        o = dot(p, v)
        ctx.save_for_backward(q, k, v, o, lse)
        return o

    def backward(ctx: Any, g: Tensor) -> Gradients:
        q, k, v, o, lse = ctx.saved_tensors
        p, _ = probabilities(q, k, lse)
        ds = p * (dot(g, v.mT) - (o * g).sum(-1, keepdim=True)) * q.shape[-1] ** -0.5
        return dot(ds, k), dot(ds.mT, q), dot(p.mT, g)

    return opaque_function(forward, backward, spoil)


def tf32_linear_attention(spoil: Spoil = unspoiled) -> Kernel:
    """Linear attention of all past steps at once, with products in TF32."""

    def dot(a: Tensor, b: Tensor) -> Tensor:
        return cut_off_to_tf32(a) @ cut_off_to_tf32(b)

    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        ctx.save_for_backward(q, k, v)
        return dot(dot(q, k.mT).tril(), v)

    def backward(ctx: Any, g: Tensor) -> Gradients:
        q, k, v = ctx.saved_tensors
        of_scores = dot(g, v.mT).tril()
        return dot(of_scores, k), dot(of_scores.mT, q), dot(dot(q, k.mT).tril().mT, g)

    return opaque_function(forward, backward, spoil)


def recurrent_linear_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same in plain torch, step by step, with elementwise products and sums."""
    state, outputs = torch.zeros(len(q), q.shape[-1], v.shape[-1], dtype=q.dtype), []
    for step in range(q.shape[1]):
        state = state + k[:, step, :, None] * v[:, step, None, :]
        outputs.append((q[:, step, :, None] * state).sum(-2))
    return torch.stack(outputs, 1)


def loss_with_penalty(*, forgets_penalty: bool = False) -> Kernel:
    """Cross entropy plus a hundredth of the squared log-sum-exp; backward may forget the latter."""

    def forward(ctx: Any, logits: Tensor, target: Tensor) -> Tensor:
        ctx.save_for_backward(logits, target)
        return eager_loss_with_penalty(logits.float(), target).to(logits.dtype)

    def backward(ctx: Any, g: Tensor) -> Gradients:
        logits, target = ctx.saved_tensors
        lse = torch.logsumexp(logits.float(), -1, keepdim=True)
        p = torch.exp(logits.float() - lse)
        penalty = 0.0 if forgets_penalty else 0.02 * lse * p
        slope = (p - torch.nn.functional.one_hot(target, p.shape[1]) + penalty) / len(p)
        return (slope * g.float()).to(logits.dtype), None

    return opaque_function(forward, backward)


def eager_loss_with_penalty(logits: Tensor, target: Tensor) -> Tensor:
    lse = torch.logsumexp(logits, -1)
    return (lse - logits.gather(1, target[:, None])[:, 0] + 0.01 * lse * lse).mean()


def sum_of_rows(spoil: Spoil = unspoiled) -> Kernel:
    """x + b, where the gradient of b is added up row by row in the dtype given, as atomic additions do."""

    def forward(ctx: Any, x: Tensor, b: Tensor) -> Tensor:
        return (x.float() + b.float()).to(x.dtype)

    def backward(ctx: Any, v: Tensor) -> Gradients:
        total = torch.zeros_like(v[0])
        for row in v:
            total += row
        return v.clone(), total

    return opaque_function(forward, backward, spoil)
