"""Norms, activations, losses, gathers and scans of rows in the manner of public kernels; see `benchmarks.emulated`."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.emulated import Emulated, Passes, cast, differentiated, follow, refuse, tiles
from benchmarks.kernel_cases import Draw


def masked_softmax(fault: str) -> Passes:
    """softmax(x / 2 + mask) by rows; the result is saved in low precision."""

    def forward(ctx: Any, x: Tensor, mask: Tensor) -> Tensor:
        y = torch.softmax(follow(x) * 0.5 + follow(mask), -1).to(x.dtype)
        ctx.save_for_backward(y)
        return y

    def backward(ctx: Any, g: Tensor) -> Any:
        y, wide = follow(ctx.saved_tensors[0]), follow(g)
        inner = 0.0 if fault == "missing term" else (y * wide).sum(-1, keepdim=True)
        dx = y * (wide - inner) * (1.0 if fault == "missing scale" else 0.5)
        return dx.to(g.dtype), None

    return forward, backward


def _hash(count: int, seed: int) -> Tensor:
    """Numbers in [0, 1) from a seed and a position."""
    position = torch.arange(count, dtype=torch.float64) + 0.618 * seed
    return (torch.sin(position * 12.9898) * 43758.5453).frac().abs().float()


def dropout(fault: str) -> Passes:
    """Dropout of a sum with a mask from a seed, which backward makes again."""

    def kept(x: Tensor, seed: int) -> Tensor:
        return (_hash(x.numel(), seed) > 0.3).view(x.shape)

    def forward(ctx: Any, x: Tensor, residual: Tensor, seed: int) -> Tensor:
        ctx.seed = seed
        return (cast(x) * kept(x, seed) / 0.7 + cast(residual)).to(x.dtype)

    def backward(ctx: Any, g: Tensor) -> Any:
        mask = kept(g, ctx.seed + (fault == "other seed"))
        dx = cast(g) * mask / (1.0 if fault == "missing scale" else 0.7)
        return dx.to(g.dtype), g, None

    return forward, backward


def eager_dropout(x: Tensor, residual: Tensor, seed: int) -> Tensor:
    return x * (_hash(x.numel(), seed) > 0.3).view(x.shape) / 0.7 + residual


def layer_norm(fault: str) -> Passes:
    """Layer norm whose sums over rows are kept in buffers of the weight's dtype, one for every fourth row."""

    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        mean = cast(x).mean(-1, keepdim=True)
        rstd = torch.rsqrt(cast(x).var(-1, keepdim=True, unbiased=False) + 1e-5)
        ctx.save_for_backward(x, w, mean, rstd)
        return ((cast(x) - mean) * rstd * cast(w) + cast(b)).to(x.dtype)

    def backward(ctx: Any, g: Tensor) -> Any:
        x, w, mean, rstd = ctx.saved_tensors
        normed, wg = (cast(x) - mean) * rstd, cast(g) * cast(w)
        c1 = (wg * normed).mean(-1, keepdim=True)
        c2 = 0.0 if fault == "missing mean" else wg.mean(-1, keepdim=True)
        dx = (wg - normed * c1 - c2) * rstd
        dw, db = torch.zeros(4, len(w), dtype=w.dtype), torch.zeros(4, len(w), dtype=w.dtype)
        for row in range(len(x)):
            lock = row % 4
            dw[lock] = (cast(dw[lock]) + cast(g[row]) * normed[row]).to(w.dtype)
            db[lock] = (cast(db[lock]) + cast(g[row])).to(w.dtype)
        if fault == "lost buffer":
            dw[3] = 0.0
        db = torch.zeros_like(db) if fault == "dropped bias" else db
        return dx.to(x.dtype), cast(dw).sum(0).to(w.dtype), cast(db).sum(0).to(w.dtype)

    return forward, backward


