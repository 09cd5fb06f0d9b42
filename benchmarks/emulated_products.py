"""Attention, scans and matrix products in the manner of public kernels; see `benchmarks.emulated`."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.emulated import Emulated, Passes, cast, differentiated, follow, product, refuse, tiles

BLOCK = 8


def past(length: int, shift: int = 0) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool).tril(shift)


def flash_attention(fault: str) -> Passes:
    """Causal attention over tiles of keys, with a running maximum; backward from the saved log-sum-exp."""

    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        length, scale = q.shape[-2], 1.0 / math.sqrt(q.shape[-1])
        peak = torch.full((*q.shape[:-1], 1), -math.inf)
        total, acc = torch.zeros(*q.shape[:-1], 1), torch.zeros(q.shape)
        for part in tiles(length, BLOCK):
            s = (cast(q) @ cast(k[..., part, :]).mT * scale).masked_fill(~past(length)[:, part], -math.inf)
            new = torch.maximum(peak, s.amax(-1, keepdim=True))
            p, shrink = torch.exp(s - new), torch.exp(peak - new)
            total = total * shrink + p.sum(-1, keepdim=True)
            acc = acc * shrink + cast(p.to(v.dtype)) @ cast(v[..., part, :])
            peak = new
        o = (acc / total).to(q.dtype)
        ctx.save_for_backward(q, k, v, o, peak + torch.log(total))
        return o

    def backward(ctx: Any, g: Tensor) -> Any:
        q, k, v, o, lse = ctx.saved_tensors
        length, scale = q.shape[-2], 1.0 / math.sqrt(q.shape[-1])
        delta = (cast(o) * cast(g)).sum(-1, keepdim=True)
        dq, dk, dv = torch.zeros(q.shape), torch.zeros(k.shape), torch.zeros(v.shape)
        for part in tiles(length, BLOCK):
            mask = past(length, 1 if fault == "mask edge" else 0)[:, part]
            s = cast(q) @ cast(k[..., part, :]).mT * scale
            p = torch.exp(s - lse).masked_fill(~mask, 0.0)
            dp = cast(g) @ cast(v[..., part, :]).mT
            ds = p * (dp - (0.0 if fault == "missing delta" else delta))
            ds = cast(ds.to(q.dtype))
            dq += ds @ cast(k[..., part, :])
            if not (fault == "lost tile" and part.stop == length):
                dk[..., part, :] = ds.mT @ cast(q) * scale
            dv[..., part, :] = cast(p.to(g.dtype)).mT @ cast(g)
        dq = dq if fault == "missing scale" else dq * scale
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)

    return forward, backward


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~past(q.shape[-2]), -math.inf)
    return torch.softmax(s, -1) @ v


def block_mask(length: int) -> Tensor:
    """Blocks of four: the diagonal, the first column of blocks, and every third one."""
    i = torch.arange(length) // 4
    return (i[:, None] == i) | (i == 0) | ((i[:, None] + i) % 3 == 0)


def sparse_attention(fault: str) -> Passes:
    """Attention with a mask of blocks, log-sum-exp saved; refuses float64."""

    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        s = (refuse(q) @ refuse(k).mT * 0.3).masked_fill(~block_mask(q.shape[-2]), -math.inf)
        lse = torch.logsumexp(s, -1, keepdim=True)
        o = (torch.exp(s - lse) @ refuse(v)).to(q.dtype)
        ctx.save_for_backward(q, k, v, o, lse)
        return o

    def backward(ctx: Any, g: Tensor) -> Any:
        q, k, v, o, lse = ctx.saved_tensors
        mask = block_mask(q.shape[-2])
        if fault == "lost block":
            mask = mask.clone()
            mask[8:12, 0:4] = False
        p = torch.exp(cast(q) @ cast(k).mT * 0.3 - lse).masked_fill(~mask, 0.0)
        ds = p * (cast(g) @ cast(v).mT - (cast(o) * cast(g)).sum(-1, keepdim=True)) * 0.3
        return (ds @ cast(k)).to(q.dtype), (ds.mT @ cast(q)).to(k.dtype), (p.mT @ cast(g)).to(v.dtype)

    return forward, backward


def masked_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = (q @ k.mT * 0.3).masked_fill(~block_mask(q.shape[-2]), -math.inf)
    return torch.softmax(s, -1) @ v


def linear_activation(fault: str) -> Passes:
    """gelu(x wᵀ + b) with tiles of the inner dimension; the value before the activation is saved in low precision."""

    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        z = product(follow(x), follow(w).t()) + follow(b)
        ctx.save_for_backward(x, w, z.to(x.dtype))
        return F.gelu(z, approximate="tanh").to(x.dtype)

    def backward(ctx: Any, g: Tensor) -> Any:
        x, w, z = ctx.saved_tensors
        (dz,) = differentiated(lambda z: F.gelu(z, approximate="tanh"), (follow(z),), (follow(g),))
        dz = follow(dz.to(x.dtype))
        db = dz.sum(0)
        db = torch.zeros_like(db) if fault == "dropped bias" else db
        dw = product(dz.t(), follow(x), 4)
        if fault == "lost tail of rows":
            dw = product(dz[:-1].t(), follow(x)[:-1], 4)
        return product(dz, follow(w)).to(x.dtype), dw.to(w.dtype), db.to(w.dtype)

    return forward, backward


def grouped_product(fault: str) -> Passes:
    """Rows of x times the matrix of their group; groups of unequal length, one of them empty."""
    ends = (0, 5, 5, 12, 20)

    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        parts = [product(cast(x[a:b]), cast(w[e])) for e, (a, b) in enumerate(pairwise(ends))]
        return torch.cat(parts).to(x.dtype)

    def backward(ctx: Any, g: Tensor) -> Any:
        x, w = ctx.saved_tensors
        dx, dw = torch.zeros(x.shape), torch.zeros(w.shape)
        for e, (a, b) in enumerate(pairwise(ends)):
            dx[a:b] = product(cast(g[a:b]), cast(w[e]).t())
            last = b - 1 if fault == "lost row of a group" and e == 2 else b
            dw[e] = product(cast(x[a:last]).t(), cast(g[a:last]))
        if fault == "wrong group":
            dx[12] = cast(g[12]) @ cast(w[2]).t()
        return dx.to(x.dtype), dw.to(w.dtype)

    return forward, backward


def grouped(x: Tensor, w: Tensor) -> Tensor:
    return torch.cat([x[0:5] @ w[0], x[5:12] @ w[2], x[12:20] @ w[3]])


def linear_attention(fault: str) -> Passes:
    """o_t = q_t Σ_{s ≤ t} k_s v_sᵀ in chunks, with the state before each chunk saved in float32."""

    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        state, states, out = torch.zeros(q.shape[-1], v.shape[-1]), [], []
        for part in tiles(len(q), BLOCK):
            states.append(state)
            a, b, c = cast(q[part]), cast(k[part]), cast(v[part])
            out.append(a @ state + (a @ b.t()).tril() @ c)
            state = state + b.t() @ c
        ctx.save_for_backward(q, k, v, *states)
        return torch.cat(out).to(q.dtype)

    def backward(ctx: Any, g: Tensor) -> Any:
        q, k, v, *states = ctx.saved_tensors
        dq, dk, dv = torch.zeros(q.shape), torch.zeros(k.shape), torch.zeros(v.shape)
        later = torch.zeros(q.shape[-1], v.shape[-1])
        for part, state in reversed(list(zip(tiles(len(q), BLOCK), states, strict=True))):
            a, b, c, d = (cast(t[part]) for t in (q, k, v, g))
            scores = (d @ c.t()).tril()
            dq[part] = scores @ b + (0.0 if fault == "lost state" else d @ state.t())
            dk[part] = scores.t() @ a + c @ later.t()
            dv[part] = (a @ b.t()).tril().t() @ d + b @ later
            later = later + a.t() @ d if fault != "later chunks once" else a.t() @ d
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)

    return forward, backward


def eager_linear_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.t()).tril() @ v


def eager_delta_rule(q: Tensor, k: Tensor, v: Tensor, beta: Tensor) -> Tensor:
    state, out = q.new_zeros(v.shape[-1], k.shape[-1]), []
    for a, b, c, d in zip(q, k, v, beta, strict=True):
        state = state + d * torch.outer(c - state @ b, b)
        out.append(state @ a)
    return torch.stack(out)


def delta_rule(fault: str) -> Passes:
    """S ← S + β (v - S k) kᵀ, o = S q, step by step in float32; refuses float64."""

    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, beta: Tensor) -> Tensor:
        ctx.save_for_backward(q, k, v, beta)
        return eager_delta_rule(*map(refuse, (q, k, v, beta))).to(q.dtype)

    def backward(ctx: Any, g: Tensor) -> Any:
        given = ctx.saved_tensors
        dq, dk, dv, db = differentiated(eager_delta_rule, tuple(map(refuse, given)), (g,))
        if fault == "beta without decay":
            db = (dv / refuse(given[3])[:, None] * refuse(given[2])).sum(-1)
        if fault == "first step lost":
            dk[0] = 0.0
        return tuple(d.to(x.dtype) for d, x in zip((dq, dk, dv, db), given, strict=True))

    return forward, backward


def eager_scan(x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    state, out = x.new_zeros(a.shape), []
    step = F.softplus(dt)
    for i in range(len(x)):
        state = torch.exp(step[i][:, None] * a) * state + (step[i] * x[i])[:, None] * b[i]
        out.append((state * c[i]).sum(-1) + d * x[i])
    return torch.stack(out)


def selective_scan(fault: str) -> Passes:
    """The scan of a state space model with a softplus step; states are saved and the scan runs backwards."""

    def forward(ctx: Any, x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
        ctx.save_for_backward(x, dt, a, b, c, d)
        return eager_scan(*map(cast, (x, dt, a, b, c, d))).to(x.dtype)

    def backward(ctx: Any, g: Tensor) -> Any:
        given = ctx.saved_tensors
        x, dt, a, b, c, d = map(cast, given)
        step, states, state = F.softplus(dt), [], torch.zeros(a.shape)
        for i in range(len(x)):
            states.append(state)
            state = torch.exp(step[i][:, None] * a) * state + (step[i] * x[i])[:, None] * b[i]
        states.append(state)
        g = cast(g)
        dx, ds, da, db, dc = (
            d * g,
            torch.zeros(dt.shape),
            torch.zeros(a.shape),
            torch.zeros(b.shape),
            torch.zeros(c.shape),
        )
        later = torch.zeros(a.shape)
        for i in reversed(range(len(x))):
            decay = torch.exp(step[i][:, None] * a)
            later = later + g[i][:, None] * c[i]
            dc[i] = (g[i][:, None] * states[i + 1]).sum(0)
            inner = later * decay * states[i]
            da += inner * (1.0 if fault == "missing step in a" else step[i][:, None])
            ds[i] = (inner * a).sum(-1) + (later * b[i]).sum(-1) * x[i]
            dx[i] += (later * b[i]).sum(-1) * step[i]
            db[i] = (later * (step[i] * x[i])[:, None]).sum(0)
            later = later * decay
        ds = ds if fault == "missing softplus" else ds * torch.sigmoid(dt)
        dd = torch.zeros_like(d) if fault == "dropped skip" else (g * x).sum(0)
        return tuple(one.to(x.dtype) for one, x in zip((dx, ds, da, db, dc, dd), given, strict=True))

    return forward, backward


def gated_linear(fault: str) -> Passes:
    """silu(x w₁ᵀ) · (x w₂ᵀ); only the input is saved and the products are computed again."""

    def forward(ctx: Any, x: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
        ctx.save_for_backward(x, w1, w2)
        a, b = product(follow(x), follow(w1).t()), product(follow(x), follow(w2).t())
        return (F.silu(a) * b).to(x.dtype)

    def backward(ctx: Any, g: Tensor) -> Any:
        x, w1, w2 = ctx.saved_tensors
        a, b = product(follow(x), follow(w1).t()), product(follow(x), follow(w2).t())
        s, g = torch.sigmoid(a), follow(g)
        da = g * b * (s if fault == "missing term" else s * (1.0 + a * (1.0 - s)))
        db = g * a * s
        dx = product(da, follow(w1)) + (0.0 if fault == "lost branch" else product(db, follow(w2)))
        return dx.to(x.dtype), product(da.t(), follow(x)).to(w1.dtype), product(db.t(), follow(x)).to(w2.dtype)

    return forward, backward


def quantised_linear(fault: str) -> Passes:
    """x (s (q - z))ᵀ with integers q in groups of eight along the input; s and z are trained."""

    def unpacked(q: Tensor, s: Tensor, z: Tensor) -> Tensor:
        return ((q.view(len(q), -1, 8).to(s.dtype) - z[..., None]) * s[..., None]).view(q.shape)

    def forward(ctx: Any, x: Tensor, q: Tensor, s: Tensor, z: Tensor) -> Tensor:
        ctx.save_for_backward(x, q, s, z)
        return product(cast(x), unpacked(q, cast(s), cast(z)).t()).to(x.dtype)

    def backward(ctx: Any, g: Tensor) -> Any:
        x, q, s, z = ctx.saved_tensors
        dx = product(cast(g), unpacked(q, cast(s), cast(z)))
        dw = product(cast(g).t(), cast(x), 4).view(len(q), -1, 8)
        centred = q.view(len(q), -1, 8).float() - (0.0 if fault == "zero point ignored" else cast(z)[..., None])
        dz = -(dw * cast(s)[..., None]).sum(-1)
        dz = -dz if fault == "sign of the zero point" else dz
        return dx.to(x.dtype), None, (dw * centred).sum(-1).to(s.dtype), dz.to(z.dtype)

    return forward, backward


def eager_quantised(x: Tensor, q: Tensor, s: Tensor, z: Tensor) -> Tensor:
    w = (q.view(len(q), -1, 8).to(s.dtype) - z[..., None]) * s[..., None]
    return x @ w.view(q.shape).t()


def causal_conv(fault: str) -> Passes:
    """silu of a causal depthwise convolution with bias."""

    def windows(x: Tensor, width: int) -> Tensor:
        return F.pad(x, (width - 1, 0)).unfold(-1, width, 1)

    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(x, w, b)
        z = (windows(follow(x), w.shape[-1]) * follow(w)[:, None]).sum(-1) + follow(b)[:, None]
        return F.silu(z).to(x.dtype)

    def backward(ctx: Any, g: Tensor) -> Any:
        x, w, b = ctx.saved_tensors
        near = windows(follow(x), w.shape[-1])
        z = (near * follow(w)[:, None]).sum(-1) + follow(b)[:, None]
        s = torch.sigmoid(z)
        dz = follow(g) * s * (1.0 + z * (1.0 - s))
        ahead = F.pad(dz, (0, w.shape[-1] - 1)).unfold(-1, w.shape[-1], 1)
        dx = (ahead * follow(w).flip(-1)[:, None]).sum(-1)
        if fault == "edge of the tile":
            dx[..., 7] -= dz[..., 8] * follow(w)[:, -2]
        db = torch.zeros(len(b)) if fault == "dropped bias" else dz.sum((0, 2))
        return dx.to(x.dtype), (dz[..., None] * near).sum((0, 2)).to(w.dtype), db.to(b.dtype)

    return forward, backward


def eager_conv(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.silu(F.conv1d(F.pad(x, (w.shape[-1] - 1, 0)), w[:, None], b, groups=len(w)))


def kronecker(fault: str) -> Passes:
    """(A ⊗ B) x without the large matrix: A X Bᵀ. The product in the middle is rounded."""

    def forward(ctx: Any, x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        grid = cast(x).view(len(x), a.shape[1], b.shape[1])
        inner = (grid @ cast(b).t()).to(x.dtype)
        ctx.save_for_backward(x, a, b, inner)
        return (cast(a) @ cast(inner)).reshape(len(x), -1).to(x.dtype)

    def backward(ctx: Any, g: Tensor) -> Any:
        x, a, b, inner = ctx.saved_tensors
        g = cast(g).view(len(x), a.shape[0], b.shape[0])
        grid = cast(x).view(len(x), a.shape[1], b.shape[1])
        di = cast((cast(a).t() @ g).to(x.dtype))
        da = torch.einsum("npq,nmq->pm", g, cast(inner))
        db = torch.einsum(
            "nmq,nmr->qr",
            di if fault != "last sample lost" else di[:-1],
            grid[: len(di) - (fault == "last sample lost")],
        )
        return (di @ cast(b)).reshape(x.shape).to(x.dtype), da.to(a.dtype), db.to(b.dtype)

    return forward, backward


def eager_kronecker(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return x @ torch.kron(a, b).t()


PRODUCTS = {
    "flash_attention": Emulated(
        flash_attention,
        ("missing delta", "mask edge", "lost tile", "missing scale"),
        attention,
        lambda d: (d.normal(2, 20, 8), d.normal(2, 20, 8), d.normal(2, 20, 8)),
    ),
    "sparse_attention": Emulated(
        sparse_attention,
        ("lost block",),
        masked_attention,
        lambda d: (d.normal(16, 6), d.normal(16, 6), d.normal(16, 6)),
    ),
    "linear_activation": Emulated(
        linear_activation,
        ("dropped bias", "lost tail of rows"),
        lambda x, w, b: F.gelu(x @ w.t() + b, approximate="tanh"),
        lambda d: (d.normal(9, 40), d.placed(d.constant(12, 40).float() / 6).requires_grad_(), d.normal(12)),
    ),
    "grouped_product": Emulated(
        grouped_product,
        ("lost row of a group", "wrong group"),
        grouped,
        lambda d: (d.normal(20, 12), d.normal(4, 12, 7)),
    ),
    "linear_attention": Emulated(
        linear_attention,
        ("lost state", "later chunks once"),
        eager_linear_attention,
        lambda d: (d.normal(21, 6), d.normal(21, 6), d.normal(21, 5)),
    ),
    "delta_rule": Emulated(
        delta_rule,
        ("beta without decay", "first step lost"),
        eager_delta_rule,
        lambda d: (
            d.normal(10, 4),
            d.placed(F.normalize(d.constant(10, 4).float(), dim=-1)).requires_grad_(),
            d.normal(10, 5),
            d.placed(torch.sigmoid(d.constant(10).float())).requires_grad_(),
        ),
    ),
    "selective_scan": Emulated(
        selective_scan,
        ("missing step in a", "missing softplus", "dropped skip"),
        eager_scan,
        lambda d: (
            d.normal(11, 4),
            d.normal(11, 4),
            d.placed(-torch.exp(0.5 * d.constant(4, 3).float())).requires_grad_(),
            d.normal(11, 3),
            d.normal(11, 3),
            d.normal(4),
        ),
    ),
    "gated_linear": Emulated(
        gated_linear,
        ("missing term", "lost branch"),
        lambda x, a, b: F.silu(x @ a.t()) * (x @ b.t()),
        lambda d: (
            d.normal(7, 24),
            d.placed(d.constant(10, 24).float() / 5).requires_grad_(),
            d.placed(d.constant(10, 24).float() / 5).requires_grad_(),
        ),
    ),
    "quantised_linear": Emulated(
        quantised_linear,
        ("zero point ignored", "sign of the zero point"),
        eager_quantised,
        lambda d: (
            d.normal(6, 24),
            torch.randint(0, 16, (9, 24), generator=torch.Generator().manual_seed(1)),
            d.placed(0.05 + 0.02 * d.constant(9, 3).float()).requires_grad_(),
            d.placed(8.0 + d.constant(9, 3).float()).requires_grad_(),
        ),
    ),
    "causal_conv": Emulated(
        causal_conv,
        ("edge of the tile", "dropped bias"),
        eager_conv,
        lambda d: (d.normal(2, 5, 19), d.normal(5, 4), d.normal(5)),
    ),
    "kronecker": Emulated(
        kronecker, ("last sample lost",), eager_kronecker, lambda d: (d.normal(5, 24), d.normal(3, 4), d.normal(5, 6))
    ),
}
