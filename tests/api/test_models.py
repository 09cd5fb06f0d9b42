"""Whole models in float32 and in training mode: right ones pass, wrong ones fail with the parameter named."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional

import gradvet
from benchmarks.architectures import GPT, GraphNetwork, LSTMModel, UNet, ViT
from gradvet import Verdict
from gradvet.api import points
from tests.functions import with_derivative, with_vjp


def tokens(vocabulary: int) -> Tensor:
    return torch.randint(vocabulary, (2, 6), generator=torch.Generator().manual_seed(1))


def images(size: int) -> Tensor:
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1))


def graph() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        "nodes": torch.randn(14, 5, generator=generator),
        "edges": torch.randint(14, (2, 30), generator=generator),
        "member": torch.arange(14) // 7,
    }


MODELS: dict[str, Callable[[], tuple[nn.Module, Any]]] = {
    "language model": lambda: (GPT(19, 8, 16, 2, 2), tokens(19)),
    "vision transformer": lambda: (ViT(16, 8, 16, 2, 1), images(16)),
    "convolutions with batch norm": lambda: (UNet(4, 2), images(8)),
    "recurrent network": lambda: (LSTMModel(19, 12, 2), tokens(19)),
    "graph network": lambda: (GraphNetwork(5, 12, 1), graph()),
}

MOST_FORWARDS = 400
"""Forward passes of a check, whatever the number of parameters."""


@pytest.mark.parametrize("name", MODELS)
def test_right_model_passes_in_float32_and_training_mode(name: str) -> None:
    torch.manual_seed(3)
    model, given = MODELS[name]()
    report = gradvet.check(model, (given,), seed=2)
    assert report.verdict is Verdict.PASS, report
    assert {row.input for row in report.ledger} >= {name for name, _ in model.named_parameters()}
    assert report.cost.forwards <= MOST_FORWARDS


class Normalised(nn.Module):
    """Linear layers, each with a bias that the batch norm behind it takes away."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 6) for _ in range(depth)])
        self.norms = nn.ModuleList([nn.BatchNorm1d(6) for _ in range(depth)])

    def forward(self, x: Tensor) -> Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + torch.tanh(norm(layer(x)))
        return x


@pytest.mark.parametrize("shift", [0.0, 1e-5])
def test_biases_before_batch_norms_pass_in_few_evaluations(shift: float) -> None:
    """Biases of 1e-5 behind the norms are faint too, but not as faint: they are resolved first."""
    torch.manual_seed(0)
    model = Normalised(6)
    for norm in model.norms:
        nn.init.constant_(norm.bias, shift)  # type: ignore[arg-type]
    report = gradvet.check(model, torch.randn(9, 6), seed=1, checks=["reverse", "precision"])
    assert report.verdict is Verdict.PASS, report
    assert report.cost.forwards <= MOST_FORWARDS


