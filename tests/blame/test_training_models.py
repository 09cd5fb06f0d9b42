"""Models as they are trained: sampling, quantisation, adapters, penalties. Right ones pass, wrong ones are named.

Tests `frontends/torch/blame/stops.py`, `frontends/torch/blame/straight_through.py` and `frontends/torch/branches.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import gradvet
from gradvet import Verdict
from gradvet.frontends.torch.blame import module_tree
from tests.frontends.torch import needs_private_names
from tests.functions import compiler_scaling_gradients, with_vjp

CONSTANT = {"stops": "constant"}


class Policy(nn.Module):
    """A policy gradient: the score of actions that were sampled."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.log_scale = nn.Linear(5, 2), nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        actions = Normal(self.mean(x), self.log_scale.exp())
        return -(actions.log_prob(actions.sample()).sum(-1) * x.sum(-1)).mean()


class ActorCritic(Policy):
    """The same with an advantage that is detached on purpose."""

    def forward(self, x: Tensor) -> Tensor:
        actions = Normal(self.mean(x), self.log_scale.exp())
        advantage = (x.sum(-1) - self.mean(x)[:, 0]).detach()
        return -(actions.log_prob(actions.sample()).sum(-1) * advantage).mean()


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward((x / scale).abs() <= 8)
        return torch.round(x / scale).clamp(-8, 8) * scale

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * ctx.saved_tensors[0], None


class Quantised(nn.Module):
    """Weights through a straight-through estimator of their rounding."""

    def __init__(self, activation: Any = torch.tanh) -> None:
        super().__init__()
        self.layer, self.head, self.activation = nn.Linear(4, 6), nn.Linear(6, 2), activation

    def forward(self, x: Tensor) -> Tensor:
        weight = Rounded.apply(self.layer.weight, 0.07)  # type: ignore[no-untyped-call]
        out: Tensor = self.head(self.activation(functional.linear(x, weight, self.layer.bias)))
        return out


class FakeQuantised(Quantised):
    """The same by torch's own operator."""

    def forward(self, x: Tensor) -> Tensor:
        weight = torch.fake_quantize_per_tensor_affine(self.layer.weight, 0.05, 0, -128, 127)
        out: Tensor = self.head(torch.tanh(functional.linear(x, weight, self.layer.bias)))
        return out


class Adapter(nn.Module):
    """A frozen layer with a low-rank addition, whose dropout mask is drawn in the order of the input's memory."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.dropout = nn.Linear(4, 3).requires_grad_(False), nn.Dropout(0.5)
        self.down, self.up = nn.Linear(4, 2, bias=False), nn.Parameter(torch.zeros(3, 2))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x) + self.down(self.dropout(x)) @ self.up.t()
        return out


class Recomputed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lift, self.block, self.head = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(checkpoint(self.block, self.lift(x), use_reentrant=True))
        return out


class Decay(nn.Module):
    """Tokens alone as inputs, and exponentials of a parameter, which overflow at a thousand times its size."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.rate = nn.Embedding(6, 3), nn.Parameter(torch.tensor([0.0, 0.7, 1.1]))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        return custom_tanh(x * torch.exp(-x.square() * self.rate.exp()))


custom_tanh = with_vjp(torch.tanh, lambda v, x: v * (1 - torch.tanh(x) ** 2))


RIGHT: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "policy gradient": (lambda: Policy().double(), lambda: torch.randn(6, 5).double(), {}),
    "actor and critic": (lambda: ActorCritic().double(), lambda: torch.randn(6, 5).double(), CONSTANT),
    "straight-through estimator": (Quantised, lambda: torch.randn(5, 4), CONSTANT),
    "fake quantisation": (FakeQuantised, lambda: torch.randn(5, 4), {}),
    "adapter": (Adapter, lambda: torch.randn(4, 4), {}),
    "reentrant checkpoint": (Recomputed, lambda: torch.randn(5, 3), {}),
    "tokens": (Decay, lambda: torch.tensor([1, 3, 4]), {}),
}


@needs_private_names
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", RIGHT)
def test_right_model_passes(name: str) -> None:
    make, inputs, settings = RIGHT[name]
    torch.manual_seed(0)
    report = gradvet.check(make(), inputs(), seed=1, **settings)
    assert report.verdict is Verdict.PASS, f"{report}"


def test_sample_of_a_policy_is_named_as_a_constant() -> None:
    torch.manual_seed(0)
    report = gradvet.check(Policy(), torch.randn(6, 5), seed=1, checks=["reverse"])
    assert any("actions.sample()" in note for note in report.notes)


