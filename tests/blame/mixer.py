"""An MLP mixer with a hand-written activation and a custom operator. Each fault is on the line that a comment names."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from tests.blame.planted import Fault

ROOT = math.sqrt(2 / math.pi)


class Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return 0.5 * x * (1 + torch.tanh(ROOT * (x + 0.044715 * x**3)))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        t = torch.tanh(ROOT * (x + 0.044715 * x**3))
        return g * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * ROOT * (1 + 3 * 0.044715 * x * x))


class GeluOfWrongConstant(Gelu):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # fault: wrong_constant
        (x,) = ctx.saved_tensors
        t = torch.tanh(ROOT * (x + 0.044715 * x**3))
        return g * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * ROOT * (1 + 0.044715 * x * x))


class Recomputed(torch.autograd.Function):
    """Differentiates the graph of another Function in its backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        with torch.enable_grad():
            ctx.x = x.detach().requires_grad_()
            ctx.y = GeluOfWrongTerm.apply(ctx.x)
        out: Tensor = ctx.y.detach()
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return torch.autograd.grad(ctx.y, ctx.x, g, retain_graph=True)[0]


class GeluOfWrongTerm(Gelu):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # fault: called_by_another
        (x,) = ctx.saved_tensors
        t = torch.tanh(ROOT * (x + 0.044715 * x**3))
        return g * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * ROOT)


class Mix(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return weight @ x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        return weight.T @ g, (g @ x.transpose(-1, -2)).sum(0)


class MixTransposed(Mix):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:  # fault: transposed
        x, weight = ctx.saved_tensors
        return weight @ g, (g @ x.transpose(-1, -2)).sum(0)


class RandomDepth(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * torch.bernoulli(torch.full_like(x, 0.5))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # fault: drawn_again
        return g * torch.bernoulli(torch.full_like(g, 0.5))


@torch.library.custom_op("gradvet_blame::squash", mutates_args=())
def squash(x: Tensor) -> Tensor:
    return x / (1 + x.abs())


def _keep(ctx: Any, inputs: Any, output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _squash_backward(ctx: Any, g: Tensor) -> Tensor:
    (x,) = ctx.saved_tensors
    return g / (1 + x.abs()) ** 2


squash.register_autograd(_squash_backward, setup_context=_keep)


@torch.library.custom_op("gradvet_blame::wrong_squash", mutates_args=())
def wrong_squash(x: Tensor) -> Tensor:
    return x / (1 + x.abs())


def _wrong_squash_backward(ctx: Any, g: Tensor) -> Tensor:  # fault: operator
    (x,) = ctx.saved_tensors
    return g / (1 + x.abs())


wrong_squash.register_autograd(_wrong_squash_backward, setup_context=_keep)


class TokenMix(nn.Module):
    def __init__(self, tokens: int, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.weight = nn.Parameter(0.4 * torch.randn(tokens, tokens))
        self.scale = nn.Parameter(torch.tensor([0.8]))

    def forward(self, x: Tensor) -> Tensor:
        mix = MixTransposed if self.fault == "transposed" else Mix
        y: Tensor = mix.apply(x, self.weight)  # type: ignore[no-untyped-call]
        y = (wrong_squash if self.fault == "operator" else squash)(y)
        if self.fault == "drawn_again":
            y = RandomDepth.apply(y)  # type: ignore[no-untyped-call]
        scale = self.scale
        if self.fault == "layer_scale":
            scale = float(self.scale)  # type: ignore[assignment]  # fault: layer_scale
        return y * scale


class Layer(nn.Module):
    def __init__(self, tokens: int, width: int, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.norm, self.tokens = nn.LayerNorm(width), TokenMix(tokens, fault)
        self.up, self.down = nn.Linear(width, 4), nn.Linear(4, width)
        if fault == "norm_hook":
            self.norm.weight.register_hook(lambda g: -g)  # fault: norm_hook

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.norm(x))
        gelus = {"wrong_constant": GeluOfWrongConstant, "called_by_another": Recomputed}
        gelu = gelus.get(self.fault, Gelu)
        y = self.down(gelu.apply(self.up(x)))  # type: ignore[no-untyped-call]
        if self.fault == "write_under_no_grad":
            with torch.no_grad():  # fault: write_under_no_grad
                y *= 2.0
        out: Tensor = x + y
        return out


class Mixer(nn.Module):
    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.layers = nn.Sequential(Layer(3, 2, ""), Layer(3, 2, fault))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out.mean(1)


def model(fault: str) -> tuple[nn.Module, Any]:
    return Mixer(fault).double(), torch.randn(2, 3, 2, dtype=torch.float64)


FAULTS = [
    Fault("wrong_constant", "layers.1", "autograd.Function GeluOfWrongConstant", model),
    Fault("called_by_another", "layers.1", "autograd.Function GeluOfWrongTerm", model),
    Fault("transposed", "layers.1.tokens", "autograd.Function MixTransposed", model),
    Fault("operator", "layers.1.tokens", "operator gradvet_blame::wrong_squash", model),
    Fault("drawn_again", "layers.1.tokens", "autograd.Function RandomDepth", model),
    Fault("layer_scale", "layers.1.tokens", "__float__", model),
    Fault("norm_hook", "layers.1.norm", "hook on parameter weight", model),
    Fault("write_under_no_grad", "layers.1", "no_grad", model),
]
