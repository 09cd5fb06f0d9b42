"""A variational autoencoder. Each fault is on the line that a comment names."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.blame.planted import Fault


class HalfTanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.tanh(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # fault: half_precision
        (x,) = ctx.saved_tensors
        return (g.half() * (1 - torch.tanh(x.half()) ** 2)).to(g.dtype)


class Centred(nn.Module):
    """The rounding of the gradient stays below what is asked for until it is centred."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        out: Tensor = HalfTanh.apply(0.1 * (h - h.mean(-1, keepdim=True)))  # type: ignore[no-untyped-call]
        return out


class WithSize(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        size = x.square().sum(-1, keepdim=True)
        ctx.mark_non_differentiable(size)
        return x.clone(), size

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Tensor) -> Tensor:
        return g


class Encoder(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.body, self.head, self.fault = nn.Linear(4, 3), nn.Linear(3, 4), fault

    def forward(self, x: Tensor) -> Any:
        h = self.body(x)
        if self.fault == "data_behind_numpy":
            h = torch.from_numpy(np.tanh(h.data.numpy()))  # fault: data_behind_numpy
        if self.fault == "non_differentiable":
            h, size = WithSize.apply(h)  # type: ignore[no-untyped-call]  # fault: non_differentiable
            h = h / (1 + size)
        if self.fault == "masked":
            h = torch.where(h > 0, h.sqrt(), -h)  # fault: masked
        if self.fault == "inference":
            with torch.inference_mode():  # fault: inference
                size = h.square().mean(-1, keepdim=True)
            h = h / (1 + size.clone())
        y = self.head(torch.tanh(h))
        if self.fault == "own_weight":
            self.head.weight.data.mul_(0.99)  # fault: own_weight
        return y.chunk(2, -1)


class Autoencoder(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.encoder, self.decoder, self.fault = Encoder(fault), nn.Linear(2, 4), fault

    def latent(self, mean: Tensor, deviation: Tensor) -> Tensor:
        if self.fault == "sample":
            return torch.distributions.Normal(mean, deviation).sample()  # fault: sample
        if self.fault == "other_draws":
            settings = {"use_reentrant": False, "preserve_rng_state": False}
            return checkpoint(_drawn, mean, deviation, **settings)  # fault: other_draws
        return _drawn(mean, deviation)

    def forward(self, x: Tensor) -> dict[str, Any]:
        mean, log_variance = self.encoder(x)
        y = self.decoder(self.latent(mean, (0.5 * log_variance).exp()))
        variance = log_variance.exp()
        if self.fault == "divergence":
            variance = variance.detach()  # fault: divergence
        divergence = 0.5 * (mean.square() + variance - log_variance - 1).sum()
        return {"loss": F.mse_loss(y, x) + 0.1 * divergence, "others": (None, [y])}


def _drawn(mean: Tensor, deviation: Tensor) -> Tensor:
    return mean + deviation * torch.randn_like(deviation)


def model(fault: str) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    return Autoencoder(fault).double(), torch.randn(3, 4, dtype=torch.float64)


def centred(fault: str) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    return Centred(), torch.randn(3, 4)


FAULTS = [
    Fault("data_behind_numpy", "encoder", "data", model),
    Fault("sample", "", "no_grad", model),
    Fault("divergence", "", "detach", model),
    Fault("half_precision", "", "autograd.Function HalfTanh", centred),
    Fault("non_differentiable", "encoder", "non-differentiable output of WithSize", model),
    Fault("masked", "encoder", "SqrtBackward0", model),
    Fault("inference", "encoder", "inference_mode", model),
    Fault("own_weight", "encoder", "write to a saved tensor", model),
    Fault("other_draws", "", "checkpoint", model),
]