def group_norm(fault: str) -> Passes:
    """Group norm with saved mean and rstd; sums over the batch in float32."""
    groups = 3

    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        grid = refuse(x).view(len(x), groups, -1)
        mean, rstd = grid.mean(-1, keepdim=True), torch.rsqrt(grid.var(-1, keepdim=True, unbiased=False) + 1e-5)
        ctx.save_for_backward(x, w, mean, rstd)
        return (((grid - mean) * rstd).view(x.shape) * cast(w)[:, None] + cast(b)[:, None]).to(x.dtype)

    def backward(ctx: Any, g: Tensor) -> Any:
        g = g.contiguous()
        x, w, mean, rstd = ctx.saved_tensors
        normed = ((cast(x).view(len(x), groups, -1) - mean) * rstd).view(x.shape)
        wg = (cast(g) * cast(w)[:, None]).view(len(x), groups, -1)
        flat = normed.view(wg.shape)
        count = wg.shape[-1] if fault != "wrong count" else x.shape[-1]
        dx = (wg - (wg.sum(-1, keepdim=True) + flat * (wg * flat).sum(-1, keepdim=True)) / count) * rstd
        dw = (cast(g) * normed).sum((0, 2))
        dw = torch.cat([dw[:-1], 0.0 * dw[-1:]]) if fault == "last channel lost" else dw
        return dx.view(x.shape).to(x.dtype), dw.to(w.dtype), cast(g).sum((0, 2)).to(w.dtype)

    return forward, backward


def rope(fault: str) -> Passes:
    """Rotation of the first six of eight features, with tables that are made inside in the dtype of the input."""

    def turned(x: Tensor, sign: float) -> Tensor:
        angle = torch.outer(torch.arange(x.shape[-2]), 10.0 ** -torch.arange(3))
        c, s = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        a, b, rest = x[..., 0:3], x[..., 3:6], x[..., 6:]
        return torch.cat([a * c - sign * b * s, b * c + sign * a * s, rest], -1)

    def forward(ctx: Any, x: Tensor) -> Tensor:
        return turned(x, 1.0)

    def backward(ctx: Any, g: Tensor) -> Any:
        dx = turned(g, 1.0 if fault == "same rotation" else -1.0)
        if fault == "rest lost":
            dx[..., 6:] = 0.0
        return (dx,)

    return forward, backward


def eager_rope(x: Tensor) -> Tensor:
    angle = torch.outer(torch.arange(x.shape[-2]), 10.0 ** -torch.arange(3)).to(x.dtype)
    c, s = angle.cos(), angle.sin()
    a, b, rest = x[..., 0:3], x[..., 3:6], x[..., 6:]
    return torch.cat([a * c - b * s, b * c + a * s, rest], -1)


IGNORED = -100


def cross_entropy(fault: str) -> Passes:
    """Chunked cross entropy with ignored rows and smoothing; backward scales a gradient that forward stored."""

    def forward(ctx: Any, x: Tensor, target: Tensor) -> Tensor:
        valid = target != IGNORED
        count = len(x) if fault == "mean over all" else int(valid.sum())
        gradient, loss = torch.zeros_like(x), torch.zeros((), dtype=torch.float32)
        for part in tiles(len(x), 4):
            wide, hot = cast(x[part]), target[part].clamp(min=0)
            lse = torch.logsumexp(wide, -1, keepdim=True)
            soft = torch.full_like(wide, 0.1 / x.shape[1]).scatter_add_(1, hot[:, None], torch.full((len(hot), 1), 0.9))
            loss += ((lse - wide) * soft * valid[part, None]).sum() / int(valid.sum())
            soft = F.one_hot(hot, x.shape[1]).float() if fault == "smoothing missing" else soft
            gradient[part] = ((torch.exp(wide - lse) - soft) * valid[part, None] / count).to(x.dtype)
        ctx.gradient = gradient
        return loss.to(x.dtype)

    def backward(ctx: Any, g: Tensor) -> Any:
        return ctx.gradient.data.mul_(g), None

    return forward, backward


