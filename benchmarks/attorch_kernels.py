"""Kernels of attorch with small inputs, each beside the same function in plain torch.

attorch is not on the package index: put its source on PYTHONPATH. Its autotuner gets one configuration, so that a new
shape compiles once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
from torch import Tensor
from torch.nn import functional as F

from benchmarks.kernel_cases import Draw, Entry

_autotune = triton.autotune
triton.autotune = lambda configs, key, **words: _autotune(configs[:1], key, **words)

import attorch  # noqa: E402
from attorch.cross_entropy_loss_layer import CrossEntropyLossAutoGrad  # noqa: E402
from attorch.glu_layer import GLUAutoGrad  # noqa: E402
from attorch.layer_norm_layer import LayerNormAutoGrad  # noqa: E402
from attorch.linear_layer import LinearAutoGrad  # noqa: E402
from attorch.nll_loss_layer import NLLLossAutoGrad  # noqa: E402
from attorch.p_loss_layers import PLossAutoGrad  # noqa: E402
from attorch.rms_norm_layer import RMSNormAutoGrad  # noqa: E402
from attorch.softmax_layers import SoftmaxAutoGrad  # noqa: E402

ACTIVATIONS: dict[str, tuple[type[torch.nn.Module], Callable[[Tensor], Tensor]]] = {
    "sigmoid": (attorch.Sigmoid, torch.sigmoid),
    "tanh": (attorch.Tanh, torch.tanh),
    "gelu": (attorch.GELU, F.gelu),
    "silu": (attorch.SiLU, F.silu),
    "mish": (attorch.Mish, F.mish),
    "hardswish": (attorch.Hardswish, F.hardswish),
    "selu": (attorch.SELU, F.selu),
    "softsign": (attorch.Softsign, F.softsign),
    "logsigmoid": (attorch.LogSigmoid, F.logsigmoid),
}


def _applied(function: type[torch.autograd.Function], count: int, *options: Any) -> Callable[..., Any]:
    """The Function of that many tensors, with its other arguments given."""
    return lambda *tensors: function.apply(*tensors[:count], *options)


def _matrix(draw: Draw) -> tuple[Tensor, ...]:
    return (draw.normal(9, 33),)


def _linear(draw: Draw) -> tuple[Tensor, ...]:
    return draw.normal(16, 32), draw.normal(32, 24), draw.normal(24)


def _classes(draw: Draw) -> tuple[Tensor, ...]:
    return draw.normal(16, 40), draw.targets(16, 40)


def _pair(draw: Draw) -> tuple[Tensor, ...]:
    return draw.normal(16, 24), draw.constant(16, 24)


def _gated(x: Tensor) -> Tensor:
    values, gate = x.chunk(2, -1)
    return values * F.silu(gate)


ENTRIES = (
    *(Entry(name, layer(), plain, _matrix) for name, (layer, plain) in ACTIVATIONS.items()),
    Entry("softmax", _applied(SoftmaxAutoGrad, 1, False, False), lambda x: x.softmax(-1), _matrix),
    Entry("log_softmax", _applied(SoftmaxAutoGrad, 1, False, True), lambda x: x.log_softmax(-1), _matrix),
    Entry("softmin", _applied(SoftmaxAutoGrad, 1, True, False), lambda x: (-x).softmax(-1), _matrix),
    Entry(
        "layer_norm",
        _applied(LayerNormAutoGrad, 3, 1e-5, False),
        lambda x, w, b: F.layer_norm(x, w.shape, w, b),
        lambda d: (d.normal(10, 40), d.weights(40), d.normal(40)),
    ),
    Entry(
        "rms_norm",
        _applied(RMSNormAutoGrad, 2, 1e-6),
        lambda x, w: F.rms_norm(x, w.shape, w, 1e-6),
        lambda d: (d.normal(10, 40), d.weights(40)),
    ),
    Entry("glu_silu", _applied(GLUAutoGrad, 1, -1, "silu"), _gated, lambda d: (d.normal(10, 40),)),
    Entry("linear", _applied(LinearAutoGrad, 3, None), lambda x, w, b: x @ w + b, _linear),
    Entry("linear_gelu", _applied(LinearAutoGrad, 3, "gelu"), lambda x, w, b: F.gelu(x @ w + b), _linear),
    Entry("cross_entropy", _applied(CrossEntropyLossAutoGrad, 2), F.cross_entropy, _classes),
    Entry("nll_loss", _applied(NLLLossAutoGrad, 2, "mean"), F.nll_loss, _classes),
    Entry("l1_loss", _applied(PLossAutoGrad, 2, 1, "mean"), F.l1_loss, _pair),
    Entry("mse_loss", _applied(PLossAutoGrad, 2, 2, "mean"), F.mse_loss, _pair),
    Entry("huber_loss", _applied(PLossAutoGrad, 2, 3, "mean", 1.0), F.huber_loss, _pair),
    Entry(
        "smooth_l1",
        _applied(PLossAutoGrad, 2, 0, "none", 1.0),
        lambda x, y: F.smooth_l1_loss(x, y, reduction="none"),
        _pair,
    ),
)
