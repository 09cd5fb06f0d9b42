"""A recurrent model with a hand-written cell. Each fault is on the line that a comment names."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.blame.planted import Fault


def gates(ctx: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    f, i, g, c = ctx.saved_tensors
    return torch.sigmoid(f), torch.sigmoid(i), torch.tanh(g), c


class Cell(torch.autograd.Function):
    """c' = f c + i g, with gates before their nonlinearity."""

    @staticmethod
    def forward(ctx: Any, f: Tensor, i: Tensor, g: Tensor, c: Tensor) -> Tensor:
        ctx.save_for_backward(f, i, g, c)
        return torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> Any:
        f, i, g, c = gates(ctx)
        return v * c * f * (1 - f), v * g * i * (1 - i), v * i * (1 - g * g), v * f


class CellOfWrongGate(Cell):
    @staticmethod
    def backward(ctx: Any, v: Tensor) -> Any:  # fault: forget_gate
        f, i, g, _ = gates(ctx)
        return v * g * f * (1 - f), v * g * i * (1 - i), v * i * (1 - g * g), v * f


class CellOfLowPrecision(Cell):
    @staticmethod
    def backward(ctx: Any, v: Tensor) -> Any:  # fault: low_precision
        rounded = v if v.dtype is torch.float64 else v.to(torch.bfloat16).to(v.dtype)
        return Cell.backward(ctx, rounded)


class CellOfWrongSecondDerivative(Cell):
    @staticmethod
    def backward(ctx: Any, v: Tensor) -> Any:  # fault: double_backward
        f, i, g, c = gates(ctx)
        return v * c * (f * (1 - f)).detach(), v * g * i * (1 - i), v * i * (1 - g * g), v * f


class CellWithWorkspace(Cell):
    """Keeps its gates in memory that its caller gives, the same for all steps."""

    @staticmethod
    def forward(ctx: Any, f: Tensor, i: Tensor, g: Tensor, c: Tensor, workspace: Tensor) -> Tensor:  # type: ignore[override]
        workspace.copy_(torch.stack([f, i, g]))
        ctx.workspace = workspace
        ctx.save_for_backward(c)
        return Cell.forward(ctx, f, i, g, c)

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> Any:  # fault: workspace
        f, i, g = ctx.workspace
        f, i, g, c = torch.sigmoid(f), torch.sigmoid(i), torch.tanh(g), ctx.saved_tensors[-1]
        return v * c * f * (1 - f), v * g * i * (1 - i), v * i * (1 - g * g), v * f, None


CELLS = {
    "forget_gate": CellOfWrongGate,
    "low_precision": CellOfLowPrecision,
    "double_backward": CellOfWrongSecondDerivative,
}


class Layer(nn.Module):
    def __init__(self, width: int, fault: str) -> None:
        super().__init__()
        self.fault, self.width = fault, width
        self.gates = nn.Linear(2 * width, 4 * width)
        self.shift = nn.Parameter(0.1 * torch.randn(width))
        self.register_buffer("workspace", torch.zeros(3, 2, width))
        if fault == "not_registered":
            self.scales = [nn.Parameter(torch.ones(width, dtype=torch.float64))]  # fault: not_registered

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        f, i, g, o = self.gates(torch.cat([x, h], -1)).chunk(4, -1)
        if self.fault == "not_registered":
            g = g * self.scales[0]
        if self.fault == "workspace":
            c = CellWithWorkspace.apply(f, i, g + self.shift, c, self.workspace)  # type: ignore[no-untyped-call]
        else:
            c = CELLS.get(self.fault, Cell).apply(f, i, g + self.shift, c)  # type: ignore[no-untyped-call]
        h = torch.sigmoid(o) * torch.tanh(c)
        if self.fault == "clipping_hook":
            h.register_hook(lambda g: g.clamp(-0.01, 0.01))  # fault: clipping_hook
        return h, c


class Recurrent(nn.Module):
    def __init__(self, fault: str = "", width: int = 3) -> None:
        super().__init__()
        self.fault, self.width = fault, width
        self.layers = nn.ModuleList([Layer(width, ""), Layer(width, fault)])
        self.head = nn.Linear(width, 2)

    def forward(self, xs: Tensor) -> Tensor:
        h = [xs.new_zeros(xs.shape[1], self.width) for _ in self.layers]
        c = [state.clone() for state in h]
        for x in xs:
            for n, layer in enumerate(self.layers):
                h[n], c[n] = layer(x, h[n], c[n])
                x = h[n]
            if self.fault == "truncated":
                h = [state.detach() for state in h]  # fault: truncated
        out: Tensor = self.head(c[-1])
        return out


def model(fault: str) -> tuple[nn.Module, Any]:
    dtype = torch.float32 if fault == "low_precision" else torch.float64
    return Recurrent(fault).to(dtype), torch.randn(3, 2, 3, dtype=dtype)


FAULTS = [
    Fault("forget_gate", "layers.1", "autograd.Function CellOfWrongGate", model),
    Fault("low_precision", "layers.1", "autograd.Function CellOfLowPrecision", model),
    Fault("double_backward", "layers.1", "autograd.Function CellOfWrongSecondDerivative", model, {"order": 2}),
    Fault("workspace", "layers.1", "autograd.Function CellWithWorkspace", model),
    Fault("clipping_hook", "layers.1", "register_hook", model),
    Fault("truncated", "", "detach", model),
    Fault("not_registered", "layers.1", "attribute scales", model, is_warning=True),
]
