"""Right modules of torch.nn: as a function of their input, of their parameters, or with parameters captured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.gallery.case import Build, Case, Function, Inputs, right
from tests.gallery.inputs import normal


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    """The module in float64, with the same parameters at every call."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make().double()


def of_input(make: Callable[[], nn.Module], *shapes: tuple[int, ...]) -> Build:
    """The module itself; its parameters are captured and not differentiated."""

    def build() -> tuple[Function, Inputs]:
        return seeded(make).requires_grad_(False), normal(*shapes)

    return build


def of_everything(make: Callable[[], nn.Module], *shapes: tuple[int, ...]) -> Build:
    """The module as a function of its inputs and parameters."""

    def build() -> tuple[Function, Inputs]:
        module = seeded(make)
        names = [name for name, _ in module.named_parameters()]

        def function(*values: Tensor) -> Any:
            inputs, weights = values[: len(shapes)], values[len(shapes) :]
            return torch.func.functional_call(module, dict(zip(names, weights, strict=True)), inputs)

        weights = tuple(weight.detach().clone().requires_grad_() for weight in module.parameters())
        return function, (*normal(*shapes), *weights)

    return build


def with_captured_parameters() -> tuple[Function, Inputs]:
    """The checker gets the module's own parameters; the function takes no notice of its arguments."""
    module = seeded(lambda: nn.Linear(3, 2))
    (x,) = normal((4, 3))
    x = x.detach()
    return lambda *parameters: module(x), tuple(module.parameters())


class Attention(nn.Module):
    """Self-attention: one input in three roles."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.heads(x, x, x, need_weights=False)[0]


class Pairwise(nn.Module):
    """A convolution, a norm and a nonlinearity, with a shortcut around them."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(2, 2, 3, padding=1)
        self.norm = nn.GroupNorm(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.norm(self.convolution(x)))


class Flattened(nn.Module):
    """A recurrent module whose output and states stand side by side."""

    def __init__(self, recurrent: nn.Module) -> None:
        super().__init__()
        self.recurrent = recurrent

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        output, states = self.recurrent(x)
        return (output, *states) if isinstance(states, tuple) else (output, states)


def encoder_layer() -> nn.Module:
    return nn.TransformerEncoderLayer(4, 2, dim_feedforward=3, dropout=0.0, activation="gelu", batch_first=True)


def normed_linear() -> nn.Module:
    return nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))


def _input(name: str, why: str, make: Callable[[], nn.Module], *shapes: tuple[int, ...], order: int = 1) -> Case:
    return right(name, why, of_input(make, *shapes), order=order)


def _all(name: str, why: str, make: Callable[[], nn.Module], *shapes: tuple[int, ...], order: int = 1) -> Case:
    return right(name, why, of_everything(make, *shapes), order=order)


CASES = (
    _input("linear_module", "The simplest one.", lambda: nn.Linear(3, 2), (4, 3), order=2),
    _all("linear_module_with_parameters", "Weight and bias are inputs.", lambda: nn.Linear(3, 2), (4, 3), order=2),
    _input("lstm_module", "A tensor and a pair of states come out.", lambda: Flattened(nn.LSTM(2, 3)), (4, 1, 2)),
    _all(
        "lstm_module_with_parameters",
        "Four gates share their weights over time.",
        lambda: Flattened(nn.LSTM(2, 2)),
        (3, 1, 2),
    ),
    _input("gru_module", "A gate that closes.", lambda: Flattened(nn.GRU(2, 3)), (4, 1, 2)),
    _input("attention_module", "Query, key and value from one input.", Attention, (1, 3, 4)),
    _all("attention_module_with_parameters", "Packed weights.", Attention, (1, 3, 4)),
    _input("layer_norm_module", "Gain and shift fixed.", lambda: nn.LayerNorm(4), (3, 4), order=2),
    _all("layer_norm_module_with_parameters", "Gain and shift as inputs.", lambda: nn.LayerNorm(4), (3, 4), order=2),
    _input("batch_norm_module_in_training", "Buffers move at every call.", lambda: nn.BatchNorm1d(3), (4, 3), order=2),
    _input(
        "batch_norm_module_in_evaluation", "Buffers stand still.", lambda: nn.BatchNorm1d(3).eval(), (4, 3), order=2
    ),
    _all("residual_block", "A composite with five parameters.", Pairwise, (1, 2, 5)),
    _all("encoder_layer", "Twelve parameters, gelu and two norms.", encoder_layer, (1, 2, 4)),
    _input("convolution_module", "Two dimensions.", lambda: nn.Conv2d(2, 2, 3, padding=1), (1, 2, 4, 3), order=2),
    _all("bilinear_module", "Two inputs.", lambda: nn.Bilinear(2, 3, 2), (4, 2), (4, 3), order=2),
    _all("weight_norm_module", "A parametrised weight.", normed_linear, (4, 3)),
    right(
        "captured_parameters",
        "The arguments are the parameters that the module already holds.",
        with_captured_parameters,
    ),
)