def test_function_beside_a_straight_through_estimator_is_blamed() -> None:
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return torch.tanh(x)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * (1 - ctx.saved_tensors[0])

    torch.manual_seed(0)
    report = gradvet.check(Quantised(lambda x: Wrong.apply(x)).double(), torch.randn(5, 4).double(), seed=1, **CONSTANT)
    assert "autograd.Function Wrong" in report.failures[0].headline


def test_wrong_module_beside_a_straight_through_estimator_is_blamed() -> None:
    """The derivative of the estimator is taken as given; what is around it is compared."""

    class Hooked(Quantised):
        def forward(self, x: Tensor) -> Tensor:
            y = super().forward(x)
            y.register_hook(lambda g: 2 * g)
            return y

    torch.manual_seed(0)
    report = gradvet.blame(Hooked().double(), torch.randn(5, 4).double(), seed=1, **CONSTANT)
    assert [culprit.what for culprit in report.culprits] == ["register_hook"], f"{report}"


class Soft(torch.autograd.Function):
    """Its second derivative is lost."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return functional.softplus(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * torch.sigmoid(ctx.saved_tensors[0].detach())


class Penalty(nn.Module):
    """A critic with a penalty on its gradient."""

    def __init__(self, activation: Any = functional.softplus, **settings: Any) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(3, 5), nn.Linear(5, 1)
        self.activation, self.settings = activation, settings

    def forward(self, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        y = self.outer(self.activation(self.inner(x)))
        (g,) = torch.autograd.grad(y.sum(), x, **self.settings)
        return y.mean() + (g.norm(dim=1) - 1).square().mean()


@pytest.mark.parametrize(
    ("model", "what", "line"),
    [
        (
            lambda: Penalty(lambda x: Soft.apply(x), create_graph=True),
            "autograd.Function Soft",
            "def backward(ctx: Any, g: Tensor)",
        ),
        (lambda: Penalty(retain_graph=True), "autograd.grad", "torch.autograd.grad(y.sum()"),
    ],
)
def test_wrong_gradient_penalty_is_named(model: Any, what: str, line: str) -> None:
    torch.manual_seed(0)
    (culprit,) = gradvet.blame(model().double(), torch.randn(4, 3).double(), seed=1).culprits
    assert culprit.place is not None
    assert (culprit.what, Path(culprit.place.file).name) == (what, Path(__file__).name)
    assert line in culprit.place.code


def test_right_gradient_penalty_passes() -> None:
    torch.manual_seed(0)
    report = gradvet.blame(Penalty(create_graph=True), torch.randn(4, 3), seed=1)
    assert report.verdict is Verdict.PASS, f"{report}"


def test_unregistered_parameter_is_named_whatever_self_is_called() -> None:
    class Loose(nn.Module):
        def __init__(this) -> None:  # noqa: N805
            super().__init__()
            this.layer = nn.Linear(3, 2)
            this.scales = [nn.Parameter(torch.ones(2))]

        def forward(this, x: Tensor) -> Tensor:  # noqa: N805
            out: Tensor = this.layer(x) * this.scales[0]
            return out

    (warning,) = gradvet.blame(Loose(), torch.randn(4, 3), seed=1).warnings
    assert warning.place is not None
    assert "this.scales = " in warning.place.code


def test_lost_gradient_of_equal_small_weights_fails() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.scale = nn.Linear(4, 4), nn.Parameter(torch.full((4,), 1e-6))

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = x + nn.Parameter(self.scale) * torch.tanh(self.inner(x))
            return out

    torch.manual_seed(0)
    report = gradvet.check(Scaled(), torch.randn(3, 4), seed=1, blame=False)
    assert {entry.input.name for entry in report.failures[0].mismatches} == {"scale"}


class Twins(nn.Module):
    """The smaller of two critics: the other one has no effect at the point, and gets one within a wide step."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(3, 1), nn.Linear(3, 1)
        with torch.no_grad():
            self.other.weight.copy_(self.one.weight)
            self.other.bias.copy_(self.one.bias + 0.02)

    def forward(self, x: Tensor) -> Tensor:
        return torch.amin(torch.stack([self.one(x), self.other(x)]), 0).mean()


def test_input_that_no_minimum_selects_passes() -> None:
    torch.manual_seed(0)
    report = gradvet.check(Twins().double(), torch.rand(4, 3, dtype=torch.float64), seed=1, points=None)
    assert report.verdict is Verdict.PASS, f"{report}"


class Cosine(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 8), nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Tensor:
        return (2 - 2 * functional.cosine_similarity(self.norm(self.layer(x)), x.repeat(1, 2))).mean()


