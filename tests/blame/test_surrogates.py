"""Derivatives that are those of another function on purpose: named by the user, per class of `autograd.Function`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gradvet
from gradvet.core.results import Verdict
from gradvet.errors import InvalidProblemError
from tests.functions import with_vjp


class Spike(torch.autograd.Function):
    """A step with the derivative of a sigmoid."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return (x > 0.0).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(4.0 * x)
        return grad_output * 4.0 * s * (1.0 - s)


class Spiking(nn.Module):
    """Neurons over two steps of time: the potential falls where there was a spike."""

    def __init__(self, leak: Callable[[Tensor], Tensor] = lambda x: 0.9 * x) -> None:
        super().__init__()
        self.first, self.second, self.leak = nn.Linear(6, 10), nn.Linear(10, 3), leak

    def forward(self, x: Tensor) -> Tensor:
        potential, out = self.first(x), torch.zeros(())
        for _ in range(2):
            spikes = Spike.apply(potential - 0.5)
            potential, out = self.leak(potential) + self.first(x) - 0.5 * spikes, out + self.second(spikes)
        return out


def surrogate(x: Tensor) -> Tensor:
    return torch.sigmoid(4.0 * x)


def other(x: Tensor) -> Tensor:
    return torch.sigmoid(5.0 * x)


def model(*leak: Callable[[Tensor], Tensor]) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return Spiking(*leak).double(), torch.randn(4, 6, dtype=torch.float64)


def test_model_passes_with_the_surrogate_of_a_function_inside() -> None:
    report = gradvet.check(*model(), surrogate={Spike: surrogate}, seed=1)
    assert report.verdict is Verdict.PASS, str(report)
    assert any("surrogates: Spike" in note for note in report.notes)
    blamed = gradvet.blame(*model(), surrogate={Spike: surrogate}, seed=1)
    assert blamed.verdict is Verdict.PASS, str(blamed)


def test_wrong_surrogate_fails_and_the_function_is_blamed() -> None:
    assert gradvet.check(*model(), surrogate={Spike: other}, seed=1, checks=["reverse"], blame=False).failures
    culprit = gradvet.blame(*model(), surrogate={Spike: other}, seed=1).culprit
    assert culprit is not None
    assert "Spike" in culprit.what
    assert "pass surrogate=" not in culprit.cause


def test_stop_beside_a_surrogate_fails() -> None:
    stopped = model(lambda x: 0.9 * x.detach())
    assert gradvet.check(*stopped, surrogate={Spike: surrogate}, seed=1, checks=["reverse"], blame=False).failures


def test_finding_says_that_the_derivative_is_that_of_a_surrogate() -> None:
    culprit = gradvet.blame(*model(), seed=1).culprit
    assert culprit is not None
    assert "surrogate={Spike: function}" in culprit.cause


def test_mapping_of_anything_else_is_refused() -> None:
    with pytest.raises(InvalidProblemError, match=r"subclasses of autograd\.Function"):
        gradvet.check(*model(), surrogate={"Spike": surrogate})


def test_derivative_that_is_taken_as_given_is_named() -> None:
    report = gradvet.blame(*model(), stops="constant", seed=1)
    assert report.passed
    assert any("derivative taken as given" in note and "Spike" in note for note in report.notes)


class HookedQuantisation(nn.Module):
    """Rounded weights with the gradient of the weights, and a hook that halves it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 4))

    def forward(self, x: Tensor) -> Tensor:
        scale = self.weight.detach().abs().max() / 7.0
        weight = self.weight + (torch.round(self.weight / scale) * scale - self.weight).detach()
        weight.register_hook(lambda gradient: gradient / 2.0)
        return x @ weight.T


def test_hook_beside_accepted_stops_is_named() -> None:
    torch.manual_seed(3)
    report = gradvet.blame(HookedQuantisation().double(), torch.randn(5, 4).double(), seed=1, stops="constant")
    assert report.culprit is not None
    assert "register_hook" in report.culprit.what


class Softmax(torch.autograd.Function):
    """A softmax, which does not change if all its inputs change by the same; the backward pass lacks a term."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.softmax(-1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return ctx.saved_tensors[0] * g  # type: ignore[no-any-return]


