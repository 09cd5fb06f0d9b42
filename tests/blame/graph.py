"""A graph network with hand-written scattering. Each fault is on the line that a comment names."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.blame.planted import Fault


class Scatter(torch.autograd.Function):
    """Messages x[source] weight, added up at their targets."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, source: Tensor, target: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, source, target)
        return torch.zeros_like(x).index_add(0, target, x[source] * weight[:, None])

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, weight, source, target = ctx.saved_tensors
        dx = torch.zeros_like(x).index_add(0, source, g[target] * weight[:, None])
        return dx, (g[target] * x[source]).sum(-1), None, None


class ScatterToTarget(Scatter):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:  # fault: wrong_index
        x, weight, source, target = ctx.saved_tensors
        dx = torch.zeros_like(x).index_add(0, target, g[source] * weight[:, None])
        return dx, (g[target] * x[source]).sum(-1), None, None


class ScatterWithoutWeight(Scatter):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:  # fault: missing_gradient
        return Scatter.backward(ctx, g)[0], None, None, None


class Product(torch.autograd.Function):
    """x weightᵀ, whose backward pass adds to `.grad` itself."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.weight = weight
        return x @ weight.T

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        if isinstance(ctx.weight, nn.Parameter):
            ctx.weight.grad = g.T @ x  # fault: accumulated_twice
        return g @ weight, g.T @ x


SCATTERS = {"wrong_index": ScatterToTarget, "missing_gradient": ScatterWithoutWeight}


class Layer(nn.Module):
    def __init__(self, width: int, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.linear = nn.Linear(width, width)
        self.score = nn.Linear(2 * width, 1)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        score = self.score(torch.cat([x[source], x[target]], -1))[:, 0].exp()
        total = torch.zeros(len(x), dtype=x.dtype).index_add(0, target, score)
        if self.fault == "normalisation":
            total = total.detach()  # fault: normalisation
        if self.fault == "numpy":
            total = torch.from_numpy(total.detach().numpy())  # fault: numpy
        weight = score / (1 + total[target])
        if self.fault == "accumulated_twice":
            y = Product.apply(x, self.linear.weight) + self.linear.bias  # type: ignore[no-untyped-call]
        else:
            y = self.linear(x)
        if self.fault == "decay_in_hook":
            y.register_hook(self.add_decay)  # fault: decay_in_hook
        scatter = SCATTERS.get(self.fault, Scatter)
        return torch.tanh(y + scatter.apply(x, weight, source, target))  # type: ignore[no-untyped-call]

    def add_decay(self, gradient: Tensor) -> None:
        weight = self.linear.weight
        weight.grad = 0.1 * weight.detach() if weight.grad is None else weight.grad + 0.1 * weight.detach()


class GraphNetwork(nn.Module):
    def __init__(self, fault: str = "", width: int = 3) -> None:
        super().__init__()
        self.fault = fault
        self.layers = nn.ModuleList([Layer(width, ""), Layer(width, fault)])
        self.readout = nn.Linear(width, 1)

    def forward(self, x: Tensor, edges: Tensor) -> dict[str, Tensor]:
        for layer in self.layers:
            x = layer(x, edges)
        pooled = x.mean(0)
        if self.fault == "readout":
            pooled = x.data.mean(0)  # fault: readout
        return {"nodes": x, "graph": self.readout(pooled)}


def model(fault: str) -> tuple[nn.Module, Any]:
    edges = torch.tensor([[0, 1, 2, 3, 3, 1], [1, 2, 0, 0, 2, 3]])
    return GraphNetwork(fault).double(), (torch.randn(4, 3, dtype=torch.float64), edges)


FAULTS = [
    Fault("wrong_index", "layers.1", "autograd.Function ScatterToTarget", model),
    Fault("missing_gradient", "layers.1", "autograd.Function ScatterWithoutWeight", model),
    Fault("normalisation", "layers.1", "detach", model),
    Fault("numpy", "layers.1", "detach", model),
    Fault("accumulated_twice", "layers.1", "write to .grad", model),
    Fault("decay_in_hook", "layers.1", "write to .grad", model),
    Fault("readout", "", "data", model),
]