def eager_cross_entropy(x: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(x, target, ignore_index=IGNORED, label_smoothing=0.1)


def divergence(fault: str) -> Passes:
    """The generalised Jensen-Shannon divergence of log-probabilities; the gradient is made in forward."""
    beta = 0.3

    def forward(ctx: Any, x: Tensor, target: Tensor) -> Tensor:
        p, q = torch.exp(cast(x)), torch.exp(cast(target))
        log_m = torch.log(beta * p + (1.0 - beta) * q)
        loss = (beta * p * (cast(x) - log_m) + (1.0 - beta) * q * (cast(target) - log_m)).sum() / len(x)
        if fault == "extra term":
            ctx.gradient = (beta * p * (cast(x) - log_m + 1.0) / len(x)).to(x.dtype)
        else:
            ctx.gradient = (beta * p * (cast(x) - log_m) / len(x)).to(x.dtype)
        return loss.to(x.dtype)

    def backward(ctx: Any, g: Tensor) -> Any:
        return ctx.gradient.mul_(g), None

    return forward, backward


def eager_divergence(x: Tensor, target: Tensor) -> Tensor:
    p, q = torch.exp(x), torch.exp(target)
    log_m = torch.log(0.3 * p + 0.7 * q)
    return (0.3 * p * (x - log_m) + 0.7 * q * (target - log_m)).sum() / len(x)


def embedding_bag(fault: str) -> Passes:
    """Weighted sums of rows of a table; the gradient of the table by atomic additions in float32."""

    def forward(ctx: Any, table: Tensor, weight: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(table, weight, index)
        return (cast(table)[index] * cast(weight)[..., None]).sum(1).to(table.dtype)

    def backward(ctx: Any, g: Tensor) -> Any:
        table, weight, index = ctx.saved_tensors
        dt, terms = torch.zeros(table.shape), cast(g)[:, None] * cast(weight)[..., None]
        if fault == "overwritten":
            dt[index.flatten()] = terms.flatten(0, 1)
        else:
            dt.index_add_(0, index.flatten(), terms.flatten(0, 1))
        dw = (cast(g)[:, None] * cast(table)[index]).sum(-1)
        return dt.to(table.dtype), dw.to(weight.dtype), None

    return forward, backward


def segment_mean(fault: str) -> Passes:
    """Means of rows by segment."""

    def forward(ctx: Any, x: Tensor, segment: Tensor) -> Tensor:
        ctx.segment, ctx.count = segment, torch.bincount(segment)
        return (follow(x).new_zeros(4, x.shape[1]).index_add_(0, segment, follow(x)) / ctx.count[:, None]).to(x.dtype)

    def backward(ctx: Any, g: Tensor) -> Any:
        count = ctx.count.clone()
        if fault == "count of the neighbour":
            count = count.roll(1)
        return (follow(g) / count[:, None])[ctx.segment].to(g.dtype), None

    return forward, backward


def eager_segment_mean(x: Tensor, segment: Tensor) -> Tensor:
    return x.new_zeros(4, x.shape[1]).index_add(0, segment, x) / torch.bincount(segment)[:, None]


def gating(fault: str) -> Passes:
    """The three largest softmax probabilities of each row, normalised to sum one."""

    def forward(ctx: Any, x: Tensor) -> Tensor:
        best, place = cast(x).topk(3, -1)
        y = torch.softmax(best, -1)
        ctx.save_for_backward(y, place)
        ctx.shape = x.shape
        return y.to(x.dtype)

    def backward(ctx: Any, g: Tensor) -> Any:
        y, place = ctx.saved_tensors
        inner = (y * cast(g)).sum(-1, keepdim=True)
        inner = inner * (0.0 if fault == "norm as a constant" else 1.0)
        return (torch.zeros(ctx.shape).scatter_(-1, place, y * (cast(g) - inner)).to(g.dtype),)

    return forward, backward


def residual_rms_norm(fault: str) -> Passes:
    """x + r and its root-mean-square norm: two outputs."""

    def forward(ctx: Any, x: Tensor, r: Tensor, w: Tensor) -> Any:
        s = (cast(x) + cast(r)).to(x.dtype)
        rstd = torch.rsqrt(cast(s).square().mean(-1, keepdim=True) + 1e-6)
        ctx.save_for_backward(s, w, rstd)
        return (cast(s) * rstd * cast(w)).to(x.dtype), s

    def backward(ctx: Any, g: Tensor, gs: Tensor) -> Any:
        s, w, rstd = ctx.saved_tensors
        normed, wg = cast(s) * rstd, cast(g) * cast(w)
        dx = rstd * (wg - normed * (wg * normed).mean(-1, keepdim=True))
        dx = dx if fault == "second output lost" else dx + cast(gs)
        dw = (cast(g) * normed).sum(0)
        return dx.to(s.dtype), dx.to(s.dtype), dw.to(w.dtype)

    return forward, backward


def eager_residual_rms_norm(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    s = x + r
    return s * torch.rsqrt(s.square().mean(-1, keepdim=True) + 1e-6) * w, s


def cumulative_sum(fault: str) -> Passes:
    """The running sum in tiles with a carry."""

    def forward(ctx: Any, x: Tensor) -> Tensor:
        carry, out = torch.zeros(len(x), 1), []
        for part in tiles(x.shape[1], 6):
            out.append(carry + cast(x[:, part]).cumsum(1))
            carry = out[-1][:, -1:]
        return torch.cat(out, 1).to(x.dtype)

    def backward(ctx: Any, g: Tensor) -> Any:
        dx = cast(g).flip(1).cumsum(1).flip(1)
        if fault == "exclusive":
            dx = dx - cast(g)
        if fault == "carry lost":
            dx[:, :6] = cast(g[:, :6]).flip(1).cumsum(1).flip(1)
        return (dx.to(g.dtype),)

    return forward, backward


def hadamard(fault: str) -> Passes:
    """The Walsh-Hadamard transform, with butterflies that are rounded at every stage."""

    def transformed(x: Tensor, scale: float) -> Tensor:
        width = 1
        while width < x.shape[-1]:
            grid = x.view(*x.shape[:-1], -1, 2, width)
            x = torch.stack([grid[..., 0, :] + grid[..., 1, :], grid[..., 0, :] - grid[..., 1, :]], -2).view(x.shape)
            width *= 2
        return x * scale

    def forward(ctx: Any, x: Tensor) -> Tensor:
        return transformed(x, x.shape[-1] ** -0.5)

    def backward(ctx: Any, g: Tensor) -> Any:
        return (transformed(g.contiguous(), 1.0 if fault == "missing scale" else g.shape[-1] ** -0.5),)

    return forward, backward


def eager_hadamard(x: Tensor) -> Tensor:
    matrix = torch.ones(1, 1, dtype=x.dtype)
    while len(matrix) < x.shape[-1]:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return x @ matrix * x.shape[-1] ** -0.5


def dynamic_tanh(fault: str) -> Passes:
    """tanh(α x) w + b with one α for all."""

    def forward(ctx: Any, x: Tensor, alpha: Tensor, w: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(x, alpha, w)
        return (torch.tanh(cast(alpha) * cast(x)) * cast(w) + cast(b)).to(x.dtype)

    def backward(ctx: Any, g: Tensor) -> Any:
        x, alpha, w = ctx.saved_tensors
        t = torch.tanh(cast(alpha) * cast(x))
        inner = cast(g) * cast(w) * (1.0 - t * t)
        da = (inner * cast(x)).sum() if fault != "last row of alpha" else (inner * cast(x))[:-1].sum()
        dx, dw = inner * cast(alpha), (cast(g) * t).sum(0)
        return dx.to(x.dtype), da.to(x.dtype).view(alpha.shape), dw.to(w.dtype), cast(g).sum(0).to(w.dtype)

    return forward, backward


def packed_geglu(fault: str) -> Passes:
    """gelu(a) b with both halves in one tensor, tanh by its approximation."""

    def halves(x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return F.gelu(a, approximate="tanh") * b

    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return halves(refuse(x)).to(x.dtype)

    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        (dx,) = differentiated(halves, (refuse(x),), (g,))
        if fault == "swapped halves":
            dx = dx.roll(dx.shape[-1] // 2, -1)
        if fault == "lost tail":
            dx[..., -3:] = 0.0
        return (dx.to(x.dtype),)

    return forward, backward


def total_variation(fault: str) -> Passes:
    """Half the mean absolute difference of two distributions, by rows."""

    def forward(ctx: Any, p: Tensor, q: Tensor) -> Tensor:
        ctx.save_for_backward(torch.sign(cast(p) - cast(q)))
        return (0.5 * (cast(p) - cast(q)).abs().sum(-1)).to(p.dtype)

    def backward(ctx: Any, g: Tensor) -> Any:
        half = 0.5 * cast(g)[:, None] * ctx.saved_tensors[0] * (2.0 if fault == "missing half" else 1.0)
        return half.to(g.dtype), None

    return forward, backward


def normalised(fault: str) -> Passes:
    """x / |x| by rows, and its scale."""

    def forward(ctx: Any, x: Tensor, scale: Tensor) -> Tensor:
        r = torch.rsqrt(follow(x).square().sum(-1, keepdim=True) + 1e-12)
        ctx.save_for_backward(x, scale, r)
        return (follow(x) * r * follow(scale)).to(x.dtype)

    def backward(ctx: Any, g: Tensor) -> Any:
        x, scale, r = ctx.saved_tensors
        y, wg = follow(x) * r, follow(g) * follow(scale)
        inner = 0.0 if fault == "projection missing" else y * (wg * y).sum(-1, keepdim=True)
        return (r * (wg - inner)).to(x.dtype), (follow(g) * y).sum(0).to(scale.dtype)

    return forward, backward


def contrastive(fault: str) -> Passes:
    """The InfoNCE loss of two sets of vectors, one value for each row; the matrix is computed again in backward."""

    def loss(a: Tensor, b: Tensor) -> Tensor:
        s = a @ b.t() / 2.0
        return torch.logsumexp(s, -1) - s.diagonal()

    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return loss(cast(a), cast(b)).to(a.dtype)

    def backward(ctx: Any, g: Tensor) -> Any:
        a, b = map(cast, ctx.saved_tensors)
        p = torch.softmax(a @ b.t() / 2.0, -1)
        p = p if fault == "positive pair lost" else p - torch.eye(len(a))
        ds = p * cast(g)[:, None] / 2.0
        return (ds @ b).to(g.dtype), (ds.t() @ a).to(g.dtype)

    return forward, backward


def row_maximum(fault: str) -> Passes:
    """The largest element of each row, with the place saved."""

    def forward(ctx: Any, x: Tensor) -> Tensor:
        best, ctx.place = cast(x).max(-1)
        ctx.shape = x.shape
        return best.to(x.dtype)

    def backward(ctx: Any, g: Tensor) -> Any:
        place = (ctx.place + (fault == "next element")) % ctx.shape[-1]
        return (torch.zeros(ctx.shape, dtype=g.dtype).scatter_(-1, place[:, None], g[:, None]),)

    return forward, backward


def _segments(draw: Draw) -> Any:
    return draw.normal(13, 6), torch.tensor([0, 0, 1, 1, 1, 1, 2, 3, 3, 3, 3, 3, 2])


def _targets(draw: Draw) -> Any:
    return draw.normal(9, 17), torch.tensor([3, IGNORED, 0, 16, 5, 5, IGNORED, 9, 2])


def _bag(draw: Draw) -> Any:
    return draw.normal(8, 5), draw.normal(6, 3), torch.randint(8, (6, 3), generator=torch.Generator().manual_seed(0))


def _probabilities(draw: Draw) -> Any:
    p, q = (draw.log_probabilities(6, 14).exp() for _ in range(2))
    return p.requires_grad_(), q


def _mask(draw: Draw) -> Any:
    hidden = torch.zeros(7, 19).masked_fill(_hash(7 * 19, 5).view(7, 19) < 0.25, -math.inf)
    return draw.normal(7, 19), draw.placed(hidden)


ROWS = {
    "masked_softmax": Emulated(
        masked_softmax, ("missing term", "missing scale"), lambda x, m: torch.softmax(x * 0.5 + m, -1), _mask
    ),
    "dropout": Emulated(
        dropout, ("other seed", "missing scale"), eager_dropout, lambda d: (d.normal(9, 14), d.normal(9, 14), 7)
    ),
    "layer_norm": Emulated(
        layer_norm,
        ("missing mean", "lost buffer", "dropped bias"),
        lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b),
        lambda d: (d.normal(21, 18), d.weights(18), d.normal(18)),
    ),
    "group_norm": Emulated(
        group_norm,
        ("wrong count", "last channel lost"),
        lambda x, w, b: F.group_norm(x, 3, w, b),
        lambda d: (d.normal(4, 6, 7), d.weights(6), d.normal(6)),
    ),
    "rope": Emulated(rope, ("same rotation", "rest lost"), eager_rope, lambda d: (d.normal(2, 9, 8),)),
    "cross_entropy": Emulated(cross_entropy, ("mean over all", "smoothing missing"), eager_cross_entropy, _targets),
    "divergence": Emulated(
        divergence,
        ("extra term",),
        eager_divergence,
        lambda d: (d.log_probabilities(6, 15).requires_grad_(), d.log_probabilities(6, 15)),
    ),
    "embedding_bag": Emulated(embedding_bag, ("overwritten",), lambda t, w, i: (t[i] * w[..., None]).sum(1), _bag),
    "segment_mean": Emulated(segment_mean, ("count of the neighbour",), eager_segment_mean, _segments),
    "gating": Emulated(
        gating, ("norm as a constant",), lambda x: torch.softmax(x.topk(3, -1).values, -1), lambda d: (d.normal(11, 8),)
    ),
    "residual_rms_norm": Emulated(
        residual_rms_norm,
        ("second output lost",),
        eager_residual_rms_norm,
        lambda d: (d.normal(7, 18), d.normal(7, 18), d.weights(18)),
    ),
    "cumulative_sum": Emulated(
        cumulative_sum, ("exclusive", "carry lost"), lambda x: x.cumsum(1), lambda d: (d.normal(5, 20),)
    ),
    "hadamard": Emulated(hadamard, ("missing scale",), eager_hadamard, lambda d: (d.normal(6, 16),)),
    "dynamic_tanh": Emulated(
        dynamic_tanh,
        ("last row of alpha",),
        lambda x, a, w, b: torch.tanh(a * x) * w + b,
        lambda d: (d.normal(8, 12), d.placed(torch.tensor([0.7])).requires_grad_(), d.weights(12), d.normal(12)),
    ),
    "packed_geglu": Emulated(
        packed_geglu,
        ("swapped halves", "lost tail"),
        lambda x: F.gelu(x.chunk(2, -1)[0], approximate="tanh") * x.chunk(2, -1)[1],
        lambda d: (d.normal(5, 26),),
    ),
    "total_variation": Emulated(
        total_variation, ("missing half",), lambda p, q: 0.5 * (p - q).abs().sum(-1), _probabilities
    ),
    "normalised": Emulated(
        normalised,
        ("projection missing",),
        lambda x, s: F.normalize(x, dim=-1, eps=1e-6) * s,
        lambda d: (d.normal(6, 13), d.weights(13)),
    ),
    "contrastive": Emulated(
        contrastive,
        ("positive pair lost",),
        lambda a, b: torch.logsumexp(a @ b.t() / 2.0, -1) - (a @ b.t() / 2.0).diagonal(),
        lambda d: (d.normal(8, 6), d.normal(8, 6)),
    ),
    "row_maximum": Emulated(row_maximum, ("next element",), lambda x: x.amax(-1), lambda d: (d.normal(9, 11),)),
}
