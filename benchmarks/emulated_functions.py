"""Kernels made of functions in plain torch: `python -m benchmarks.kernels --module benchmarks.emulated_functions`.

Each computes in float32 with its derivative by autograd, and rounds the results to the dtype given. By its treatment of
float64, a kernel follows it, casts it to float32 or refuses it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.emulated import Passes, cast, follow, refuse
from benchmarks.kernel_cases import Draw, Entry
from tests.kernels.emulated import opaque_function

Widen = Callable[[Tensor], Tensor]


def kernel(function: Callable[..., Tensor], widen: Widen) -> Passes:
    def wide(values: Any) -> list[Any]:
        return [widen(v.detach()) if _is_number(v) else v for v in values]

    def forward(ctx: Any, *inputs: Any) -> Tensor:
        ctx.inputs = inputs
        return function(*wide(inputs)).to(inputs[0].dtype)

    def backward(ctx: Any, grad: Tensor) -> Any:
        with torch.enable_grad():
            inputs = [v.requires_grad_() if _is_number(v) else v for v in wide(ctx.inputs)]
            sources = [v for v in inputs if _is_number(v)]
            found = iter(torch.autograd.grad(function(*inputs), sources, widen(grad)))
        return tuple(next(found).to(v.dtype) if _is_number(v) else None for v in ctx.inputs)

    return forward, backward


def _is_number(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def top_k_softmax(x: Tensor) -> Tensor:
    values, indices = x.topk(3, -1)
    return torch.zeros_like(x).scatter(-1, indices, values.softmax(-1))


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


def distance_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention whose scores fall with the distance."""
    place = torch.arange(q.shape[-2], device=q.device)
    away = (place[:, None] - place).to(q.dtype)
    scores = (q @ k.mT / q.shape[-1] ** 0.5 - 0.3 * away).masked_fill(away < 0, -torch.inf)
    return scores.softmax(-1) @ v


def focal_loss(x: Tensor, target: Tensor) -> Tensor:
    log = x.log_softmax(-1).gather(-1, target[:, None])
    return -((1.0 - log.exp()) ** 2 * log).mean()


def convolution(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.silu(F.conv1d(F.pad(x, (3, 0)), weight, bias, groups=x.shape[1]))


def segment_sum(x: Tensor, segment: Tensor) -> Tensor:
    return x.new_zeros(5, x.shape[1]).index_add(0, segment, x)


def swiglu(x: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return F.silu(a) * b


def total_variation(x: Tensor, y: Tensor) -> Tensor:
    return 0.5 * (x.softmax(-1) - y.softmax(-1)).abs().sum(-1)


FUNCTIONS: dict[str, tuple[Callable[..., Tensor], Widen, Callable[[Draw], tuple[Any, ...]]]] = {
    "instance_norm": (
        lambda x, w, b: F.instance_norm(x) * w[:, None] + b[:, None],
        follow,
        lambda d: (d.normal(3, 4, 40), d.weights(4), d.normal(4)),
    ),
    "top_k_softmax": (top_k_softmax, follow, lambda d: (d.normal(6, 33),)),
    "rotary": (rotary, cast, lambda d: (d.normal(2, 8, 8), *d.angles(8, 8))),
    "bias_gelu": (
        lambda x, b: F.gelu(x + b, approximate="tanh"),
        refuse,
        lambda d: (d.normal(17, 48), d.normal(48)),
    ),
    "distance_attention": (distance_attention, refuse, lambda d: tuple(d.normal(2, 12, 8) for _ in range(3))),
    "segment_sum": (segment_sum, refuse, lambda d: (d.normal(24, 16), torch.arange(24) // 5)),
    "cosine": (
        lambda a, b: F.cosine_similarity(a, b, dim=-1),
        follow,
        lambda d: (d.normal(20, 32), d.normal(20, 32)),
    ),
    "log_sum_exp": (lambda x: x.logsumexp(-1), refuse, lambda d: (d.normal(16, 50),)),
    "focal_loss": (focal_loss, refuse, lambda d: (d.normal(32, 20), d.targets(32, 20))),
    "convolution": (
        convolution,
        refuse,
        lambda d: (d.normal(2, 6, 30), d.normal(6, 1, 4), d.normal(6)),
    ),
    "swiglu": (swiglu, refuse, lambda d: (d.normal(10, 64),)),
    "total_variation": (total_variation, refuse, lambda d: (d.normal(12, 40), d.normal(12, 40))),
}

ENTRIES = tuple(
    Entry(name, opaque_function(*kernel(function, widen)), function, build)
    for name, (function, widen, build) in FUNCTIONS.items()
)
