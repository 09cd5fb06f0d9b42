"""Right models of ordinary kinds, trained for some steps, pass in float32; the same with a fault fail.

Tests what roundoff does to kinks and to sums that cancel, and stops that are part of a method of torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import gradvet
from gradvet.core.results import Verdict
from gradvet.frontends.torch.blame.sketches import checksum
from tests.functions import with_vjp

spectral_norm = nn.utils.parametrizations.spectral_norm

Relu = Callable[[Tensor], Tensor]


class Convolutions(nn.Module):
    """Biases before batch norm have a gradient of zero."""

    def __init__(self, relu: Relu = functional.relu) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second, self.head = nn.Conv2d(8, 6, 3, padding=1), nn.Linear(6 * 4, 5)
        self.relu = relu

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(self.relu(self.norm(self.first(x))), 2)
        x = functional.max_pool2d(self.relu(self.second(x)), 2)
        out: Tensor = self.head(x.flatten(1))
        return out


class Margins(nn.Module):
    """One of the losses is exactly zero as soon as the margin is kept."""

    def __init__(self, relu: Relu = functional.relu) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 16), nn.Linear(16, 4)
        self.relu = relu

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        near, far = (self.second(self.relu(self.first(part))) for part in x.chunk(2))
        distance = (near - far).square().sum(-1)
        return functional.relu(2.0 - distance).mean(), functional.relu(distance - 1e4).mean()


class Critic(nn.Module):
    """Spectral norm: its vectors are constants, though they depend on the weights."""

    def __init__(self, relu: Relu | None = None) -> None:
        super().__init__()
        self.first, self.second = spectral_norm(nn.Conv2d(3, 6, 3, 2)), spectral_norm(nn.Linear(6 * 9, 2))
        self.relu = relu or nn.LeakyReLU(0.2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(self.relu(self.first(x)).flatten(1))
        return out


class Choice(nn.Module):
    """A discrete choice with the gradient of a soft one."""

    def __init__(self, relu: Relu = functional.relu) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 12), nn.Linear(4, 2)
        self.relu = relu

    def forward(self, x: Tensor) -> Tensor:
        logits = self.relu(self.first(x)).view(-1, 3, 4)
        out: Tensor = self.second(functional.gumbel_softmax(logits, tau=0.7, hard=True)).sum(1)
        return out


MODELS: dict[str, tuple[Callable[..., nn.Module], tuple[int, ...]]] = {
    "convolutions": (Convolutions, (4, 3, 8, 8)),
    "margins": (Margins, (8, 6)),
    "critic": (Critic, (4, 3, 7, 7)),
    "choice": (Choice, (5, 6)),
}


def trained(name: str, *relu: Relu) -> tuple[nn.Module, Tensor]:
    """A model after some steps of AdamW, and its inputs."""
    make, shape = MODELS[name]
    torch.manual_seed(1)
    model, x = make(*relu), torch.randn(shape)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(20):
        optimizer.zero_grad()
        outputs = model(x)
        losses = outputs if isinstance(outputs, tuple) else (outputs.square().mean(),)
        torch.stack(losses).sum().backward()
        optimizer.step()
    optimizer.zero_grad()
    return model, x


def scaled_relu(v: Tensor, x: Tensor) -> Tensor:
    return 1.01 * v * (x > 0.0)


def one_entry_lost(v: Tensor, x: Tensor) -> Tensor:
    gradient = (v * (x > 0.0)).flatten()
    return gradient.index_fill(0, gradient.abs().argmax(), 0.0).view(x.shape)


@pytest.mark.parametrize("name", MODELS)
def test_right_model_passes_after_training(name: str) -> None:
    report = gradvet.check(*trained(name), seed=1, checks=["reverse", "precision"])
    assert report.verdict is Verdict.PASS, str(report)
    stopped = [note for note in report.notes if note.startswith("held constant, as torch's own code")]
    assert bool(stopped) is (name in ("critic", "choice"))


@pytest.mark.parametrize(
    ("name", "vjp"),
    [
        *(("convolutions", vjp) for vjp in (scaled_relu, one_entry_lost)),
        *(("margins", vjp) for vjp in (scaled_relu, one_entry_lost)),
        ("choice", one_entry_lost),
    ],
)
def test_model_with_a_wrong_function_fails_after_training(name: str, vjp: Any) -> None:
    report = gradvet.check(*trained(name, with_vjp(torch.relu, vjp)), seed=1, checks=["reverse"], blame=False)
    assert report.verdict is Verdict.FAIL, str(report)


@pytest.mark.parametrize("name", ["margins", "choice"])
def test_nothing_is_blamed_in_a_right_model_after_training(name: str) -> None:
    report = gradvet.blame(*trained(name), seed=1)
    assert report.culprits == ()
    assert report.verdict is Verdict.PASS, str(report)


def test_sample_of_a_distribution_is_still_a_stop() -> None:
    class Sampled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mean = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return torch.distributions.Normal(self.mean(x), 1.0).sample() * x.sum()

    report = gradvet.check(Sampled(), torch.randn(2, 4), seed=1, blame=False)
    assert report.failures


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.complex64, torch.bool, torch.int8]
)
def test_checksum_depends_on_every_bit_and_place_and_not_on_strides(dtype: torch.dtype) -> None:
    x = (torch.arange(12) % 5).to(dtype).reshape(3, 4)
    assert checksum(x) == checksum(x.t().contiguous().t()) == checksum(x.clone())
    assert checksum(x) != checksum(x.flip(0))
    other = x.clone()
    other.view(-1).view(torch.uint8)[-1] ^= 1
    assert checksum(x) != checksum(other)


def test_checksum_of_infinite_values_and_of_nan_is_that_of_their_bits() -> None:
    x = torch.tensor([float("nan"), float("inf"), -0.0])
    assert checksum(x) == checksum(x.clone())
    assert checksum(x) != checksum(torch.tensor([float("nan"), float("inf"), 0.0]))


class Padded(nn.Module):
    """The row of an embedding that `padding_idx` freezes counts in the mean; its gradient is zero by definition."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(6, 4, **settings), nn.Linear(4, 2)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.tokens(ids).mean(1))
        return out