@pytest.mark.parametrize("seed", [2, 5, 13])
def test_bias_without_any_effect_passes(seed: int) -> None:
    torch.manual_seed(seed)
    model, x = Cosine().double(), torch.randn(8, 4).double()
    report = gradvet.check(model, x, seed=seed, points=None, checks=("reverse",))
    assert report.verdict is Verdict.PASS, f"{report}"


@needs_private_names
def test_network_with_many_kinks_takes_few_evaluations() -> None:
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (nn.Conv2d(6, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU())]
    model = nn.Sequential(nn.Conv2d(3, 6, 1), *layers, nn.MaxPool2d(2), nn.Conv2d(6, 2, 1))
    report = gradvet.check(model, torch.randn(2, 3, 32, 32), seed=1, points=None)
    assert report.verdict is Verdict.PASS, f"{report}"
    assert report.cost.forwards < 300
    assert any("crossed a kink" in note for note in report.notes)


@needs_private_names
def test_wrong_weight_in_a_network_with_many_kinks_fails() -> None:
    class Halved(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            weight = 0.5 * self.weight + 0.5 * self.weight.detach()
            return functional.conv2d(x, weight, self.bias, padding=1)

    torch.manual_seed(0)
    model = nn.Sequential(
        Halved(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 6, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 2, 1)
    )
    report = gradvet.check(model, torch.randn(2, 3, 16, 16), seed=1, points=None, blame=False)
    assert {entry.input.name for entry in report.failures[0].mismatches} == {"0.weight"}


class GroupedExperts(nn.Module):
    """Tokens sorted by expert, and one product of groups, which torch refuses in double precision."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.weight = nn.Linear(8, 3), nn.Parameter(torch.randn(3, 8, 8) / 3)

    def forward(self, x: Tensor) -> Tensor:
        weights, experts = self.gate(x).softmax(-1).max(-1)
        order = experts.argsort(stable=True)
        ends = torch.bincount(experts, minlength=3).cumsum(0).to(torch.int32)
        products = functional.grouped_mm(x[order], self.weight, offs=ends)
        return torch.zeros_like(x).index_copy(0, order, products) * weights[:, None]


@pytest.mark.skipif(not hasattr(functional, "grouped_mm"), reason="this torch has no grouped products")
def test_mixture_of_experts_with_grouped_products_passes() -> None:
    torch.manual_seed(0)
    report = gradvet.check(GroupedExperts(), torch.randn(12, 8), seed=1)
    assert report.verdict is Verdict.PASS, f"{report}"
    assert "float64" in {row.precision for row in report.ledger}


class Standardised(nn.Module):
    """The statistics are computed by a method under no_grad."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)

    @torch.no_grad()
    def deviation(self, x: Tensor) -> Tensor:  # decorated
        return x.std(-1, keepdim=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return x / (1.0 + self.deviation(x))


def test_function_that_no_grad_decorates_is_named() -> None:
    culprit = gradvet.blame(Standardised().double(), torch.randn(4, 3).double(), seed=1).culprit
    assert culprit is not None
    assert (culprit.what, culprit.place.code[-11:] if culprit.place else "") == ("no_grad", "# decorated")


class Sine(torch.autograd.Function):
    """The sine with a rule for vmap that torch generates, and the wrong sign."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.sin()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return -grads[0] * ctx.saved_tensors[0].cos()


def test_wrong_function_under_vmap_is_named() -> None:
    class Mapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = torch.func.vmap(lambda row: Sine.apply(row * self.weight).sum())(x)
            return found

    culprit = gradvet.blame(Mapped(), torch.randn(4, 3), seed=1).culprit
    assert culprit is not None
    assert (culprit.path, culprit.what) == ("", "autograd.Function Sine")
    assert culprit.place is not None
    assert "def backward" in culprit.place.code


@pytest.mark.filterwarnings("ignore:To copy construct")
def test_new_tensor_of_a_tensor_is_named() -> None:
    class Centred(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = torch.tanh(self.layer(x))
            return x - x.new_tensor(x.mean(-1, keepdim=True))

    culprit = gradvet.blame(Centred().double(), torch.randn(4, 3).double(), seed=1).culprit
    assert culprit is not None
    assert (culprit.path, culprit.what) == ("", "new_tensor")


class Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.value = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        weight = torch.sigmoid(self.gate(x)).detach()
        return weight * self.value(x)


class CompiledGate(nn.Module):
    """Calls a part through the compiler, which hides its lines."""

    def __init__(self) -> None:
        super().__init__()
        self.part, self.head = Gate(), nn.Linear(4, 2)
        self.run = [torch.compile(self.part, backend="eager")]

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.run[0](x))
        return out


def test_stop_in_a_compiled_part_is_named() -> None:
    torch.manual_seed(0)
    culprit = gradvet.blame(CompiledGate().double(), torch.randn(3, 4).double(), seed=1).culprit
    assert culprit is not None
    assert (culprit.path, culprit.what) == ("part", "detach")
    assert culprit.place is not None
    assert "torch.sigmoid(self.gate(x)).detach()" in culprit.place.code


class SquareOfHalf(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # type: ignore[override]
        return g * ctx.saved_tensors[0]  # type: ignore[no-any-return]


class Squared(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(3, 4), function

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.function(self.layer(x))
        return out


COMPILED = [  # a function, a compiler and the culprit
    (SquareOfHalf.apply, "aot_eager", "autograd.Function SquareOfHalf"),
    (lambda x: (x * x).detach() * x, "aot_eager", "detach"),
    (torch.square, compiler_scaling_gradients(2.0), "autograd.Function CompiledFunction"),
    (torch.square, "aot_eager", ""),
]


@pytest.mark.parametrize(("function", "compiler", "what"), COMPILED)
def test_fault_in_a_compiled_module_is_named(function: Any, compiler: Any, what: str) -> None:
    torch.manual_seed(0)
    torch.compiler.reset()
    model = nn.Sequential(torch.compile(Squared(function), backend=compiler), nn.Tanh())  # type: ignore[arg-type]
    report = gradvet.blame(model, torch.randn(5, 3), seed=1)
    assert report.verdict is (Verdict.FAIL if what else Verdict.PASS), f"{report}"
    assert (report.culprit.what if report.culprit else "") == what


def test_function_in_a_compiled_training_step_is_named() -> None:
    torch.manual_seed(0)
    model = Squared(SquareOfHalf.apply)
    step = torch.compile(model, backend="aot_eager")
    with gradvet.watch(model, seed=1) as watch:
        step(torch.randn(5, 3)).sum().backward()
    culprit = watch.report().culprit
    assert culprit is not None
    assert culprit.what == "autograd.Function SquareOfHalf"


class Square(torch.autograd.Function):
    """A square with rules of its own for vmap and forward mode."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x * x

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * g * ctx.saved_tensors[0]  # type: ignore[no-any-return]

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor) -> tuple[Tensor, int]:
        return Square.apply(x), in_dims[0]  # type: ignore[no-untyped-call]

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Tensor:
        return 2 * t * ctx.saved_tensors[0]  # type: ignore[no-any-return]


class SquareMappedWrongly(Square):
    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor) -> tuple[Tensor, int]:
        return x.detach() * x, in_dims[0]


