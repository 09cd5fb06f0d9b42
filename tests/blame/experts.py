"""State-space layers with a mixture of experts. Each fault is on the line that a comment names."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.blame.planted import Fault


class Scan(torch.autograd.Function):
    """h(t) = a(t) h(t - 1) + b(t)."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        states = [b[:, 0]]
        for t in range(1, b.shape[1]):
            states.append(a[:, t] * states[-1] + b[:, t])
        h = torch.stack(states, 1)
        ctx.save_for_backward(a, h)
        return h

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        a, h = ctx.saved_tensors
        da, db = torch.zeros_like(a), g.clone()
        for t in reversed(range(1, g.shape[1])):
            da[:, t] = db[:, t] * h[:, t - 1]
            db[:, t - 1] += db[:, t] * a[:, t]
        return da, db


class ScanOfWrongState(Scan):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:  # fault: wrong_state
        _, db = Scan.backward(ctx, g)
        return db * ctx.saved_tensors[1], db


class ScanClipped(Scan):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:  # fault: clipped
        return tuple(gradient.clamp(-0.5, 0.5) for gradient in Scan.backward(ctx, g))


class Combination(torch.autograd.Function):
    """The sum of the experts' results with weights."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(y, weights)
        return (y * weights[..., None]).sum(-2)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        y, weights = ctx.saved_tensors
        return g[..., None, :] * weights[..., None], (g[..., None, :] * y).sum(-1)


class CombinationByWorldSize(Combination):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:  # fault: world_size
        dy, dweights = Combination.backward(ctx, g)
        return dy / 2, dweights


FUNCTIONS: dict[str, Any] = {
    "wrong_state": ScanOfWrongState,
    "clipped": ScanClipped,
    "world_size": CombinationByWorldSize,
}


def freeze_half(weight: Tensor) -> None:  # fault: accumulated
    assert weight.grad is not None
    weight.grad[1:] = 0.0


class Expert(nn.Module):
    def __init__(self, width: int, fault: str) -> None:
        super().__init__()
        self.linear, self.fault = nn.Linear(width, width), fault
        if fault == "accumulated":
            self.linear.weight.register_post_accumulate_grad_hook(freeze_half)

    def forward(self, x: Tensor) -> Tensor:
        if self.fault == "one_expert":
            with torch.no_grad():  # fault: one_expert
                return torch.tanh(self.linear(x))
        return torch.tanh(self.linear(x))


class Layer(nn.Module):
    def __init__(self, width: int, fault: str) -> None:
        super().__init__()
        self.gate, self.decay, self.fault = nn.Linear(width, 2), nn.Linear(width, width), fault
        self.experts = nn.ModuleList([Expert(width, ""), Expert(width, fault)])

    def forward(self, x: Tensor) -> Tensor:
        scan = FUNCTIONS[self.fault] if self.fault in ("wrong_state", "clipped") else Scan
        x = x + scan.apply(torch.sigmoid(self.decay(x)), x)
        scores = self.gate(x).exp()
        total = scores.sum(-1, keepdim=True)
        if self.fault == "scores":
            total = torch.tensor(total.tolist(), dtype=x.dtype)  # fault: scores
        combine = FUNCTIONS[self.fault] if self.fault == "world_size" else Combination
        y: Tensor = combine.apply(torch.stack([expert(x) for expert in self.experts], -2), scores / total)
        return y


class Model(nn.Module):
    def __init__(self, fault: str, width: int = 3) -> None:
        super().__init__()
        self.embedding, self.layers = nn.Embedding(5, width), nn.ModuleList([Layer(width, ""), Layer(width, fault)])

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        return x @ self.embedding.weight.T  # type: ignore[no-any-return]


def model(fault: str) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    return Model(fault).double(), torch.randint(0, 5, (2, 3))


FAULTS = [
    Fault("wrong_state", "layers.1", "autograd.Function ScanOfWrongState", model),
    Fault("clipped", "layers.1", "autograd.Function ScanClipped", model),
    Fault("world_size", "layers.1", "autograd.Function CombinationByWorldSize", model),
    Fault("one_expert", "layers.1.experts.1", "no_grad", model),
    Fault("accumulated", "layers.1.experts.1.linear", "post-accumulate-grad hook on parameter weight", model),
    Fault("scores", "layers.1", "tolist", model),
]
