"""Kernels that were not used to choose a threshold, right and with a fault in one of their tensors.

`python -m benchmarks.kernels --module benchmarks.reference_kernels --reference --comparison --device cpu`: the kernels
on which thresholds of the comparison with a reference were chosen are those of the tests.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.kernel_cases import Entry
from tests.reference_kernels import FAULTS, VALUE, Inputs, Kernel, Tensors, low, weights


def geglu(a: Tensor, b: Tensor) -> Tensor:
    return F.gelu(a, approximate="tanh") * b


def _geglu(a: Tensor, b: Tensor) -> Any:
    return low(F.gelu(a.float(), approximate="tanh") * b.float(), a), (a, b)


def _geglu_backward(saved: Tensors, dy: Tensor) -> Any:
    a, b = (t.float() for t in saved)
    c = math.sqrt(2.0 / math.pi)
    t = torch.tanh(c * (a + 0.044715 * a**3))
    slope = 0.5 * (1 + t) + 0.5 * a * (1 - t * t) * c * (1 + 3 * 0.044715 * a * a)
    return low(dy.float() * b * slope, dy), low(dy.float() * 0.5 * a * (1 + t), dy)


def log_softmax(x: Tensor) -> Tensor:
    return torch.log_softmax(x, -1)


def _log_softmax(x: Tensor) -> Any:
    y = low(x.float() - torch.logsumexp(x.float(), -1, keepdim=True), x)
    return y, (y,)


def _log_softmax_backward(saved: Tensors, dy: Tensor) -> Any:
    g = dy.float()
    return low(g - torch.exp(saved[0].float()) * g.sum(-1, keepdim=True), dy)


def normalise(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True)


def _normalise(x: Tensor) -> Any:
    inverse = torch.rsqrt(x.float().square().sum(-1, keepdim=True))
    return low(x.float() * inverse, x), (x, inverse)


def _normalise_backward(saved: Tensors, dy: Tensor) -> Any:
    x, inverse = saved
    unit = x.float() * inverse
    return low(inverse * (dy.float() - unit * (unit * dy.float()).sum(-1, keepdim=True)), x)


def add_rms_norm(x: Tensor, r: Tensor, w: Tensor) -> Any:
    total = x + r
    return F.rms_norm(total, (total.shape[-1],), w, 1e-5), total


def _add_rms_norm(x: Tensor, r: Tensor, w: Tensor) -> Any:
    total = low(x.float() + r.float(), x)
    rstd = torch.rsqrt(total.float().square().mean(-1, keepdim=True) + 1e-5)
    return (low(total.float() * rstd * w.float(), x), total), (total, w, rstd)


def _add_rms_norm_backward(saved: Tensors, dy: Tensor, dt: Tensor) -> Any:
    total, w, rstd = saved
    normal, g = total.float() * rstd, dy.float() * w.float()
    dx = low(rstd * (g - normal * (g * normal).mean(-1, keepdim=True)) + dt.float(), total)
    return dx, dx.clone(), low((dy.float() * normal).sum(0), w)


def kl_divergence(logp: Tensor, q: Tensor) -> Tensor:
    return F.kl_div(logp, q, reduction="batchmean")


def _kl_divergence(logp: Tensor, q: Tensor) -> Any:
    wide = q.float()
    return low((wide * (torch.log(wide) - logp.float())).sum() / len(q), q), (q,)


def _kl_divergence_backward(saved: Tensors, dy: Tensor) -> Any:
    return low(-saved[0].float() * (dy.float() / len(saved[0])), dy), None


def dynamic_tanh(x: Tensor, alpha: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.tanh(alpha * x) * w + b


def _dynamic_tanh(x: Tensor, alpha: Tensor, w: Tensor, b: Tensor) -> Any:
    t = torch.tanh(alpha.float() * x.float())
    return low(t * w.float() + b.float(), x), (x, alpha, w)


def _dynamic_tanh_backward(saved: Tensors, dy: Tensor) -> Any:
    x, alpha, w = saved
    g, t = dy.float(), torch.tanh(alpha.float() * x.float())
    inner = g * w.float() * (1 - t * t)
    parts = [(inner[i : i + 16] * x[i : i + 16].float()).sum() for i in range(0, len(x), 16)]
    dalpha = low(torch.stack(parts).sum().reshape(1), alpha)
    return low(inner * alpha.float(), x), dalpha, low((g * t).sum(0), w), low(g.sum(0), w)


def linear_relu(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.relu(F.linear(x, w, b))


def _linear_relu(x: Tensor, w: Tensor, b: Tensor) -> Any:
    y = low((x.float() @ w.float().mT + b.float()).clamp(min=0.0), x)
    return y, (x, w, y)


def _linear_relu_backward(saved: Tensors, dy: Tensor) -> Any:
    x, w, y = saved
    g = dy.float() * (y > 0)
    return low(g @ w.float(), x), low(g.mT @ x.float(), w), low(g.sum(0), w)


def mean_square(x: Tensor, y: Tensor) -> Tensor:
    return (x.float() - y.float()).square().mean()


def _mean_square(x: Tensor, y: Tensor) -> Any:
    d = x.float() - y.float()
    rows = d.square().sum(-1)
    return rows.sum() / d.numel(), (x, y)


def _mean_square_backward(saved: Tensors, dy: Tensor) -> Any:
    x, y = saved
    g = 2.0 * dy * (x.float() - y.float()) / x.numel()
    return low(g, x), low(-g, y)


def causal_conv(x: Tensor, w: Tensor) -> Tensor:
    return F.conv1d(F.pad(x, (w.shape[-1] - 1, 0)), w[:, None], groups=w.shape[0])


def _causal_conv(x: Tensor, w: Tensor) -> Any:
    padded = F.pad(x.float(), (w.shape[-1] - 1, 0))
    taps = [w[:, k, None].float() * padded[..., k : k + x.shape[-1]] for k in range(w.shape[-1])]
    return low(sum(taps), x), (x, w)  # type: ignore[arg-type]


def _causal_conv_backward(saved: Tensors, dy: Tensor) -> Any:
    x, w = saved
    length, width = x.shape[-1], w.shape[-1]
    ahead, behind = F.pad(dy.float(), (0, width - 1)), F.pad(x.float(), (width - 1, 0))
    dx = sum(w[:, k, None].float() * ahead[..., width - 1 - k : width - 1 - k + length] for k in range(width))
    dw = torch.stack([(dy.float() * behind[..., k : k + length]).sum((0, 2)) for k in range(width)], 1)
    return low(dx, x), low(dw, w)  # type: ignore[arg-type]


def scan(x: Tensor) -> Tensor:
    return x.cumsum(-1)


def _scan(x: Tensor) -> Any:
    blocks, carry = [], torch.zeros((*x.shape[:-1], 1))
    for part in x.float().split(16, -1):
        blocks.append(part.cumsum(-1) + carry)
        carry = blocks[-1][..., -1:]
    return low(torch.cat(blocks, -1), x), ()


def _scan_backward(saved: Tensors, dy: Tensor) -> Any:
    return low(dy.float().flip(-1).cumsum(-1).flip(-1), dy)


def embedding(table: Tensor, index: Tensor, scale: float) -> Tensor:
    return F.embedding(index, table) * scale


def _embedding(table: Tensor, index: Tensor, scale: float) -> Any:
    return low(table.float()[index] * scale, table), (table, index, scale)


def _embedding_backward(saved: Any, dy: Tensor) -> Any:
    table, index, scale = saved
    total = torch.zeros(table.shape).index_add_(0, index.reshape(-1), dy.float().reshape(-1, table.shape[-1]))
    return low(total * scale, table), None, None


def soft_cap(x: Tensor) -> Tensor:
    return 5.0 * torch.tanh(x / 5.0)


def _soft_cap(x: Tensor) -> Any:
    return low(5.0 * torch.tanh(x.float() / 5.0), x), (x,)


def _soft_cap_backward(saved: Tensors, dy: Tensor) -> Any:
    t = torch.tanh(saved[0].float() * 0.2)
    return low(dy.float() * (1 - t * t), dy)


def masked_softmax(x: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax(x.masked_fill(~mask, -torch.inf), -1)


def _masked_softmax(x: Tensor, mask: Tensor) -> Any:
    y = torch.softmax(x.float().masked_fill(~mask, -torch.inf), -1)
    return low(y, x), (y,)


def _masked_softmax_backward(saved: Tensors, dy: Tensor) -> Any:
    y, g = saved[0], dy.float()
    return low(y * g - y * (y * g).sum(-1, keepdim=True), dy), None


def layer_scale(x: Tensor, y: Tensor, gamma: Tensor) -> Tensor:
    return x + gamma * y


def _layer_scale(x: Tensor, y: Tensor, gamma: Tensor) -> Any:
    return low(torch.addcmul(x.float(), gamma.float(), y.float()), x), (y, gamma)


def _layer_scale_backward(saved: Tensors, dy: Tensor) -> Any:
    y, gamma = saved
    return dy.clone(), low(dy.float() * gamma.float(), y), low((dy.float() * y.float()).sum((0, 1)), gamma)


def scores(a: Tensor, b: Tensor) -> Tensor:
    return a @ b.mT


def _scores(a: Tensor, b: Tensor) -> Any:
    total = torch.zeros((*a.shape[:-1], b.shape[-2]))
    for left, right in zip(a.float().split(8, -1), b.float().split(8, -1), strict=True):
        total += left @ right.mT
    return low(total, a), (a, b)


def _scores_backward(saved: Tensors, dy: Tensor) -> Any:
    a, b = saved
    return low(dy.float() @ b.float(), a), low(dy.float().mT @ a.float(), b)


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def _attend(q: Tensor, k: Tensor, v: Tensor) -> Any:
    s = q.float() @ k.float().mT / math.sqrt(q.shape[-1])
    lse = torch.logsumexp(s, -1, keepdim=True)
    out = low(low(torch.exp(s - lse), q).float() @ v.float(), q)
    return out, (q, k, v, out, lse)


def _attend_backward(saved: Tensors, dy: Tensor) -> Any:
    q, k, v, out, lse = saved
    scale = 1 / math.sqrt(q.shape[-1])
    p = torch.exp(q.float() @ k.float().mT * scale - lse)
    delta = (dy.float() * out.float()).sum(-1, keepdim=True)
    ds = low(p * (dy.float() @ v.float().mT - delta), q).float() * scale
    return low(ds @ k.float(), q), low(ds.mT @ q.float(), k), low(low(p, q).float().mT @ dy.float(), v)


def batch_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.batch_norm(x, None, None, w, b, training=True)


def _batch_norm(x: Tensor, w: Tensor, b: Tensor) -> Any:
    xf = x.float()
    mean, rstd = xf.mean(0), torch.rsqrt(xf.var(0, unbiased=False) + 1e-5)
    return low((xf - mean) * rstd * w.float() + b.float(), x), (x, w, mean, rstd)


def _batch_norm_backward(saved: Tensors, dy: Tensor) -> Any:
    x, w, mean, rstd = saved
    g, normal = dy.float(), (x.float() - mean) * rstd
    dx = rstd * w.float() * (g - g.mean(0) - normal * (g * normal).mean(0))
    return low(dx, x), low((g * normal).sum(0), w), low(g.sum(0), w)


def quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def _quick_gelu(x: Tensor) -> Any:
    return low(x.float() * torch.sigmoid(1.702 * x.float()), x), (x,)


def _quick_gelu_backward(saved: Tensors, dy: Tensor) -> Any:
    x = saved[0].float()
    s = torch.sigmoid(1.702 * x)
    return low(dy.float() * (s + 1.702 * x * s * (1 - s)), dy)


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    return (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


def _masked_mean(x: Tensor, mask: Tensor) -> Any:
    count = mask.sum(1, keepdim=True)
    return low((x.float() * mask[..., None]).sum(1) / count, x), (mask, count)


def _masked_mean_backward(saved: Tensors, dy: Tensor) -> Any:
    mask, count = saved
    return low((dy.float() / count)[:, None] * mask[..., None], dy), None


def huber(x: Tensor, y: Tensor) -> Tensor:
    return F.smooth_l1_loss(x, y, reduction="none")


def _huber(x: Tensor, y: Tensor) -> Any:
    d = x.float() - y.float()
    return low(torch.where(d.abs() < 1, 0.5 * d * d, d.abs() - 0.5), x), (d,)


def _huber_backward(saved: Tensors, dy: Tensor) -> Any:
    g = dy.float() * saved[0].clamp(-1, 1)
    return low(g, dy), low(-g, dy)


def rounded_rms_norm(x: Tensor, w: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), w, 1e-6)


def _rounded_rms_norm(x: Tensor, w: Tensor) -> Any:
    """Rounds before the product with the weight, as many models do."""
    rstd = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)
    return low(x.float() * rstd, x) * w, (x, w, rstd)


def _rounded_rms_norm_backward(saved: Tensors, dy: Tensor) -> Any:
    x, w, rstd = saved
    normal, g = x.float() * rstd, (dy * w).float()
    dx = rstd * (g - normal * (g * normal).mean(-1, keepdim=True))
    return low(dx, x), low((dy.float() * normal).sum(0), w)


def log_sum_exp(x: Tensor) -> Tensor:
    return torch.logsumexp(x, -1)


def _log_sum_exp(x: Tensor) -> Any:
    lse = torch.logsumexp(x.float(), -1)
    return low(lse, x), (x, lse)


def _log_sum_exp_backward(saved: Tensors, dy: Tensor) -> Any:
    x, lse = saved
    return low(torch.exp(x.float() - lse[..., None]) * dy.float()[..., None], x)


def embedding_inputs() -> Inputs:
    return torch.randn(40, 24), torch.randint(40, (6, 15)), 4.9


def mask_inputs() -> Inputs:
    mask = torch.rand(5, 30, 30) < 0.7
    mask[..., 0] = True
    return torch.randn(5, 30, 30) * 3, mask


KERNELS = (
    Kernel("geglu", geglu, _geglu, _geglu_backward, lambda: (torch.randn(33, 50) * 2, torch.randn(33, 50)), (0, 1)),
    Kernel("log_softmax", log_softmax, _log_softmax, _log_softmax_backward, lambda: (torch.randn(9, 300) * 3,)),
    Kernel("normalise", normalise, _normalise, _normalise_backward, lambda: (torch.randn(17, 21) * torch.rand(17, 1),)),
    Kernel(
        "add_rms_norm",
        add_rms_norm,
        _add_rms_norm,
        _add_rms_norm_backward,
        lambda: (torch.randn(20, 96), torch.randn(20, 96), weights(96)),
        (0, 1, 2),
    ),
    Kernel(
        "kl_divergence",
        kl_divergence,
        _kl_divergence,
        _kl_divergence_backward,
        lambda: (
            torch.log_softmax(torch.randn(14, 40), -1).requires_grad_(),
            torch.softmax(torch.randn(14, 40), -1),
        ),
    ),
    Kernel(
        "dynamic_tanh",
        dynamic_tanh,
        _dynamic_tanh,
        _dynamic_tanh_backward,
        lambda: (torch.randn(128, 80), torch.tensor([0.7]), weights(80), torch.randn(80)),
        (0, 1, 2, 3),
    ),
    Kernel(
        "linear_relu",
        linear_relu,
        _linear_relu,
        _linear_relu_backward,
        lambda: (torch.randn(30, 64), torch.randn(40, 64) / 8, torch.randn(40)),
        (0, 1, 2),
    ),
    Kernel(
        "mean_square",
        mean_square,
        _mean_square,
        _mean_square_backward,
        lambda: (torch.randn(12, 70), torch.randn(12, 70)),
        (0, 1),
    ),
    Kernel(
        "causal_conv",
        causal_conv,
        _causal_conv,
        _causal_conv_backward,
        lambda: (torch.randn(3, 10, 37), torch.randn(10, 4)),
        (0, 1),
    ),
    Kernel("scan", scan, _scan, _scan_backward, lambda: (torch.randn(7, 100),)),
    Kernel("embedding", embedding, _embedding, _embedding_backward, embedding_inputs),
    Kernel("soft_cap", soft_cap, _soft_cap, _soft_cap_backward, lambda: (torch.randn(1000) * 6,)),
    Kernel("masked_softmax", masked_softmax, _masked_softmax, _masked_softmax_backward, mask_inputs),
    Kernel(
        "layer_scale",
        layer_scale,
        _layer_scale,
        _layer_scale_backward,
        lambda: (torch.randn(4, 25, 18), torch.randn(4, 25, 18), torch.rand(18) * 0.1),
        (0, 1, 2),
    ),
    Kernel(
        "scores", scores, _scores, _scores_backward, lambda: (torch.randn(2, 19, 64), torch.randn(2, 27, 64)), (0, 1)
    ),
    Kernel(
        "attend",
        attend,
        _attend,
        _attend_backward,
        lambda: (torch.randn(3, 33, 32), *(torch.randn(3, 45, 32) for _ in "kv")),
        (0, 1, 2),
    ),
    Kernel(
        "batch_norm",
        batch_norm,
        _batch_norm,
        _batch_norm_backward,
        lambda: (torch.randn(64, 22) * 3 + 1, weights(22), torch.randn(22)),
        (0, 1, 2),
    ),
    Kernel("quick_gelu", quick_gelu, _quick_gelu, _quick_gelu_backward, lambda: (torch.randn(11, 8) * 2,)),
    Kernel(
        "masked_mean",
        masked_mean,
        _masked_mean,
        _masked_mean_backward,
        lambda: (torch.randn(8, 20, 30), (torch.rand(8, 20) < 0.6) | (torch.arange(20) == 0)),
    ),
    Kernel("huber", huber, _huber, _huber_backward, lambda: (torch.randn(500), torch.randn(500)), (0, 1)),
    Kernel(
        "rounded_rms_norm",
        rounded_rms_norm,
        _rounded_rms_norm,
        _rounded_rms_norm_backward,
        lambda: (torch.randn(48, 128), weights(128)),
        (0, 1),
    ),
    Kernel("log_sum_exp", log_sum_exp, _log_sum_exp, _log_sum_exp_backward, lambda: (torch.randn(40, 16) * 2,)),
)


def entries(kernel: Kernel) -> Iterator[Entry]:
    """The kernel, and the same with each fault, in turn in each gradient and in the values."""
    yield Entry(kernel.name, kernel.fused(), kernel.eager, lambda d: d.cast(kernel.inputs()))
    slots = (*kernel.slots, VALUE)
    for number, (name, fault) in enumerate(FAULTS.items()):
        slot = slots[number % len(slots)]
        title = f"WRONG {kernel.name}: {name} in {'output' if slot == VALUE else f'grad of input {slot}'}"
        yield Entry(title, kernel.fused(fault, slot), kernel.eager, lambda d: d.cast(kernel.inputs()))


ENTRIES = tuple(entry for kernel in KERNELS for entry in entries(kernel))
