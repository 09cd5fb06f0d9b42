"""A U-Net with hand-written convolution and pooling. Each fault is on the line that a comment names."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.blame.planted import Fault


class Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return F.conv2d(x, weight, bias, padding=1)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        dx = torch.nn.grad.conv2d_input(x.shape, weight, g, padding=1)
        dw = torch.nn.grad.conv2d_weight(x, weight.shape, g, padding=1)
        return dx, dw, g.sum((0, 2, 3))


class ConvolutionWithMeanBias(Convolution):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:  # fault: bias_mean
        dx, dw, _ = Convolution.backward(ctx, g)
        return dx, dw, g.mean((0, 2, 3))


class ConvolutionThatWritesToGradOutput(Convolution):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:  # fault: writes_to_grad_output
        result = Convolution.backward(ctx, g)
        g.mul_(0.5)
        return result


class ConvolutionWithWorkspace(Convolution):
    workspace: dict[str, Tensor] = {}  # noqa: RUF012

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ConvolutionWithWorkspace.workspace["x"] = x
        ctx.save_for_backward(weight)
        return F.conv2d(x, weight, bias, padding=1)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:  # fault: shared_workspace
        (weight,) = ctx.saved_tensors
        x = ConvolutionWithWorkspace.workspace["x"]
        dx = torch.nn.grad.conv2d_input(x.shape, weight, g, padding=1)
        return dx, torch.nn.grad.conv2d_weight(x, weight.shape, g, padding=1), g.sum((0, 2, 3))


class Pool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return F.avg_pool2d(x, 2)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return F.interpolate(g, scale_factor=2.0) / 4


class PoolWithoutMean(Pool):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # fault: pool_factor
        return F.interpolate(g, scale_factor=2.0)


CONVOLUTIONS = {
    "bias_mean": ConvolutionWithMeanBias,
    "writes_to_grad_output": ConvolutionThatWritesToGradOutput,
    "shared_workspace": ConvolutionWithWorkspace,
}


class Conv(nn.Module):
    def __init__(self, channels: int, outs: int, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.weight = nn.Parameter(0.3 * torch.randn(outs, channels, 3, 3))
        self.bias = nn.Parameter(0.1 * torch.randn(outs))
        self.register_buffer("running", torch.zeros(outs))
        self.running: Tensor

    def forward(self, x: Tensor) -> Tensor:
        x = CONVOLUTIONS.get(self.fault, Convolution).apply(x, self.weight, self.bias)
        with torch.no_grad():
            self.running.lerp_(x.mean((0, 2, 3)), 0.1)
        if self.fault == "statistics":
            with torch.no_grad():  # fault: statistics
                spread = x.std((0, 2, 3), keepdim=True)
            return torch.tanh(x / spread)
        y = torch.tanh(x / x.std((0, 2, 3), keepdim=True))
        if self.fault == "write_past_the_counter":
            y.data.mul_(1.5)  # fault: write_past_the_counter
        return y


class Stage(nn.Module):
    def __init__(self, channels: int, outs: int, fault: str = "") -> None:
        super().__init__()
        self.pool = PoolWithoutMean if fault == "pool_factor" else Pool
        self.conv = Conv(channels, outs, fault)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv(self.pool.apply(x))  # type: ignore[no-untyped-call]
        return out


class UNet(nn.Module):
    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.fault = fault
        self.first = Conv(1, 2, "")
        self.down = Stage(2, 3, fault)
        again = fault if fault == "shared_workspace" else ""  # one call alone overwrites nothing
        self.up = nn.ModuleDict({"conv": Conv(5, 2, again), "out": nn.Conv2d(2, 1, 1)})

    def forward(self, x: Tensor) -> Tensor:
        skip = self.first(x)
        y = F.interpolate(self.down(skip), scale_factor=2.0)
        if self.fault == "skip_detached":
            skip = skip.detach()  # fault: skip_detached
        out: Tensor = self.up["out"](self.up["conv"](torch.cat([y, skip], 1)))
        return out


def model(fault: str) -> tuple[nn.Module, Any]:
    return UNet(fault).double(), torch.randn(2, 1, 4, 4, dtype=torch.float64)


FAULTS = [
    Fault("bias_mean", "down.conv", "autograd.Function ConvolutionWithMeanBias", model),
    Fault("writes_to_grad_output", "down.conv", "autograd.Function ConvolutionThatWritesToGradOutput", model),
    Fault("shared_workspace", "down.conv", "autograd.Function ConvolutionWithWorkspace", model),
    Fault("pool_factor", "down", "autograd.Function PoolWithoutMean", model),
    Fault("statistics", "down.conv", "no_grad", model),
    Fault("write_past_the_counter", "down.conv", "write to a saved tensor", model),
    Fault("skip_detached", "", "detach", model),
]
