"""A transformer with rotary embeddings. Each fault is on the line that a comment names."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.blame.planted import Fault


class Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        cos, sin = ctx.saved_tensors
        a, b = g.chunk(2, -1)
        return torch.cat([a * cos + b * sin, b * cos - a * sin], -1), None, None


class RopeOfWrongSign(Rope):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:  # fault: rope_sign
        cos, sin = ctx.saved_tensors
        a, b = g.chunk(2, -1)
        return torch.cat([a * cos + b * sin, a * sin - b * cos], -1), None, None


class Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        r = (x.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt()
        ctx.save_for_backward(x, weight, r)
        return x * r * weight

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, weight, r = ctx.saved_tensors
        n, gw = x * r, g * weight
        return r * (gw - n * (gw * n).mean(-1, keepdim=True)), (g * n).flatten(0, -2).sum(0)


class NormWithoutMean(Norm):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:  # fault: missing_term
        x, weight, r = ctx.saved_tensors
        return r * g * weight, (g * x * r).flatten(0, -2).sum(0)


class Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return F.silu(a) * b

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        a, b = ctx.saved_tensors
        s = torch.sigmoid(a)
        return g * b * s * (1 + a * (1 - s)), g * a * s


class GateOfWrongTensor(Gate):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, a)
        return F.silu(a) * b

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:  # fault: wrong_saved_tensor
        return Gate.backward(ctx, g)


class NormModule(nn.Module):
    def __init__(self, width: int, function: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(1 + 0.1 * torch.randn(width))
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.function.apply(x, self.weight)
        return out


class RopeModule(nn.Module):
    def __init__(self, width: int, function: Any) -> None:
        super().__init__()
        self.width, self.function = width, function

    def forward(self, x: Tensor) -> Tensor:
        steps = torch.arange(x.shape[-2], dtype=x.dtype)[:, None]
        angles = steps / 10 ** (torch.arange(self.width // 2, dtype=x.dtype) / self.width)
        out: Tensor = self.function.apply(x, angles.cos(), angles.sin())
        return out


class Attention(nn.Module):
    def __init__(self, width: int, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.rope = RopeModule(width // 2, RopeOfWrongSign if fault == "rope_sign" else Rope)
        if fault == "parameter_hook":
            self.out.weight.register_hook(lambda g: g * 0.5)  # fault: parameter_hook
        if fault == "module_hook":
            self.out.register_full_backward_hook(lambda module, gi, go: (gi[0] * 2,))  # fault: module_hook
        if fault == "forward_hook":
            self.out.register_forward_hook(lambda module, args, out: out.detach())  # fault: forward_hook

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        q, k, v = (t.view(batch, time, 2, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        q, k = self.rope(q), self.rope(k)
        if self.fault == "detach_inside":
            k = k.detach()  # fault: detach_inside
        if self.fault == "item":
            q = q / q.square().mean().sqrt().item()  # fault: item
        scores = q @ k.transpose(-1, -2) / math.sqrt(width // 2)
        if self.fault == "no_grad":
            with torch.no_grad():  # fault: no_grad
                scores = scores - scores.logsumexp(-1, keepdim=True)
        mask = torch.ones(time, time, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(mask, -1e9).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, time, width))  # type: ignore[no-any-return]


class FeedForward(nn.Module):
    def __init__(self, width: int, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.gate, self.up, self.down = (nn.Linear(width, width) for _ in range(3))
        self.scale = nn.Parameter(torch.tensor(0.7))

    def forward(self, x: Tensor) -> Tensor:
        gate = GateOfWrongTensor if self.fault == "wrong_saved_tensor" else Gate
        y: Tensor = gate.apply(self.gate(x), self.up(x))  # type: ignore[no-untyped-call]
        if self.fault == "tensor_hook":
            y.register_hook(lambda g: g * 3)  # fault: tensor_hook
        scale = self.scale
        if self.fault == "data":
            scale = self.scale.data  # type: ignore[assignment]  # fault: data
        return self.down(y) * scale  # type: ignore[no-any-return]


class Block(nn.Module):
    def __init__(self, width: int, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.norm1, self.norm2 = (
            NormModule(width, NormWithoutMean if fault == "missing_term" and n else Norm) for n in (0, 1)
        )
        self.attn, self.mlp = Attention(width, fault), FeedForward(width, fault)

    def forward(self, x: Tensor) -> Tensor:
        y = self.attn(self.norm1(x))
        if self.fault == "detach_between":
            y = y.detach()  # fault: detach_between
        x = x + y
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class Transformer(nn.Module):
    """Blocks, the last with the fault, and an embedding that is used again at the end."""

    def __init__(self, fault: str = "", width: int = 4, blocks: int = 2, words: int = 5) -> None:
        super().__init__()
        self.fault = fault
        self.embedding = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width, fault if n == blocks - 1 else "") for n in range(blocks))
        self.norm = NormModule(width, Norm)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        weight = self.embedding.weight
        if self.fault == "tied":
            weight = weight.detach()  # type: ignore[assignment]  # fault: tied
        return F.linear(self.norm(x), weight)


def model(fault: str) -> tuple[nn.Module, Any]:
    return Transformer(fault).double(), torch.randint(0, 5, (1, 3))


def one_block(fault: str) -> tuple[nn.Module, Any]:
    return Transformer(fault, blocks=1).double(), torch.randint(0, 5, (1, 3))


FAULTS = [
    Fault("rope_sign", "blocks.1.attn.rope", "autograd.Function RopeOfWrongSign", model),
    Fault("missing_term", "blocks.1.norm2", "autograd.Function NormWithoutMean", model),
    Fault("wrong_saved_tensor", "blocks.1.mlp", "autograd.Function GateOfWrongTensor", model),
    Fault("parameter_hook", "blocks.1.attn.out", "hook on parameter weight", model),
    Fault("module_hook", "blocks.0.attn.out", "backward hook on module Linear", one_block),
    Fault("forward_hook", "blocks.0.attn.out", "detach", one_block),
    Fault("detach_inside", "blocks.1.attn", "detach", model),
    Fault("item", "blocks.0.attn", "item", one_block),
    Fault("no_grad", "blocks.0.attn", "no_grad", one_block),
    Fault("tensor_hook", "blocks.0.mlp", "register_hook", one_block),
    Fault("data", "blocks.0.mlp", "data", one_block),
    Fault("detach_between", "blocks.0", "detach", one_block),
    Fault("tied", "", "detach", one_block),
]
