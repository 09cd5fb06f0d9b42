"""Models whose backward passes call modules again, and models that change their own state, pass.

Tests `frontends/torch/state.py` and `frontends/torch/blame/replaying.py`.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import gradvet
from gradvet import Verdict
from tests.frontends.torch import needs_private_names


class Adjoint(torch.autograd.Function):
    """Steps of Euler's method with a module; the backward pass calls it again, with the parameters it was given."""

    STEPS, scale = 3, 1.0

    @classmethod
    def step(cls, field: nn.Module, y: Tensor) -> Tensor:
        return y + field(y) / cls.STEPS

    @staticmethod
    def forward(ctx: Any, field: nn.Module, y: Tensor, *parameters: Tensor) -> Tensor:
        ctx.field, ctx.parameters, visited = field, parameters, [y]
        for _ in range(Adjoint.STEPS):
            visited.append(Adjoint.step(field, visited[-1]))
        ctx.save_for_backward(*visited[:-1])
        return visited[-1]

    @classmethod
    def pulled(cls, ctx: Any, g: Tensor) -> tuple[Any, ...]:
        total = [torch.zeros_like(p) for p in ctx.parameters]
        for kept in reversed(ctx.saved_tensors):
            with torch.enable_grad():
                y = kept.detach().requires_grad_()
                after = cls.step(ctx.field, y)
            g, *found = torch.autograd.grad(after, (y, *ctx.parameters), g)
            total = [a + cls.scale * b for a, b in zip(total, found, strict=True)]
        return (None, g, *total)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:  # type: ignore[override]
        return Adjoint.pulled(ctx, g)


class HalvedAdjoint(Adjoint):
    scale = 0.5

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:  # type: ignore[override]
        return HalvedAdjoint.pulled(ctx, g)


class Equation(nn.Module):
    def __init__(self, adjoint: Any = Adjoint) -> None:
        super().__init__()
        self.adjoint, self.field, self.out = adjoint, nn.Sequential(nn.Linear(3, 3), nn.Tanh()), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.adjoint.apply(self.field, x, *self.field.parameters()))
        return out


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Dropout(0.2))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = checkpoint(self.b, self.a(x), use_reentrant=True)
        return out


class Reversed(torch.autograd.Function):
    """A layer that keeps its result alone. Its backward pass adds the gradients of the parameters to `.grad`."""

    scale = 1.0

    @staticmethod
    def forward(ctx: Any, x: Tensor, field: nn.Module) -> Tensor:
        one, two = x.detach().chunk(2, -1)
        with torch.no_grad():
            after = one + field(two)
        ctx.kept, ctx.field = (after, two), field
        return torch.cat([after, two], -1)

    @classmethod
    def pulled(cls, ctx: Any, g: Tensor) -> Any:
        with torch.enable_grad():
            y = ctx.kept[1].detach().requires_grad_()
            (ctx.field(y) * cls.scale).backward(g.chunk(2, -1)[0])
        assert y.grad is not None
        return torch.cat([g.chunk(2, -1)[0], g.chunk(2, -1)[1] + y.grad / cls.scale], -1), None

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:  # type: ignore[override]
        return Reversed.pulled(ctx, g)


class HalvedReversed(Reversed):
    scale = 0.5

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:  # type: ignore[override]
        return HalvedReversed.pulled(ctx, g)


class Reversible(nn.Module):
    def __init__(self, function: Any = Reversed) -> None:
        super().__init__()
        self.function, self.field = function, nn.Sequential(nn.Linear(2, 2), nn.Tanh())
        self.start, self.out = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.function.apply(self.start(x), self.field))
        return out