def with_small_biases() -> nn.Module:
    """Layers whose biases are near zero, as after one step of an optimizer."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.Tanh()) for _ in range(4)))
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter, std=1e-5)
    return model


def test_small_biases_are_screened_at_once() -> None:
    """Sweeps instead of the screen take 125 forward passes."""
    report = gradvet.check(with_small_biases(), torch.randn(5, 6), seed=1, checks=["reverse", "forward"])
    assert report.verdict is Verdict.PASS, report
    assert report.cost.forwards <= 60


def test_lost_gradient_of_a_small_bias_fails() -> None:
    model = with_small_biases()
    detached(model, "1.1.bias")
    assert gradvet.check(model, torch.randn(5, 6), seed=1, checks=["reverse"]).verdict is Verdict.FAIL


def detached(model: nn.Module, path: str) -> None:
    """The parameter at a path takes part in the forward pass without a gradient."""
    owner, _, name = path.rpartition(".")
    module = model.get_submodule(owner)
    forward = module.forward

    def without(*args: Any, **kwargs: Any) -> Any:
        own = getattr(module, name)
        state = {key: value.detach() if value is own else value for key, value in module.named_parameters()}
        module.forward = forward  # type: ignore[method-assign]
        try:
            return torch.func.functional_call(module, state, args, kwargs)
        finally:
            module.forward = without  # type: ignore[method-assign]

    module.forward = without  # type: ignore[method-assign]


widened = with_vjp(lambda x: x.view_as(x), lambda v, x: 1.03 * v)
"""The identity with a gradient that is 3 % too large."""


def scaled(model: nn.Module, path: str) -> None:
    """The gradient of the parameter at a path is 3 % too large."""
    owner, _, name = path.rpartition(".")
    torch.nn.utils.parametrize.register_parametrization(model.get_submodule(owner), name, _Scaled(), unsafe=True)


class _Scaled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = widened(x)
        return out


WRONG = [
    ("language model", detached, "blocks.1.attn.out.weight", "blocks.1.attn.out.weight"),
    ("graph network", scaled, "layers.0.value.weight", "layers.0.value.parametrizations.weight.original"),
]


@pytest.mark.parametrize(("name", "spoil", "path", "expected"), WRONG)
def test_wrong_parameter_of_a_model_is_named(name: str, spoil: Any, path: str, expected: str) -> None:
    torch.manual_seed(3)
    model, given = MODELS[name]()
    spoil(model, path)
    # tests/blame is about the search for the piece.
    report = gradvet.check(model, (given,), seed=2, checks=["reverse"], blame=False)
    assert report.verdict is Verdict.FAIL
    failed = next(finding for finding in report.failures if finding.check == "reverse")
    assert failed.mismatches[0].input.name == expected
    assert report.cost.forwards <= 2 * MOST_FORWARDS


SEEN: list[tuple[bool, bool]] = []

FIRST_CALLS = 4
"""Calls that make a problem, or look at its operators."""


class Remembering(nn.Module):
    """Remembers for each call whether it had dual numbers, and whether an activation outlived its use."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        activation = torch.exp(self.layer(x))
        kept = StorageWeakRef(activation.untyped_storage())
        is_dual = forward_ad.unpack_dual(activation).tangent is not None
        result = torch.sin(activation)
        del activation
        SEEN.append((is_dual, not kept.expired()))
        return result


def test_values_and_tangents_of_a_module_keep_no_activations() -> None:
    SEEN.clear()
    report = gradvet.check(Remembering(), torch.ones(4, 3), seed=1, checks=["reverse", "forward"])
    assert report.verdict is Verdict.PASS
    assert {kept for is_dual, kept in SEEN if is_dual} == {False}
    with_graph = sum(kept for _, kept in SEEN)
    assert 0 < with_graph <= report.cost.vjps + FIRST_CALLS < len(SEEN)


def test_module_that_takes_gradients_itself_passes_in_forward_mode() -> None:
    class Slope(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            value = torch.tanh(self.layer(x)).square().sum()
            return torch.autograd.grad(value, self.layer.weight, create_graph=True)[0]

    report = gradvet.check(Slope(), torch.ones(2, 3), seed=1, checks=["reverse", "forward"])
    assert report.verdict is Verdict.PASS, report
    assert any(row.mode == "forward" and row.compared for row in report.ledger)


class RequiringGrad(nn.Module):
    """Makes its input require grad, which torch allows for leaves alone, as the speech models of transformers do."""

    def __init__(self, *, is_wrong: bool) -> None:
        super().__init__()
        self.layer, self.is_wrong = nn.Linear(3, 2), is_wrong

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, None]
        x.requires_grad = True
        weight = self.layer.weight
        return functional.linear(x, weight.detach() if self.is_wrong else weight, self.layer.bias).tanh()


def test_model_that_refuses_inputs_that_require_grad_passes() -> None:
    report = gradvet.check(RequiringGrad(is_wrong=False), torch.ones(4, 3), seed=1)
    assert report.verdict is Verdict.PASS
    assert any("if its inputs require grad" in note for note in report.notes)
    assert {row.input for row in report.ledger} == {"layer.weight", "layer.bias"}
    wrong = gradvet.check(RequiringGrad(is_wrong=True), torch.ones(4, 3), seed=1)
    assert wrong.verdict is Verdict.FAIL
    assert "detach" in wrong.findings[0].headline
    with pytest.raises(RuntimeError, match="leaf"):
        gradvet.check(RequiringGrad(is_wrong=False), torch.ones(4, 3, requires_grad=True), seed=1)