@pytest.mark.parametrize(
    "settings", [{"padding_idx": 0}, {"padding_idx": -6, "sparse": True}, {"sparse": True}], ids=str
)
def test_gradient_that_torch_defines_for_an_embedding_passes(settings: dict[str, Any]) -> None:
    model, ids = Padded(**settings), torch.tensor([[1, 2, 0], [3, 3, 0]])
    nn.init.normal_(model.tokens.weight)
    report = gradvet.check(model, ids, seed=1)
    assert report.verdict is Verdict.PASS, str(report)
    assert any("torch's own code stops the gradient there" in note for note in report.notes) == (
        "padding_idx" in settings
    )
    assert gradvet.blame(model, ids, seed=1).verdict is Verdict.PASS


@pytest.mark.parametrize("dtypes", [None, (torch.float32, torch.bfloat16)])
@pytest.mark.parametrize("padding_idx", [0, None])
def test_kernel_is_compared_with_the_gradient_that_torch_defines_for_padding(padding_idx: Any, dtypes: Any) -> None:
    ids = torch.tensor([[1, 2, 0], [3, 3, 0]])

    def reference(weight: Tensor) -> Tensor:
        return functional.embedding(ids, weight, padding_idx=0).tanh()

    def kernel(weight: Tensor) -> Tensor:
        return functional.embedding(ids, weight, padding_idx=padding_idx).tanh()

    weight = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
    report = gradvet.check(kernel, weight, reference=reference, seed=1, dtypes=dtypes)
    assert report.verdict is (Verdict.PASS if padding_idx == 0 else Verdict.FAIL), str(report)
    assert {finding.check for finding in report.failures} <= {"reference"}