class SquareOfWrongTangent(Square):
    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Tensor:
        return t * ctx.saved_tensors[0]  # type: ignore[no-any-return]


class Transformed(nn.Module):
    """Calls a Function under vmap, and in forward mode: a directional derivative is among the outputs."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function, self.weight = function, nn.Parameter(torch.randn(3))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        mapped = torch.func.vmap(lambda row: self.function.apply(row * self.weight), in_dims=1, out_dims=1)(x.mT)
        return mapped, *torch.func.jvp(lambda x: self.function.apply(x * self.weight), (x,), (torch.ones_like(x),))


@pytest.mark.parametrize(("function", "rule"), [(SquareMappedWrongly, "vmap"), (SquareOfWrongTangent, "jvp")])
def test_wrong_rule_of_a_transform_is_named_with_its_line(function: Any, rule: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3), Transformed(function)).double()
    report = gradvet.blame(model, torch.randn(4, 2, dtype=torch.float64), seed=1)
    assert report.culprit is not None
    assert report.culprit.place is not None
    line = getattr(function, rule).__code__.co_firstlineno + 1  # below the decorator
    assert (report.culprit.path, report.culprit.place.line) == ("1", line), f"{report}"


def test_right_rules_of_transforms_pass() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3), Transformed(Square)).double()
    report = gradvet.blame(model, torch.randn(4, 2, dtype=torch.float64), seed=1)
    assert report.verdict is Verdict.PASS, f"{report}"
    assert {piece.name for piece in report.pieces if piece.kind != "module"} == {"Square", "Square under vmap"}


class MappedStop(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        def one(row: Tensor) -> Tensor:
            scaled = row * 2.0
            return scaled * scaled.detach()

        return torch.func.vmap(one)(x)  # type: ignore[no-any-return]


def test_stop_under_vmap_is_named() -> None:
    torch.manual_seed(0)
    report = gradvet.blame(nn.Sequential(nn.Linear(2, 3), MappedStop()), torch.randn(4, 2), seed=1)
    assert report.culprit is not None
    assert (report.culprit.path, report.culprit.what) == ("1", "detach"), f"{report}"


class SoftplusGradient(torch.autograd.Function):
    """The derivative of softplus; its own lacks a factor."""

    @staticmethod
    def forward(ctx: Any, g: Tensor, x: Tensor) -> Tensor:
        ctx.save_for_backward(g, x)
        return g * x.sigmoid()

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> Any:
        g, x = ctx.saved_tensors
        return v * x.sigmoid(), v * g * x.sigmoid()


class Softplus(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return functional.softplus(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return SoftplusGradient.apply(g, ctx.saved_tensors[0])  # type: ignore[no-any-return, no-untyped-call]


class Activation(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Softplus.apply(x)  # type: ignore[no-any-return, no-untyped-call]


class Potential(nn.Module):
    """Returns the gradient of a network."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 4), Activation(), nn.Linear(4, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        return torch.autograd.grad(self.net(x).sum(), x, create_graph=True)[0]