class KeepingScale(nn.Module):
    """Keeps a number with its parameter, as parametrisations that transfer learning rates do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.layer.weight.scale = 0.5  # type: ignore[attr-defined]

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).tanh() * self.layer.weight.scale  # type: ignore[no-any-return]


def test_parameters_keep_their_attributes() -> None:
    assert gradvet.check(KeepingScale(), torch.randn(4, 3), seed=1).verdict is Verdict.PASS


class Sampling(RequiringGrad):
    """Rounds in code of torch, which stops the gradient deliberately, or in code of its own."""

    def forward(self, x: Tensor) -> Tensor:
        chances = super().forward(x).softmax(-1)
        if self.is_wrong:
            return chances + (chances.round() - chances).detach()
        return functional.gumbel_softmax(chances, hard=True)


@pytest.mark.parametrize(("is_wrong", "settings"), [(False, {}), (True, {"stops": "constant"})])
def test_stops_are_held_in_a_model_that_refuses_inputs_that_require_grad(is_wrong: bool, settings: Any) -> None:
    model = Sampling(is_wrong=False)
    model.is_wrong = is_wrong
    assert gradvet.check(model, torch.randn(4, 3), seed=1, **settings).verdict is Verdict.PASS


rectifier = with_vjp(lambda x: x.clamp(min=0.0), lambda v, x: v * (x > 0.0))


class Rectified(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = rectifier(layer(x)) * x.sin()
        return x


def test_evaluations_at_generated_points_of_a_model_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, given = Rectified(), torch.randn(3, 4)

    def forwards(limit: int) -> int:
        monkeypatch.setattr(points, "POINT_CALLS", limit)
        return gradvet.check(model, given, seed=1, checks=["reverse", "points"]).cost.forwards

    few, many = forwards(1), forwards(10**6)
    assert few < many / 2, (few, many)


def test_part_of_a_model_that_fits_into_memory_is_compared_in_float32_too() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 40))
    report = gradvet.check(model, torch.randn(2, 4), seed=1, budget=gradvet.Budget(bytes=16 * 8 * 100), points=None)
    assert all(finding.verdict is Verdict.PASS for finding in report.findings)
    compared = [row for row in report.ledger if row.compared]
    assert "2.weight" not in {row.input for row in compared}
    assert {row.precision for row in compared} == {"given", "float64"}


def test_backward_hook_of_a_module_gives_no_warning_where_its_inputs_are_frozen() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh()).double()
    model.register_full_backward_hook(lambda *given: None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        report = gradvet.check(model, torch.randn(2, 4, dtype=torch.float64), points=None)
    assert "partial_requires_grad" in report.exercised
    assert not [str(one.message) for one in caught if "backward hook" in str(one.message)]


def cosine(x: Tensor) -> Tensor:
    return x.cos()


exact_sine = with_derivative(torch.sin, cosine)
wrong_sine = with_derivative(torch.sin, torch.sin)


class Scale(nn.Module):
    """x·exp(scale), with a scale that its first data set; `every_time` limits it, as `max_norm` does."""

    def __init__(self, function: Any, *, every_time: bool) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((4,), 2.0))
        self.every_time, self.function = every_time, function
        self.register_buffer("is_ready", torch.tensor(False))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            if self.every_time:
                self.scale.clamp_(max=1.0)
            elif not self.is_ready:
                self.scale.copy_(-x.std(0).log())
                self.is_ready.fill_(True)
        return self.function(x * self.scale.exp())  # type: ignore[no-any-return]


@pytest.mark.parametrize("function", [torch.tanh, exact_sine], ids=["builtin", "Function"])
def test_flow_that_is_initialised_by_its_first_data_passes(function: Any) -> None:
    model, x = Scale(function, every_time=False), torch.randn(7, 4, generator=torch.Generator().manual_seed(1))
    report = gradvet.check(model, (x,), seed=1)
    assert report.verdict is Verdict.PASS, report
    assert "the first call sets scale: the module was checked as it is after that call" in report.notes
    assert not model.is_ready
    assert bool((model.scale == 2.0).all())


def test_wrong_flow_that_is_initialised_by_its_first_data_fails() -> None:
    model, x = Scale(wrong_sine, every_time=False), torch.randn(7, 4, generator=torch.Generator().manual_seed(1))
    assert {found.check for found in gradvet.check(model, (x,), seed=1).failures} >= {"reverse"}


def test_module_that_limits_its_parameters_in_every_call_is_not_decided() -> None:
    model, x = Scale(torch.tanh, every_time=True), torch.randn(7, 4, generator=torch.Generator().manual_seed(1))
    report = gradvet.check(model, (x,), seed=1)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "overwrites scale" in str(report)
    assert bool((model.scale == 2.0).all())