@pytest.mark.parametrize("make", [Equation, Checkpointed, Reversible])
def test_model_whose_backward_pass_calls_a_module_passes_in_single_precision(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model, x = make(), torch.randn(4, 3)
    report = gradvet.check(model, x, seed=1)
    assert report.verdict is Verdict.PASS, f"{report}"
    assert {row.precision for row in report.ledger} == {"float64", "given"}
    assert gradvet.blame(model, x, seed=1).verdict is Verdict.PASS


def test_wrong_adjoint_method_is_blamed() -> None:
    torch.manual_seed(0)
    culprit = gradvet.blame(Equation(HalvedAdjoint), torch.randn(4, 3), seed=1).culprit
    assert culprit is not None
    assert culprit.what == "autograd.Function HalvedAdjoint"


def test_wrong_gradients_that_a_reversible_layer_adds_are_found() -> None:
    torch.manual_seed(0)
    model, x = Reversible(HalvedReversed), torch.randn(4, 3)
    assert gradvet.check(model, x, seed=1).verdict is Verdict.FAIL
    culprit = gradvet.blame(model, x, seed=1).culprit
    assert culprit is not None
    assert culprit.what == "write to .grad"
    assert all(parameter.grad is None for parameter in model.parameters())


class Freeing(torch.autograd.Function):
    """Frees the memory of its argument, as reversible layers do that compute it again from their result."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.detach().exp()
        x.untyped_storage().resize_(0)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # type: ignore[override]
        (y,) = ctx.saved_tensors
        return y * g


class Light(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.b(Freeing.apply(self.a(x)))
        return out


def test_layer_that_frees_its_argument_passes() -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 3)
    kept = x.clone()
    assert gradvet.check(Light(), x, seed=1).verdict is Verdict.PASS
    assert gradvet.blame(Light(), x, seed=1).verdict is Verdict.PASS
    report = gradvet.check(Freeing.apply, x, seed=1)
    assert report.verdict is Verdict.PASS
    assert any("writes to input 0" in note for note in report.notes)
    assert torch.equal(x, kept)


class Stopping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x).tanh()
        out: Tensor = self.second(y * y.detach())  # the fault
        return out


def cut_off(x: Tensor) -> Tensor:
    return x.detach()  # the fault of a model that counts its calls


class Counting(nn.Module):
    """It returns the number of its calls in the process, which no replay repeats."""

    calls = itertools.count()

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(self.linear(x))
        return h * cut_off(h), torch.full((2,), float(next(self.calls)))


class Uncounted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = Counting(), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Any:
        return self.last(self.inner(x)[0])


def test_stop_in_a_function_of_a_module_that_cannot_be_replayed_has_its_path() -> None:
    torch.manual_seed(0)
    report = gradvet.blame(Uncounted().double(), torch.randn(5, 3, dtype=torch.float64), seed=1)
    assert report.culprit is not None
    assert (report.culprit.path, report.culprit.what) == ("inner", "detach")


def test_stop_in_a_module_that_a_function_calls_is_named() -> None:
    torch.manual_seed(0)
    model = Equation()
    model.field = nn.Sequential(nn.Linear(3, 3), Stopping())
    report = gradvet.blame(model, torch.randn(4, 3), seed=1)
    assert report.culprit is not None
    assert (report.culprit.path, report.culprit.what) == ("field.1", "detach")
    assert report.culprit.place is not None
    assert report.culprit.place.code.endswith("# the fault")


class Assign(torch.autograd.Function):
    """Writes a value into a tensor that collects several, past autograd's version counter, as solvers do."""

    @staticmethod
    def forward(ctx: Any, collected: Tensor, value: Tensor, n: int) -> Tensor:
        ctx.n = n
        collected.data[..., n] = value
        return collected

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:  # type: ignore[override]
        return g, g[..., ctx.n], None


class Collecting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        collected = torch.empty(len(x), 4, 2)
        for n in range(2):
            collected = Assign.apply(collected, self.layer(x * (n + 1)).tanh(), n)
        return collected.sum(-1)


def test_function_that_collects_values_is_not_blamed() -> None:
    torch.manual_seed(0)
    model, x = Collecting(), torch.randn(5, 3)
    assert gradvet.check(model, x, seed=1).verdict is Verdict.PASS
    report = gradvet.blame(model, x, seed=1)
    assert not report.culprits
    assert {warning.what for warning in report.warnings} == {"autograd.Function Assign"}


def test_watch_without_a_model_replays_an_adjoint_method_after_the_optimiser_has_stepped() -> None:
    torch.manual_seed(0)
    model = Equation()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    with gradvet.watch(seed=1) as step:
        model(torch.randn(4, 3)).sum().backward()
        optimiser.step()
    after = copy.deepcopy(model.state_dict())
    assert step.report().verdict is Verdict.PASS
    assert all(torch.equal(value, after[name]) for name, value in model.state_dict().items())


class Teacher(nn.Module):
    """A student, and a teacher whose weights follow those of the student in each forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.student = nn.Linear(3, 2)
        self.teacher = nn.Linear(3, 2).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            for own, other in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
                own.mul_(0.9).add_(other, alpha=0.1)
            target = self.teacher(x)
        return F.mse_loss(self.student(x), target)


class Cache(nn.Module):
    """Writes keys into a tensor that is no buffer, at a place that it counts."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.kept, self.count = nn.Linear(3, 3), torch.randn(6, 3), 1

    def forward(self, x: Tensor) -> Tensor:
        keys = self.key(x)
        self.kept[self.count : self.count + len(x)] = keys.detach()
        before, self.count = self.kept[: self.count], self.count + len(x)
        out: Tensor = (x @ torch.cat([before.to(x.dtype), keys]).mT).softmax(-1)
        return out


@pytest.mark.parametrize(("make", "settings"), [(Teacher, {"stops": "constant"}), (Cache, {})])
def test_model_that_changes_its_own_state_passes(make: Callable[[], nn.Module], settings: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model, x = make(), torch.randn(2, 3)
    before = copy.deepcopy((model.state_dict(), vars(model).get("kept"), vars(model).get("count")))
    assert gradvet.check(model, x, seed=1, **settings).verdict is Verdict.PASS
    assert gradvet.blame(model, x, seed=1, **settings).verdict is Verdict.PASS
    assert all(torch.equal(value, before[0][name]) for name, value in model.state_dict().items())
    assert vars(model).get("count") == before[2]


class Hooked(nn.Module):
    """Installs hooks in its first call, which gather results of its layers, and notes that it did."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.is_ready, self.gathered = nn.Sequential(nn.Linear(3, 3), nn.Tanh()), False, list[Tensor]()

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        if not self.is_ready:
            for layer in self.layers:
                layer.register_forward_hook(lambda module, args, result: self.gathered.append(result))
            self.is_ready = True
        self.gathered = []
        self.layers(x)
        return tuple(self.gathered)


def test_hooks_installed_by_the_first_call_stay_few() -> None:
    torch.manual_seed(0)
    model, x = Hooked(), torch.randn(2, 3)
    assert gradvet.check(model, x, seed=1).verdict is Verdict.PASS
    assert gradvet.blame(model, x, seed=1).verdict is Verdict.PASS
    assert len(model(x)) == 2


@needs_private_names
def test_forward_hooks_of_the_first_call_leave_the_rules_builtin() -> None:
    torch.manual_seed(0)
    report = gradvet.check(Hooked(), torch.randn(2, 3), seed=1)
    points = next(f for f in report.findings if f.check == "points" and f.verdict is Verdict.PASS)
    assert points.facts[
        "finiteness alone"
    ]  # where the rules are torch's own, the full test costs much and adds nothing


@needs_private_names
def test_hook_on_a_tensor_inside_a_forward_hook_is_seen() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(3, 3)
    layer.register_forward_hook(lambda module, args, result: result.register_hook(lambda g: 2.0 * g) and None)
    assert gradvet.check(layer, torch.randn(2, 3), seed=1).verdict is Verdict.FAIL


class Both(torch.autograd.Function):
    """A product whose backward pass needs both of its inputs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight.T

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        if not all(ctx.needs_input_grad):
            raise RuntimeError("both are needed")
        x, weight = ctx.saved_tensors
        return grads[0] @ weight, grads[0].T @ x


def test_model_whose_layers_cannot_be_frozen_passes_with_a_note() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.weight = nn.Linear(3, 3), nn.Parameter(torch.ones(2, 3))

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = Both.apply(torch.tanh(self.first(x)), self.weight)
            return out

    report = gradvet.check(Model(), torch.ones(4, 3), seed=1)
    assert report.verdict is Verdict.PASS, str(report)
    assert any("both are needed (when only" in note for note in report.notes)


class Inner(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.a, self.b, self.fault = nn.Linear(3, 3), nn.Linear(3, 3), fault

    def forward(self, x: Tensor) -> Tensor:
        if self.fault == "numbers":
            return checkpoint(lambda x: F.dropout(self.a(x)), x, use_reentrant=False, preserve_rng_state=False)  # type: ignore[no-any-return]
        with torch.inference_mode(self.fault == "inference"):
            gate = torch.sigmoid(self.a(x))
        return self.b(x) * gate.clone()  # type: ignore[no-any-return]


@pytest.mark.parametrize("fault", ["numbers", "inference"])
def test_module_of_a_fault_around_a_layer_is_named(fault: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), Inner(fault)).double()
    culprit = gradvet.blame(model, torch.randn(4, 3, dtype=torch.float64), seed=1).culprit
    assert culprit is not None
    assert (culprit.path, culprit.what.startswith("write to .grad")) == ("1", False), culprit


class Keys:
    """A cache of keys by layer, which a model makes and hands to its layers."""

    def __init__(self) -> None:
        self.of_layer: dict[int, Tensor] = {}

    def extended(self, layer: int, key: Tensor) -> Tensor:
        before = self.of_layer.get(layer)
        self.of_layer[layer] = key if before is None else torch.cat([before, key], 1)
        return self.of_layer[layer]


class CachedLayer(nn.Module):
    def __init__(self, number: int, *, is_wrong: bool) -> None:
        super().__init__()
        self.number, self.is_wrong = number, is_wrong
        self.key, self.value = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor, keys: Keys) -> Tensor:
        k = keys.extended(self.number, self.key(x))
        k = k.detach() if self.is_wrong else k
        return x + (x @ k.mT).softmax(-1) @ self.value(x)  # type: ignore[no-any-return]


class CachedModel(nn.Module):
    def __init__(self, wrong: int | None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(CachedLayer(n, is_wrong=n == wrong) for n in range(3))
        self.keys: Keys | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.keys = keys = Keys()
        for layer in self.layers:
            x = layer(x, keys)
        return x


@pytest.mark.parametrize("wrong", [None, 1])
def test_layers_that_fill_a_cache_among_their_arguments_are_replayed(wrong: int | None) -> None:
    torch.manual_seed(0)
    model, x = CachedModel(wrong).double(), torch.randn(2, 4, 3, dtype=torch.float64)
    with gradvet.watch(model, seed=1) as step:
        model(x).square().sum().backward()
    keys = model.keys
    assert keys is not None
    before = dict(keys.of_layer)
    report = step.report()
    verdicts = {piece.path: piece.verdict for piece in report.pieces}
    if wrong is None:
        assert report.verdict is Verdict.PASS, report
    else:
        assert [(culprit.path, culprit.what) for culprit in report.culprits] == [("layers.1", "detach")]
        assert (verdicts["layers.0"], verdicts["layers.2"]) == (Verdict.PASS, Verdict.PASS), report
    assert model.keys is keys
    assert all(keys.of_layer[n] is key for n, key in before.items())


class ScaledInPlace(torch.autograd.Function):
    """Computes its gradient in the forward pass and overwrites it in the backward pass, as fused losses do."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(2 * x)
        return x.square().sum()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return ctx.saved_tensors[0].mul_(g)  # type: ignore[no-any-return]


def test_writes_to_grad_are_found_behind_a_backward_pass_that_runs_once() -> None:
    layer = nn.Linear(3, 2)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Tensor) -> Tensor:
            return ScaledInPlace.apply(self.layer(x))  # type: ignore[no-any-return]

    right = gradvet.blame(Model(), torch.randn(4, 3), seed=1)
    assert right.verdict is Verdict.PASS
    assert not any("were not looked for" in note for note in right.notes), right.notes

    def add(g: Tensor) -> None:
        layer.weight.grad = g if layer.weight.grad is None else layer.weight.grad + g

    layer.weight.register_hook(add)
    culprit = gradvet.blame(Model(), torch.randn(4, 3), seed=1).culprit
    assert culprit is not None
    assert culprit.what == "write to .grad"
