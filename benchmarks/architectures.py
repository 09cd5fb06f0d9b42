"""Whole models in plain torch with random weights, in training mode, and inputs for them. For `benchmarks.models`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class Attention(nn.Module):
    """Self-attention with several heads; causal for language models."""

    def __init__(self, width: int, heads: int, dropout: float, *, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2) for part in self.qkv(x).split(width, dim=-1)
        )
        scores = q @ k.transpose(-1, -2) / math.sqrt(width // self.heads)
        if self.causal:
            future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
            scores = scores.masked_fill(future, -math.inf)
        mixed = self.dropout(scores.softmax(-1)) @ v
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return out


class Block(nn.Module):
    """Attention and a perceptron, each behind a layer norm and beside a skip connection."""

    def __init__(self, width: int, heads: int, dropout: float, *, causal: bool) -> None:
        super().__init__()
        self.ln1, self.attn = nn.LayerNorm(width), Attention(width, heads, dropout, causal=causal)
        self.ln2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln1(x))
        out: Tensor = x + self.mlp(self.ln2(x))
        return out


class GPT(nn.Module):
    """GPT-2: learned positions, blocks with the norm first, output weights tied to the embedding."""

    def __init__(self, vocabulary: int, length: int, width: int, heads: int, depth: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*[Block(width, heads, dropout, causal=True) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.apply(_gpt_weights)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        return functional.linear(self.norm(self.blocks(self.dropout(x))), self.tokens.weight)


def _gpt_weights(module: nn.Module) -> None:
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)


class ViT(nn.Module):
    """A vision transformer: patches by a convolution, a class token, learned positions."""

    def __init__(self, size: int, patch: int, width: int, heads: int, depth: int, classes: int = 10) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(0.02 * torch.randn(1, 1, width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, (size // patch) ** 2 + 1, width))
        self.dropout = nn.Dropout(0.1)
        self.blocks = nn.Sequential(*[Block(width, heads, 0.1, causal=False) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.positions
        out: Tensor = self.head(self.norm(self.blocks(self.dropout(x)))[:, 0])
        return out


def _double_convolution(channels: int, width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.Conv2d(width, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    """Convolutions with batch norm and ReLU in place, max pooling on the way down, skip connections on the way up."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        widths = [width << level for level in range(depth + 1)]
        self.down = nn.ModuleList([_double_convolution(a, b) for a, b in zip([3, *widths], widths[:-1], strict=False)])
        self.middle = _double_convolution(widths[-2], widths[-1])
        pairs = list(zip(widths[:0:-1], widths[-2::-1], strict=True))
        self.up = nn.ModuleList([nn.ConvTranspose2d(a, b, 2, 2) for a, b in pairs])
        self.merge = nn.ModuleList([_double_convolution(a, b) for a, b in pairs])
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, images: Tensor) -> Tensor:
        x, kept = images, []
        for stage in self.down:
            x = stage(x)
            kept.append(x)
            x = functional.max_pool2d(x, 2)
        x = self.middle(x)
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat([kept.pop(), up(x)], dim=1))
        out: Tensor = self.head(x)
        return out


