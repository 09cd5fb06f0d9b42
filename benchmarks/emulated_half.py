"""Kernels that run in half precision alone: `--module benchmarks.emulated_half`.

Those of `benchmarks.emulated_functions`, and kernels as they are used to train language models: tiles, running maxima,
partial sums, one backward pass for several gradients, results that are rounded between two products. Nothing wider
shows what their slopes are: use `--dtypes bfloat16 float16`. Nothing is tuned on them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import emulated_functions
from benchmarks.emulated import Passes, half_only, tiles
from benchmarks.emulated_functions import kernel
from benchmarks.kernel_cases import Draw, Entry, Inputs
from tests.kernels.emulated import opaque_function


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v


def online_attention() -> Passes:
    """Attention over tiles of keys with a running maximum; probabilities are rounded before they meet the values."""

    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        wide, keys, values = (half_only(x) for x in (q, k, v))
        top = wide.new_full((*q.shape[:-1], 1), -torch.inf)
        total, out = torch.zeros_like(top), torch.zeros_like(wide)
        for part in tiles(k.shape[-2], 4):
            scores = wide @ keys[..., part, :].mT * q.shape[-1] ** -0.5
            new = torch.maximum(top, scores.amax(-1, keepdim=True))
            p, shrink = torch.exp(scores - new), torch.exp(top - new)
            total = total * shrink + p.sum(-1, keepdim=True)
            out = out * shrink + p.to(q.dtype).float() @ values[..., part, :]
            top = new
        result = (out / total).to(q.dtype)
        ctx.save_for_backward(q, k, v, result, top + total.log())
        return result

    def backward(ctx: Any, grad: Tensor) -> Any:
        q, k, v, out, lse = ctx.saved_tensors
        dtype, scale = q.dtype, q.shape[-1] ** -0.5
        q, k, v, g = (x.float() for x in (q, k, v, grad))
        p = torch.exp(q @ k.mT * scale - lse)
        delta = (g * out.float()).sum(-1, keepdim=True)
        ds = (p * (g @ v.mT - delta) * scale).to(dtype).float()
        dq, dk, dv = ds @ k, ds.mT @ q, p.to(dtype).float().mT @ g
        return dq.to(dtype), dk.to(dtype), dv.to(dtype)

    return forward, backward


def split_k_product() -> Passes:
    """x w, where four parts of the inner dimension are rounded before they are added up."""

    def split(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
        parts = [(a[:, part] @ b[part]).to(dtype).float() for part in tiles(a.shape[1], a.shape[1] // 4)]
        return torch.stack(parts).sum(0).to(dtype)

    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return split(half_only(x), half_only(w), x.dtype)

    def backward(ctx: Any, grad: Tensor) -> Any:
        x, w = ctx.saved_tensors
        g = grad.float()
        return split(g, w.float().mT, x.dtype), split(x.float().mT, g, w.dtype)

    return forward, backward


def one_shot_swiglu() -> Passes:
    """silu(a) b for the two halves of x; backward writes the gradient over x."""

    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.x = x.detach()
        a, b = half_only(x).chunk(2, -1)
        return (F.silu(a) * b).to(x.dtype)

    def backward(ctx: Any, grad: Tensor) -> Any:
        a, b = ctx.x.float().chunk(2, -1)
        g, s = grad.float(), torch.sigmoid(a)
        ctx.x.data.copy_(torch.cat([g * b * s * (1.0 + a * (1.0 - s)), g * a * s], -1))
        return ctx.x

    return forward, backward


def dropped_norm(x: Tensor, residual: Tensor, mask: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x * mask + residual, w.shape, w, b)


def smoothed_rows(x: Tensor, target: Tensor) -> Tensor:
    """Cross entropy of every row with smoothed labels and the square of the log-sum-exp."""
    lse = x.logsumexp(-1)
    loss = lse - 0.9 * x.gather(-1, target[:, None])[:, 0] - 0.1 * x.mean(-1)
    return loss + 1e-2 * lse * lse


def gated_scan(x: Tensor, gate: Tensor) -> Tensor:
    """h_t = sigmoid(gate_t) h_{t-1} + x_t along the first axis."""
    state, states = torch.zeros_like(x[0]), []
    for row, decay in zip(x, gate.sigmoid(), strict=True):
        state = decay * state + row
        states.append(state)
    return torch.stack(states)


def selective_scan(x: Tensor, delta: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """The state space recurrence whose step, input and output matrices depend on the position."""
    step, state, rows = F.softplus(delta), x.new_zeros(x.shape[1], a.shape[1]), []
    for t in range(x.shape[0]):
        state = torch.exp(-step[t][:, None] * a.exp()) * state + (step[t] * x[t])[:, None] * b[t]
        rows.append(state @ c[t])
    return torch.stack(rows)


def delta_rule(q: Tensor, k: Tensor, v: Tensor, beta: Tensor) -> Tensor:
    """Linear attention whose state forgets what it predicts of the value."""
    k, state, rows = F.normalize(k, dim=-1), q.new_zeros(k.shape[1], v.shape[1]), []
    for t in range(q.shape[0]):
        state = state + torch.outer(k[t], torch.sigmoid(beta[t]) * (v[t] - k[t] @ state))
        rows.append(q[t] @ state)
    return torch.stack(rows)


def quantised_product(x: Tensor, scale: Tensor, codes: Tensor) -> Tensor:
    """x (codes · scale)ᵀ with whole numbers as weights and a scale for each row of them."""
    return x @ (codes.to(x.dtype) * scale[:, None]).mT


def block_scaled_product(x: Tensor, scales: Tensor, codes: Tensor) -> Tensor:
    """The same with a scale for every block of 16 weights, as for numbers of eight bits."""
    return x @ (codes.to(x.dtype) * scales.repeat_interleave(16, -1)).mT


def block_sparse_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention to the own block of four and to the first one."""
    place = torch.arange(q.shape[-2], device=q.device) // 4
    seen = (place[:, None] == place) | (place == 0)
    scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~seen, -torch.inf)
    return scores.softmax(-1) @ v


