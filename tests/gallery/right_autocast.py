"""Right functions of mixed precision: autocast, frozen modules of another dtype, modules with buffers alone.

Inputs are float32. The reference is the same function in float64 without autocast; where bfloat16 is inside, a gradient
is right within the roundoff of bfloat16.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.gallery import proofs
from tests.gallery.case import Case, Function, Inputs, right
from tests.gallery.inputs import normal

F32, BF16 = torch.float32, torch.bfloat16
COARSE = 4e-2
"""Relative error of a gradient with a few roundings to bfloat16 on its way."""


def autocast(function: Function) -> Function:
    """The whole function under bfloat16 autocast."""

    def cast(*inputs: Any) -> Any:
        with torch.autocast("cpu", dtype=BF16):
            return function(*inputs)

    return cast


def product(x: Tensor, weight: Tensor) -> Tensor:
    return x @ weight


def network(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
    return torch.tanh(x @ first) @ second


def network_with_cast_layer(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """The first product under autocast, the rest in the dtype of the data."""
    with torch.autocast("cpu", dtype=BF16):
        hidden = x @ first
    return torch.tanh(hidden.to(x.dtype)) @ second


def network_with_exempt_layer(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """The second product is exempt from an autocast around it."""
    with torch.autocast("cpu", dtype=BF16):
        hidden = torch.tanh(x @ first)
        with torch.autocast("cpu", enabled=False):
            return hidden.to(second.dtype) @ second


def convolution(x: Tensor, weight: Tensor) -> Tensor:
    return F.gelu(F.conv1d(x, weight, padding=1))


def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return torch.softmax(query @ key.mT / 2, -1) @ value


def sine(x: Tensor) -> Tensor:
    """Nothing in it is subject to autocast."""
    return torch.sin(x) * x


def model(dtype: torch.dtype) -> nn.Module:
    """A small network with the same frozen parameters at every call, up to their rounding to bfloat16."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    return layers.to(BF16).to(dtype).requires_grad_(False)


def model_under_autocast() -> Function:
    """Float32 parameters, captured."""
    return autocast(model(F32))


def frozen_in_bfloat16() -> Function:
    """A frozen bfloat16 model between float32 tensors."""
    layers = model(BF16)
    return lambda x: layers(x.to(BF16)).to(x.dtype)


WEIGHT = model(BF16)[0].weight


def adapted(x: Tensor, adapter: Tensor) -> Tensor:
    """A frozen bfloat16 layer with a trained float32 adapter beside it."""
    return F.linear(x.to(BF16), WEIGHT).to(x.dtype) + x @ adapter


def adapted_exactly(x: Tensor, adapter: Tensor) -> Tensor:
    return F.linear(x, WEIGHT.to(x.dtype)) + x @ adapter


def classified(x: Tensor) -> Tensor:
    """Probabilities in float32 of a frozen bfloat16 layer."""
    return torch.softmax(F.linear(x.to(BF16), WEIGHT).to(x.dtype), -1)


def classified_exactly(x: Tensor) -> Tensor:
    return torch.softmax(F.linear(x, WEIGHT.to(x.dtype)), -1)


def model_exactly(x: Tensor) -> Tensor:
    return model(x.dtype)(x)


class FourierFeatures(nn.Module):
    """No parameters; fixed frequencies in a buffer."""

    frequencies: Tensor

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.register_buffer("frequencies", torch.randn(3, 5, generator=generator))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([torch.sin(x @ self.frequencies), torch.cos(x @ self.frequencies)], -1)


class Standardised(nn.Module):
    """Subtracts a stored mean and divides by a stored deviation."""

    mean: Tensor
    deviation: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.2, -0.4, 1.1, 0.0]))
        self.register_buffer("deviation", torch.tensor([0.9, 1.3, 0.4, 2.0]))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh((x - self.mean) / self.deviation)


class Blurred(nn.Module):
    """A fixed filter."""

    weights: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weights", torch.tensor([[[0.25, 0.5, 0.25]]]))

    def forward(self, x: Tensor) -> Tensor:
        return F.conv1d(x, self.weights, padding=1) ** 2


def in_double(make: type[nn.Module]) -> Function:
    """The module with its buffers in the dtype of its input."""
    return lambda x: make().to(x.dtype)(x)


def coarse(name: str, why: str, function: Function, reference: Function, *shapes: tuple[int, ...]) -> Case:
    return _case(name, why, lambda: (function, normal(*shapes, dtype=F32)), reference, COARSE)


def of_buffers(name: str, why: str, make: type[nn.Module], *shapes: tuple[int, ...]) -> Case:
    return _case(name, why, lambda: (make(), normal(*shapes, dtype=F32)), in_double(make), None)


def _case(name: str, why: str, build: Any, reference: Function, resolution: float | None) -> Case:
    facts = {"dtype": F32, "drop_in": False, "proof": proofs.precision, "resolution": resolution}
    return right(name, why, build, reference=reference, **facts)


def _model(make: Any) -> Any:
    def build() -> tuple[Function, Inputs]:
        return make(), normal((4, 6), dtype=F32)

    return build


CASES = (
    coarse("product_under_autocast", "The output is bfloat16.", autocast(product), product, (3, 5), (5, 4)),
    coarse("network_under_autocast", "Two products and a tanh.", autocast(network), network, (4, 6), (6, 8), (8, 3)),
    coarse("convolution_under_autocast", "A convolution.", autocast(convolution), convolution, (2, 3, 7), (4, 3, 3)),
    coarse(
        "attention_under_autocast",
        "Products in bfloat16, the softmax in float32.",
        autocast(attention),
        attention,
        (3, 4),
        (5, 4),
        (5, 2),
    ),
    coarse(
        "network_with_one_layer_under_autocast",
        "Autocast inside the function; the output is float32.",
        network_with_cast_layer,
        network,
        (4, 6),
        (6, 8),
        (8, 3),
    ),
    coarse(
        "network_with_one_layer_exempt_from_autocast",
        "An exemption inside an autocast.",
        network_with_exempt_layer,
        network,
        (4, 6),
        (6, 8),
        (8, 3),
    ),
    coarse("sine_under_autocast", "Autocast has nothing to cast here.", autocast(sine), sine, (6,)),
    _case("model_under_autocast", "Captured float32 parameters.", _model(model_under_autocast), model_exactly, COARSE),
    _case(
        "frozen_bfloat16_model",
        "A bfloat16 model between float32 tensors.",
        _model(frozen_in_bfloat16),
        model_exactly,
        COARSE,
    ),
    coarse(
        "adapter_beside_frozen_bfloat16_layer",
        "A trained float32 matrix beside a frozen bfloat16 one.",
        adapted,
        adapted_exactly,
        (4, 6),
        (6, 8),
    ),
    coarse("softmax_of_frozen_bfloat16_layer", "Float32 after bfloat16.", classified, classified_exactly, (4, 6)),
    of_buffers("fourier_features", "Frequencies in a float32 buffer and no parameter.", FourierFeatures, (4, 3)),
    of_buffers("standardised_by_buffers", "Mean and deviation are buffers.", Standardised, (3, 4)),
    of_buffers("blurred_by_buffer", "A fixed filter is a buffer.", Blurred, (2, 1, 7)),
)
