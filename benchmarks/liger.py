"""The kernels of Liger with small inputs, each beside the same function in plain torch."""

from __future__ import annotations

import torch
from liger_kernel.transformers import functional as liger
from torch import Tensor
from torch.nn import functional as F

from benchmarks.kernel_cases import Draw, Entry

EPS = 1e-6


def _rms_norm(x: Tensor, w: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + EPS) * w


def _added_rms_norm(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return _rms_norm(x + r, w), x + r


def _poly_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    parts = [x**power * torch.rsqrt((x ** (2 * power)).mean(-1, keepdim=True) + EPS) for power in (3, 2, 1)]
    return w[0] * parts[0] + w[1] * parts[1] + w[2] * parts[2] + b


def _modulated(x: Tensor, w: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return (1.0 + scale) * _rms_norm(x, w) + shift


def _turned(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return x * cosine + torch.cat([-x[..., half:], x[..., :half]], -1) * sine


def _rope(q: Tensor, k: Tensor, cosine: Tensor, sine: Tensor) -> tuple[Tensor, Tensor]:
    return _turned(q, cosine[:, None], sine[:, None]), _turned(k, cosine[:, None], sine[:, None])


SECTIONS = [2, 3, 3]


def _mrope(q: Tensor, k: Tensor, cosine: Tensor, sine: Tensor) -> tuple[Tensor, Tensor]:
    def chosen(table: Tensor) -> Tensor:
        pieces = table.split(SECTIONS * 2, dim=-1)
        return torch.cat([piece[number % 3] for number, piece in enumerate(pieces)], -1)

    return _rope(q, k, chosen(cosine), chosen(sine))


def _sparsemax(x: Tensor) -> Tensor:
    ordered = x.sort(-1, descending=True).values
    count = torch.arange(1, x.shape[-1] + 1, device=x.device, dtype=x.dtype)
    excess = ordered.cumsum(-1) - 1.0
    support = (ordered * count > excess).sum(-1, keepdim=True)
    return torch.relu(x - excess.gather(-1, support - 1) / support)


def _jsd(x: Tensor, target: Tensor) -> Tensor:
    mixed = torch.log(0.5 * (x.exp() + target.exp()))
    return 0.5 * (target.exp() * (target - mixed) + x.exp() * (x - mixed)).sum() / len(x)


def _linear_jsd(x: Tensor, w: Tensor, teacher: Tensor, teacher_w: Tensor) -> Tensor:
    return _jsd(torch.log_softmax(x @ w.t(), -1), torch.log_softmax(teacher @ teacher_w.t(), -1))


def _linear_kl_div(x: Tensor, w: Tensor, target: Tensor) -> Tensor:
    return F.kl_div(torch.log_softmax(x @ w.t(), -1), target, reduction="batchmean")


def _multi_token_attention(scores: Tensor, w: Tensor, b: Tensor) -> Tensor:
    past = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    attention = torch.softmax(scores.masked_fill(~past, -1e9 if scores.dtype != torch.float16 else -6e4), -1)
    return F.conv2d(attention, w, b, padding=1).masked_fill(~past, 0.0)


def _neighbourhood_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    place = torch.arange(q.shape[-2], device=q.device)
    near = (place[:, None] - place).abs() <= 1
    scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~near, float("-inf"))
    return torch.softmax(scores, -1) @ v


def _attention_residuals(v: Tensor, query: Tensor, w: Tensor) -> Tensor:
    weight = torch.softmax((_rms_norm(v, w) * query).sum(-1, keepdim=True), 0)
    return (weight * v).sum(0)


def _tvd(p: Tensor, q: Tensor) -> Tensor:
    return 0.5 * (p - q).abs().mean()


def _streams_mixed(x: Tensor, f: Tensor, post: Tensor, res: Tensor) -> Tensor:
    mixed = res.to(torch.promote_types(x.dtype, res.dtype)) @ x.to(torch.promote_types(x.dtype, res.dtype))
    return (mixed + post[..., None] * f[..., None, :]).to(x.dtype)


def _streams_joined(x: Tensor, pre: Tensor) -> Tensor:
    return (pre[..., None] * x).sum(-2).to(x.dtype)


def _probabilities(draw: Draw, *shape: int) -> Tensor:
    return draw.log_probabilities(*shape).exp()


ENTRIES = (
    Entry(
        "rms_norm",
        lambda x, w: liger.liger_rms_norm(x, w, EPS, in_place=False),
        _rms_norm,
        lambda d: (d.normal(6, 40), d.weights(40)),
    ),
    Entry(
        "rms_norm(in_place=True)",
        lambda x, w: liger.liger_rms_norm(x, w, EPS),
        _rms_norm,
        lambda d: (d.normal(6, 40), d.weights(40)),
    ),
    Entry(
        "layer_norm",
        lambda x, w, b: liger.liger_layer_norm(x, w, b, 1e-5),
        lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b),
        lambda d: (d.normal(6, 40), d.weights(40), d.normal(40)),
    ),
    Entry("swiglu", liger.liger_swiglu, lambda a, b: F.silu(a) * b, lambda d: (d.normal(6, 40), d.normal(6, 40))),
    Entry(
        "geglu",
        liger.liger_geglu,
        lambda a, b: F.gelu(a, approximate="tanh") * b,
        lambda d: (d.normal(6, 40), d.normal(6, 40)),
    ),
    Entry("cross_entropy", liger.liger_cross_entropy, F.cross_entropy, lambda d: (d.normal(6, 50), d.targets(6, 50))),
    Entry(
        "fused_linear_cross_entropy",
        liger.liger_fused_linear_cross_entropy,
        lambda x, w, target: F.cross_entropy(x @ w.t(), target),
        lambda d: (d.normal(6, 16), d.normal(50, 16), d.targets(6, 50)),
    ),
    Entry(
        "rope",
        liger.liger_rope,
        _rope,
        lambda d: (d.normal(2, 4, 5, 16), d.normal(2, 2, 5, 16), *d.angles(1, 5, 16)),
    ),
    Entry(
        "qwen2vl_mrope",
        lambda q, k, cosine, sine: liger.liger_qwen2vl_mrope(q, k, cosine, sine, SECTIONS),
        _mrope,
        lambda d: (d.normal(2, 4, 5, 16), d.normal(2, 2, 5, 16), *d.angles(3, 2, 5, 16)),
    ),
    Entry("softmax", liger.liger_softmax, lambda x: torch.softmax(x, -1), lambda d: (d.normal(6, 40),)),
    Entry("sparsemax", liger.liger_sparsemax, _sparsemax, lambda d: (d.normal(6, 20),)),
    Entry(
        "jsd",
        liger.liger_jsd,
        _jsd,
        lambda d: (d.log_probabilities(6, 40).requires_grad_(), d.log_probabilities(6, 40)),
    ),
    Entry(
        "kl_div",
        liger.liger_kl_div,
        lambda x, target: F.kl_div(x, target, reduction="mean"),
        lambda d: (d.log_probabilities(6, 40).requires_grad_(), _probabilities(d, 6, 40)),
    ),
    Entry(
        "tvd", liger.liger_tvd, _tvd, lambda d: (_probabilities(d, 6, 40).requires_grad_(), _probabilities(d, 6, 40))
    ),
    Entry(
        "group_norm",
        lambda x, w, b: liger.liger_group_norm(x, w, b, 6, 3, 1e-5),
        lambda x, w, b: F.group_norm(x, 3, w, b),
        lambda d: (d.normal(2, 6, 15), d.weights(6), d.normal(6)),
    ),
    Entry(
        "dyt",
        liger.liger_dyt,
        lambda x, alpha, gamma, beta: gamma * torch.tanh(alpha * x) + beta,
        lambda d: (d.normal(6, 40), d.weights(1), d.weights(40), d.normal(40)),
    ),
    Entry(
        "multi_token_attention",
        lambda scores, w, b: liger.liger_multi_token_attention(scores, w, b, padding=1),
        _multi_token_attention,
        lambda d: (d.normal(1, 2, 6, 6), d.normal(3, 2, 3, 3), d.normal(3)),
    ),
    Entry(
        "fused_neighborhood_attention",
        lambda q, k, v: liger.liger_fused_neighborhood_attention(q, k, v, kernel_size=3),
        _neighbourhood_attention,
        lambda d: (d.normal(1, 2, 6, 16), d.normal(1, 2, 6, 16), d.normal(1, 2, 6, 16)),
    ),
    Entry(
        "fused_add_rms_norm",
        lambda x, r, w: liger.liger_fused_add_rms_norm(x, r, w, EPS, in_place=False),
        _added_rms_norm,
        lambda d: (d.normal(6, 40), d.normal(6, 40), d.weights(40)),
    ),
    Entry(
        "fused_add_rms_norm(in_place=True)",
        lambda x, r, w: liger.liger_fused_add_rms_norm(x, r, w, EPS),
        _added_rms_norm,
        lambda d: (d.normal(6, 40), d.normal(6, 40), d.weights(40)),
    ),
    Entry(
        "poly_norm",
        lambda x, w, b: liger.liger_poly_norm(x, w, b, in_place=False),
        _poly_norm,
        lambda d: (d.normal(6, 40), d.weights(3), d.normal()),
    ),
    Entry(
        "modulated_rms_norm",
        lambda x, w, scale, shift: liger.liger_modulated_rms_norm(x, w, scale, shift, EPS, in_place=False),
        _modulated,
        lambda d: (d.normal(6, 40), d.weights(40), d.normal(40), d.normal(40)),
    ),
    Entry("relu_squared", liger.liger_relu_squared, lambda x: torch.relu(x) ** 2, lambda d: (d.normal(6, 40),)),
    Entry(
        "fused_linear_jsd",
        liger.liger_fused_linear_jsd,
        _linear_jsd,
        lambda d: (d.normal(6, 16), d.normal(50, 16), d.constant(6, 16), d.constant(50, 16)),
    ),
    Entry(
        "fused_linear_kl_div",
        liger.liger_fused_linear_kl_div,
        _linear_kl_div,
        lambda d: (d.normal(6, 16), d.normal(50, 16), _probabilities(d, 6, 50)),
    ),
    Entry(
        "attn_res",
        liger.liger_attn_res,
        _attention_residuals,
        lambda d: (d.normal(3, 2, 5, 16), d.normal(16), d.weights(16)),
    ),
    Entry(
        "mhc_pre",
        liger.liger_mhc_pre,
        _streams_joined,
        lambda d: (d.normal(5, 4, 16), d.normal(5, 4, dtype=torch.float32)),
    ),
    Entry(
        "mhc_post_res",
        liger.liger_mhc_post_res,
        _streams_mixed,
        lambda d: (
            d.normal(5, 4, 16),
            d.normal(5, 16),
            d.normal(5, 4, dtype=torch.float32),
            d.normal(5, 4, 4, dtype=torch.float32),
        ),
    ),
)
"""Liger's kernels that take small inputs."""