def distillation(student: Tensor, teacher: Tensor) -> Tensor:
    """KL divergence of softened distributions, the mean over the rows."""
    p, q = (teacher / 2.0).softmax(-1), (student / 2.0).log_softmax(-1)
    return 4.0 * (p * (p.clamp_min(1e-9).log() - q)).sum(-1).mean()


def jensen_shannon(student: Tensor, teacher: Tensor) -> Tensor:
    p, q = student.softmax(-1), teacher.softmax(-1)
    mean = (0.5 * (p + q)).log()
    return 0.5 * (p * (student.log_softmax(-1) - mean) + q * (teacher.log_softmax(-1) - mean)).sum(-1)


def contrastive_loss(a: Tensor, b: Tensor) -> Tensor:
    scores = F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).mT / 0.2
    return F.cross_entropy(scores, torch.arange(len(a), device=a.device))


def query_key_norm(x: Tensor, w: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    x = F.rms_norm(x, w.shape, w, 1e-6)
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


def bag(table: Tensor, indices: Tensor) -> Tensor:
    """The means of five rows of a table."""
    return table[indices].mean(1)


Case = tuple[Callable[..., Any], Callable[[Draw], Inputs]]

FUNCTIONS: dict[str, Case] = {
    **{name: (function, build) for name, (function, _, build) in emulated_functions.FUNCTIONS.items()},
    "dropped_norm": (
        dropped_norm,
        lambda d: (
            d.normal(14, 32),
            d.normal(14, 32),
            d.placed(2.0 * (d.constant(14, 32).cpu().float() > 0.0)),
            d.weights(32),
            d.normal(32),
        ),
    ),
    "group_norm": (
        lambda x, w, b: F.group_norm(x, 4, w, b),
        lambda d: (d.normal(3, 8, 10), d.weights(8), d.normal(8)),
    ),
    "query_key_norm": (query_key_norm, lambda d: (d.normal(2, 10, 16), d.weights(16), *d.angles(10, 16))),
    "smoothed_rows": (smoothed_rows, lambda d: (d.normal(20, 36), d.targets(20, 36))),
    "smoothed_loss": (
        lambda x, target: smoothed_rows(x, target).mean(),
        lambda d: (d.normal(20, 36), d.targets(20, 36)),
    ),
    "embedding_bag": (bag, lambda d: (d.normal(20, 12), d.targets(75, 20).reshape(15, 5))),
    "gated_scan": (gated_scan, lambda d: (d.normal(24, 16), d.normal(24, 16))),
    "cumulative_sum": (lambda x: x.cumsum(-1), lambda d: (d.normal(10, 48),)),
    "selective_scan": (
        selective_scan,
        lambda d: (d.normal(12, 6), d.normal(12, 6), d.normal(6, 4), d.normal(12, 4), d.normal(12, 4)),
    ),
    "delta_rule": (delta_rule, lambda d: (d.normal(12, 8), d.normal(12, 8), d.normal(12, 6), d.normal(12))),
    "quantised_product": (
        quantised_product,
        lambda d: (d.normal(12, 32), d.weights(10), d.targets(320, 15).reshape(10, 32) - 7),
    ),
    "block_scaled_product": (
        block_scaled_product,
        lambda d: (d.normal(12, 48), d.weights(10, 3), d.targets(480, 15).reshape(10, 48) - 7),
    ),
    "block_sparse_attention": (block_sparse_attention, lambda d: tuple(d.normal(2, 16, 8) for _ in range(3))),
    "distillation": (distillation, lambda d: (d.normal(16, 40), d.constant(16, 40))),
    "jensen_shannon": (jensen_shannon, lambda d: (d.normal(16, 40), d.constant(16, 40))),
    "dynamic_tanh": (
        lambda x, alpha, w, b: torch.tanh(alpha * x) * w + b,
        lambda d: (d.normal(12, 40), d.weights(1), d.weights(40), d.normal(40)),
    ),
    "contrastive_loss": (contrastive_loss, lambda d: (d.normal(16, 24), d.normal(16, 24))),
    "linear_gelu": (
        lambda x, w, b: F.gelu(x @ w + b, approximate="tanh"),
        lambda d: (d.normal(10, 24), d.normal(24, 14), d.normal(14)),
    ),
    "wide_rms_norm": (
        lambda x, w: F.rms_norm(x, w.shape, w, 1e-6),
        lambda d: (d.normal(48, 192), d.weights(192)),
    ),
}

ENTRIES = (
    Entry(
        "online_attention",
        opaque_function(*online_attention()),
        attention,
        lambda d: tuple(d.normal(2, 14, 8) for _ in range(3)),
    ),
    Entry(
        "split_k_product",
        opaque_function(*split_k_product()),
        torch.matmul,
        lambda d: (d.normal(12, 64), d.normal(64, 10)),
    ),
    Entry(
        "one_shot_swiglu",
        opaque_function(*one_shot_swiglu()),
        lambda x: F.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1],
        lambda d: (d.normal(9, 56),),
    ),
    *(
        Entry(name, opaque_function(*kernel(function, half_only)), function, build)
        for name, (function, build) in FUNCTIONS.items()
    ),
)