class Attention(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Softmax.apply(x)  # type: ignore[no-any-return, no-untyped-call]


class Phase(torch.autograd.Function):
    """A product of complex numbers, without the conjugate in its backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * ctx.saved_tensors[0] * g  # type: ignore[no-any-return]


class Spectrum(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Phase.apply(torch.fft.fft(x)).abs()  # type: ignore[no-any-return, no-untyped-call]


@torch.library.custom_op("gradvet_blame::weighted_sum", mutates_args=())
def weighted_sum(tensors: list[Tensor], weight: float) -> Tensor:
    return torch.stack([weight**n * tensor for n, tensor in enumerate(tensors)]).sum(0)


weighted_sum.register_autograd(lambda ctx, g: ([g, g], None))


class Summed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return weighted_sum([x, x.tanh()], 0.5)  # type: ignore[no-any-return]


@pytest.mark.parametrize("layer", [Attention, Spectrum, Summed])
def test_wrong_softmax_is_no_surrogate(layer: type[nn.Module]) -> None:
    torch.manual_seed(0)
    report = gradvet.blame(nn.Sequential(nn.Linear(4, 4), layer()), torch.randn(3, 4), stops="constant", seed=1)
    assert report.culprit is not None
    assert "surrogate" not in report.culprit.cause


class Loss(torch.autograd.Function):
    """A cross entropy in the thousands, of which single precision keeps no small change, with a wrong gradient."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        ctx.save_for_backward(logits, targets)
        return F.cross_entropy(logits, targets, reduction="sum") + 1e4

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:  # type: ignore[override]
        logits, targets = ctx.saved_tensors
        return g * (logits.softmax(-1) - 0.5 * F.one_hot(targets, logits.shape[-1])), None


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        return Loss.apply(self.layer(x), targets)  # type: ignore[no-any-return, no-untyped-call]


@pytest.mark.parametrize("stops", ["follow", "constant"])
def test_large_loss_in_single_precision_is_no_surrogate(stops: Any) -> None:
    torch.manual_seed(0)
    report = gradvet.blame(Classifier(), (torch.randn(6, 4), torch.arange(6) % 3), stops=stops, seed=1)
    assert report.culprit is not None
    assert report.culprit.what == "autograd.Function Loss"
    assert "surrogate" not in report.culprit.cause


steep_spike = with_vjp(lambda x: (x > 0).to(x.dtype), lambda g, x: g / (1.0 + (20.0 * x) ** 2))


class SteepSpiking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(5, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        membrane, outputs = torch.zeros(8), []
        for _ in range(4):
            membrane = 0.9 * membrane + self.a(x)
            spikes = steep_spike(membrane - 1.0)
            membrane = membrane - spikes.detach()
            outputs.append(self.b(spikes))
        return torch.stack(outputs)


def test_steep_surrogates_pass_in_single_precision() -> None:
    torch.manual_seed(1)
    model, x = SteepSpiking(), 3.0 * torch.rand(3, 5)
    assert gradvet.blame(model, x, stops="constant", seed=1).verdict is Verdict.PASS
    assert gradvet.check(model, x, stops="constant", seed=1).verdict is Verdict.PASS


class Started(torch.autograd.Function):
    """x + t·x with a wrong derivative by t, a time that is zero."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, t: Tensor) -> Tensor:
        ctx.save_for_backward(x, t)
        return x + t * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:  # type: ignore[override]
        x, t = ctx.saved_tensors
        return g * (1.0 + t), -(g * x).sum()


class FromZero(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.start = nn.Linear(4, 3), nn.Parameter(torch.tensor(0.0))

    def forward(self, x: Tensor) -> Tensor:
        return Started.apply(self.layer(x), self.start)  # type: ignore[no-any-return, no-untyped-call]


@pytest.mark.parametrize("stops", ["follow", "constant"])
def test_argument_that_is_zero_is_no_reason_for_a_surrogate(stops: Any) -> None:
    torch.manual_seed(0)
    report = gradvet.blame(FromZero(), torch.randn(6, 4), stops=stops, seed=1)
    assert report.culprit is not None
    assert "surrogate" not in report.culprit.cause


class Scaled(nn.Module):
    """A linear map with a factor from its weight, behind `.data`: read, or multiplied into the weight itself."""

    def __init__(self, *, writes: bool) -> None:
        super().__init__()
        self.linear, self.writes = nn.Linear(3, 4).double(), writes

    def forward(self, x: Tensor) -> Tensor:
        shown = self.linear.weight.data
        if self.writes:
            shown.div_(shown.norm())
            return torch.tanh(self.linear(x))
        return torch.tanh(self.linear(x)) / shown.norm()


@pytest.mark.parametrize(("writes", "verdict"), [(False, Verdict.PASS), (True, Verdict.FAIL)])
def test_data_is_no_constant_where_the_model_writes_to_it(writes: bool, verdict: Verdict) -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 3, dtype=torch.float64)
    assert gradvet.blame(Scaled(writes=writes), x, stops="constant", seed=1).verdict is verdict
    assert (gradvet.check(Scaled(writes=writes), x, stops="constant", seed=1).verdict is Verdict.PASS) is not writes