def test_function_called_by_a_backward_pass_has_the_path_of_its_module() -> None:
    torch.manual_seed(0)
    culprit = gradvet.blame(Potential().double(), torch.randn(3, 2).double(), seed=1).culprit
    assert culprit is not None
    assert (culprit.path, culprit.what) == ("net.1", "autograd.Function SoftplusGradient")


class Largest(torch.autograd.Function):
    """Its output are integers, behind which there is no graph."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        places = x.argmax(-1)
        ctx.mark_non_differentiable(places)
        return places

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return torch.zeros(())


class Router(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Largest.apply(x)  # type: ignore[no-any-return, no-untyped-call]


class Routed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.router, self.net = nn.Linear(2, 4), Router(), nn.Sequential(Tripled())

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        places = self.router(x)
        return self.net(x) * places[:, None]  # type: ignore[no-any-return]


class WrongTriple(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 3 * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * g


class Tripled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return WrongTriple.apply(x)  # type: ignore[no-any-return, no-untyped-call]


def test_function_after_one_of_integers_has_the_path_of_its_own_module() -> None:
    torch.manual_seed(0)
    for nested in (Routed(), nn.Sequential(Routed())):
        culprit = gradvet.blame(nested.double(), torch.randn(3, 2).double(), seed=1).culprit
        assert culprit is not None
        path = "0.net.0" if isinstance(nested, nn.Sequential) else "net.0"
        assert (culprit.path, culprit.what) == (path, "autograd.Function WrongTriple")


class Twice(torch.autograd.Function):
    """A product whose backward pass has no derivative of its own, as that of most kernels."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.factor = 2 * x.detach()
        return x * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * ctx.factor  # type: ignore[no-any-return]


class Unexplained(nn.Module):
    """A stop beside a right Function."""

    def forward(self, x: Tensor) -> Tensor:
        square: Tensor = Twice.apply(x)  # type: ignore[no-untyped-call]
        return square + square.detach()


def test_function_without_second_derivatives_is_not_blamed_for_another_line(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(module_tree.ModuleTree, "_explained", lambda *_: [])  # no line is found
    culprit = gradvet.blame(nn.Sequential(nn.Linear(2, 2), Unexplained()).double(), torch.randn(3, 2).double()).culprit
    assert culprit is not None
    assert (culprit.path, culprit.what) == ("1", "the code of Unexplained.forward")


def bisected(x: Tensor) -> Tensor:
    """The y with y + y³ = x."""
    low, high = -x.abs() - 1.0, x.abs() + 1.0
    for _ in range(60):
        y = (low + high) / 2.0
        is_above = y + y**3 > x
        low, high = torch.where(is_above, low, y), torch.where(is_above, y, high)
    return (low + high) / 2.0


class Root(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = bisected(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # type: ignore[override]
        (y,) = ctx.saved_tensors
        return g / (1.0 + 3.0 * y * y)


class Solved(nn.Module):
    def __init__(self, root: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.root, self.a, self.b = root, nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.b(self.root(self.a(x)))
        return out


@pytest.mark.parametrize(("root", "verdict"), [(Root.apply, Verdict.PASS), (bisected, Verdict.FAIL)])
def test_bisection_in_a_model_is_compared_as_it_is(root: Any, verdict: Verdict) -> None:
    torch.manual_seed(0)
    assert gradvet.check(Solved(root), torch.randn(5, 3), seed=1, blame=False).verdict is verdict