class LSTMModel(nn.Module):
    """A language model: embedding, a stacked LSTM with dropout, output layer."""

    def __init__(self, vocabulary: int, width: int, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.dropout = nn.Dropout(0.2)
        self.lstm = nn.LSTM(width, width, layers, dropout=0.2, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.lstm(self.dropout(self.tokens(tokens)))
        out: Tensor = self.head(self.dropout(states))
        return out


class GraphLayer(nn.Module):
    """Attention over the edges of a graph: softmax over the neighbours of each node by scatter operations."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.value, self.own = nn.Linear(width, width, bias=False), nn.Linear(width, width)
        self.score, self.norm = nn.Linear(2 * width, 1), nn.BatchNorm1d(width)

    def forward(self, nodes: Tensor, source: Tensor, target: Tensor) -> Tensor:
        pairs = torch.cat([nodes[source], nodes[target]], dim=-1)
        weight = functional.leaky_relu(self.score(pairs), 0.2).exp()
        total = nodes.new_zeros(len(nodes), 1).index_add(0, target, weight)
        messages = nodes.new_zeros(nodes.shape).index_add(0, target, weight * self.value(nodes)[source])
        out: Tensor = functional.elu(self.norm(self.own(nodes) + messages / (total + 1e-6)))
        return out


class GraphNetwork(nn.Module):
    """Node features through graph layers with skip connections, averaged over each graph of a batch."""

    def __init__(self, features: int, width: int, depth: int, targets: int = 4) -> None:
        super().__init__()
        self.lift = nn.Linear(features, width)
        self.layers = nn.ModuleList([GraphLayer(width) for _ in range(depth)])
        self.dropout, self.head = nn.Dropout(0.1), nn.Linear(width, targets)

    def forward(self, graph: Mapping[str, Tensor]) -> dict[str, Tensor]:
        nodes, (source, target), member = self.lift(graph["nodes"]), graph["edges"], graph["member"]
        for layer in self.layers:
            nodes = nodes + self.dropout(layer(nodes, source, target))
        graphs = int(member.max()) + 1
        count = nodes.new_zeros(graphs).index_add(0, member, torch.ones_like(member, dtype=nodes.dtype))
        pooled = nodes.new_zeros(graphs, nodes.shape[1]).index_add(0, member, nodes) / count[:, None]
        return {"targets": self.head(pooled)}


@dataclass(frozen=True, slots=True)
class Case:
    """A model and its inputs, made from a seed."""

    name: str
    size: str
    """small: also on a CPU; large: on a GPU alone."""
    make: Callable[[], tuple[nn.Module, tuple[object, ...]]]


def _tokens(vocabulary: int, batch: int, length: int) -> tuple[Tensor]:
    return (torch.randint(vocabulary, (batch, length)),)


def _graph(features: int, nodes: int, edges: int, graphs: int) -> tuple[dict[str, Tensor]]:
    member = torch.arange(nodes) * graphs // nodes
    return ({"nodes": torch.randn(nodes, features), "edges": torch.randint(nodes, (2, edges)), "member": member},)


CASES = (
    Case("GPT-2 0.6M", "small", lambda: (GPT(512, 64, 128, 4, 3), _tokens(512, 2, 32))),
    Case("GPT-2 3.9M", "small", lambda: (GPT(2048, 128, 256, 8, 4), _tokens(2048, 2, 64))),
    Case("GPT-2 124M", "large", lambda: (GPT(50257, 1024, 768, 12, 12), _tokens(50257, 1, 128))),
    Case("ViT 0.5M", "small", lambda: (ViT(32, 8, 96, 4, 4), (torch.randn(4, 3, 32, 32),))),
    Case("ViT 86M", "large", lambda: (ViT(224, 16, 768, 12, 12, 1000), (torch.randn(2, 3, 224, 224),))),
    Case("U-Net 0.5M", "small", lambda: (UNet(16, 3), (torch.randn(2, 3, 32, 32),))),
    Case("U-Net 31M", "large", lambda: (UNet(64, 4), (torch.randn(2, 3, 128, 128),))),
    Case("LSTM 0.7M", "small", lambda: (LSTMModel(1000, 128, 2), _tokens(1000, 4, 24))),
    Case("LSTM 38M", "large", lambda: (LSTMModel(16000, 768, 3), _tokens(16000, 4, 64))),
    Case("graph network 0.1M", "small", lambda: (GraphNetwork(16, 64, 6), _graph(16, 120, 480, 6))),
    Case("graph network 6M", "large", lambda: (GraphNetwork(64, 512, 8), _graph(64, 4000, 32000, 64))),
)


def on_device(value: Any, device: str) -> Any:
    """Nested inputs on a device."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {name: on_device(item, device) for name, item in value.items()}
    return tuple(on_device(item, device) for item in value)


def sum_of_squares(outputs: Any) -> Tensor:
    """A loss of all outputs."""
    tensors = outputs.values() if isinstance(outputs, dict) else [outputs]
    return torch.stack([tensor.square().mean() for tensor in tensors]).sum()
