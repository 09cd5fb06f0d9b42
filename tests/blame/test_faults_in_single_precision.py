"""Faults and awkward code in small models in float32: lines that write, stop or change gradients out of torch's sight.

Tests `frontends/torch/blame/backward_pass.py`, `frontends/torch/blame/stops.py`,
`frontends/torch/blame/module_tree.py` and `frontends/torch/double_precision.py`.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

import gradvet
from gradvet import Verdict
from gradvet.frontends.torch.private import PUBLIC_ONLY

needs_private_names = pytest.mark.skipif(PUBLIC_ONLY, reason="private names of torch are switched off")


class Layer(nn.Module):
    """Two linear maps; subclasses have the line with a fault between them."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)


class NumpyWrite(Layer):
    def forward(self, x: Tensor) -> Any:
        y = torch.sigmoid(self.a(x))
        memory = y.detach().numpy()
        z = self.b(y + 1)
        np.multiply(memory, 0.5, out=memory)  # fault
        return z


class NumpyRounding(Layer):
    def forward(self, x: Tensor) -> Any:
        y = self.a(x)
        size = y.norm(dim=-1).detach().numpy().astype(np.float32)  # fault
        return self.b(y / torch.from_numpy(size)[:, None])


class NodeHook(Layer):
    def forward(self, x: Tensor) -> Any:
        y = self.a(x)
        if y.grad_fn is not None:
            y.grad_fn.register_prehook(lambda gradients: tuple(g / 2 for g in gradients))  # fault
        return self.b(y)


class CheckpointOfData(Layer):
    def forward(self, x: Tensor) -> Any:
        return self.b(checkpoint(lambda x: self.a(x).sin(), x, use_reentrant=True))  # fault


class StopInCheckpoint(Layer):
    def inner(self, y: Tensor) -> Tensor:
        return y.sin() * y.detach()  # fault

    def forward(self, x: Tensor) -> Any:
        return self.b(checkpoint(self.inner, self.a(x), use_reentrant=True))


class StateDict(Layer):
    def forward(self, x: Tensor) -> Any:
        return functional_call(self.b, self.b.state_dict(), self.a(x))  # fault


class WeightsWritten(Layer):
    """A hypernetwork that writes into the weights of the network that it makes."""

    def forward(self, x: Tensor) -> Any:
        with torch.no_grad():  # fault
            self.b.weight.copy_(self.a.weight[:2, :1] * self.a.bias)
        return self.b(self.a(x))


class DataAssigned(Layer):
    def forward(self, x: Tensor) -> Any:
        y = self.a(x)
        y.data = y.sin()  # fault
        return self.b(y)


class HookOfItsOwn(Layer):
    """A method of the layer is a hook of a layer inside."""

    def __init__(self) -> None:
        super().__init__()
        self.b.register_forward_pre_hook(self.before)

    def before(self, module: nn.Module, args: Any) -> Any:
        return (args[0] * args[0].detach(),)  # fault

    def forward(self, x: Tensor) -> Any:
        return self.b(self.a(x))


class Gain(torch.autograd.Function):
    """Keeps its arguments as attributes, which no version counter guards."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, gain: Tensor) -> Tensor:
        ctx.y, ctx.gain = y, gain
        return y * gain

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor]:
        return grad_output * ctx.gain, (grad_output * ctx.y).sum(0)


class AttributeOverwritten(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.rand(4))

    def forward(self, x: Tensor) -> Any:
        y = self.a(x)
        z = Gain.apply(y, self.gain)
        return self.b(z + y.mul_(2))  # fault


class ViewWritten(Layer):
    """A cache that is filled through a view of memory outside the graph."""

    def forward(self, x: Tensor) -> Any:
        y = self.a(x)
        cache = torch.empty(2 * len(y), 4, dtype=y.dtype)
        cache.detach()[: len(y)].copy_(y)  # fault
        return self.b(y + cache[: len(y)].sin())


class StatisticsAndWrite(Layer):
    """Batch norm updates its statistics between the two passes, which does not matter."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("bank", torch.rand(5, 4))

    def forward(self, x: Tensor) -> Any:
        y, z = self.norm(self.a(x)), self.norm(self.a(-x))
        similarity = y * self.bank
        self.bank.data[:] = z.detach()  # fault
        return self.b(similarity + z)


class SmallGradientsDropped(Layer):
    """The gradient is not proportional to grad_output."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.rand(4))

        def dropped(gradient: Tensor) -> Tensor:  # fault
            return gradient * (gradient.abs() > 1e-3)

        self.gain.register_hook(dropped)

    def forward(self, x: Tensor) -> Any:
        return self.b(self.a(x) * self.gain)


class ClippedNode(Layer):
    def forward(self, x: Tensor) -> Any:
        y = self.a(x)
        if y.grad_fn is not None:
            y.grad_fn.register_prehook(lambda gradients: tuple(g.clamp(-1e-3, 1e-3) for g in gradients))  # fault
        return self.b(y)


class StateLoaded(Layer):
    """A hypernetwork that loads what it makes into a network whose parameters do not require grad."""

    def __init__(self) -> None:
        super().__init__()
        self.b.requires_grad_(False)

    def forward(self, x: Tensor) -> Any:
        y = self.a(x)
        self.b.load_state_dict({"weight": y[:2, :4], "bias": y[0, :2]})  # fault
        return self.b(torch.ones(4, dtype=x.dtype))


class Equilibrium(nn.Module):
    """The fixed point of a layer; its gradient is that of few iterations."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(0.15 * torch.randn(3, 3))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            z = torch.zeros_like(x)
            for _ in range(12):
                z = torch.tanh(z @ self.w + x)
        z = torch.tanh(z @ self.w + x)
        if z.requires_grad:
            start = z.detach().requires_grad_()
            again = torch.tanh(start @ self.w + x)
            z.register_hook(lambda g: g + torch.autograd.grad(again, start, g, retain_graph=True)[0])  # fault
        return z


class Drawn(Layer):
    """Draws with a mean that depends on the input: torch defines the derivatives of `normal` as zero."""

    def forward(self, x: Tensor) -> Any:
        y = self.a(x)
        return self.b(torch.normal(y, y.sigmoid()))  # fault


class FrozenForAWhile(Layer):
    def forward(self, x: Tensor) -> Any:
        self.b.requires_grad_(False)  # fault
        y = self.b(self.a(x))
        self.b.requires_grad_(True)
        return y


class FrozenByAttribute(Layer):
    def forward(self, x: Tensor) -> Any:
        self.b.weight.requires_grad = False  # fault
        y = self.b(self.a(x))
        self.b.weight.requires_grad = True
        return y


class OtherDrawsBesideReentrant(Layer):
    """Two checkpoints, of which the one that keeps its random state needs `backward()` in place of `grad()`."""

    def forward(self, x: Tensor) -> Any:
        y = checkpoint(torch.tanh, self.a(x), use_reentrant=True)
        z = checkpoint(lambda y: nn.functional.dropout(y), y, use_reentrant=False, preserve_rng_state=False)  # fault
        return self.b(z)


class HookOnSeveral(Layer):
    """A hook on both weights, which runs when the gradient of the second layer is in `.grad`."""

    def __init__(self) -> None:
        super().__init__()
        torch.autograd.graph.register_multi_grad_hook([self.a.weight, self.b.weight], self.halve)

    def halve(self, gradients: Any) -> None:  # fault
        if self.b.weight.grad is not None:
            self.b.weight.grad *= 0.5

    def forward(self, x: Tensor) -> Any:
        return self.b(torch.tanh(self.a(x)))


FAULTS: list[tuple[type[nn.Module], str]] = [
    (Drawn, "normal"),
    (FrozenForAWhile, "requires_grad_"),
    (FrozenByAttribute, "requires_grad"),
    (OtherDrawsBesideReentrant, "checkpoint"),
    (NumpyWrite, "write to a saved tensor"),
    (NumpyRounding, "detach"),
    (NodeHook, "register_prehook"),
    (CheckpointOfData, "checkpoint"),
    (StopInCheckpoint, "detach"),
    (StateDict, "detach"),
    (WeightsWritten, "no_grad"),
    (DataAssigned, "data"),
    (HookOfItsOwn, "detach"),
    (Equilibrium, "register_hook"),
    (AttributeOverwritten, "write to a saved tensor"),
    (SmallGradientsDropped, "hook on parameter gain"),
    (ClippedNode, "register_prehook"),
    (StateLoaded, "no_grad"),
    (ViewWritten, "copy_"),
    (StatisticsAndWrite, "write to a saved tensor"),
]


def line_of_fault(module: type[nn.Module]) -> int:
    lines, first = inspect.getsourcelines(module)
    return next(first + n for n, line in enumerate(lines) if line.rstrip().endswith("# fault"))


@needs_private_names
@pytest.mark.parametrize(("module", "what"), FAULTS, ids=lambda value: getattr(value, "__name__", ""))
def test_line_of_a_fault_is_named(module: type[nn.Module], what: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(module(), nn.Tanh())
    report = gradvet.blame(model, torch.randn(5, 3), seed=1)
    culprit = report.culprit
    assert culprit is not None, f"{report}"
    assert culprit.place is not None, f"{report}"
    found = culprit.path, culprit.what, Path(culprit.place.file).name, culprit.place.line
    assert found == ("0", what, Path(__file__).name, line_of_fault(module)), f"{report}"
    assert not any("not looked for" in note for note in report.notes), f"{report}"


@needs_private_names
def test_hook_on_several_parameters_is_named() -> None:
    torch.manual_seed(0)
    culprit = gradvet.blame(HookOnSeveral(), torch.randn(5, 3), seed=1).culprit
    assert culprit is not None
    assert culprit.place is not None
    assert (culprit.path, culprit.what, culprit.place.line) == (
        "a",
        "hook on parameter weight",
        line_of_fault(HookOnSeveral),
    )


def test_output_that_is_detached_is_noted() -> None:
    torch.manual_seed(0)

    class Detached(Layer):
        def forward(self, x: Tensor) -> Any:
            y = self.a(x)
            return self.b(y), y.detach()

    report = gradvet.blame(Detached(), torch.randn(5, 3), seed=1)
    assert report.verdict is Verdict.PASS
    assert "output 1 varies with the inputs but has no derivative, so nothing of it was checked" in report.notes


@needs_private_names
def test_stop_that_rounds_outside_of_torch_is_named() -> None:
    torch.manual_seed(0)
    report = gradvet.check(NumpyRounding(), torch.randn(5, 3), seed=1, points=None)
    assert report.verdict is Verdict.FAIL, f"{report}"
    assert report.findings[0].check == "blame"


class RoundedNumber(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor) -> Any:
        scale = float(np.round(self.scale.detach().numpy(), 2))  # fault
        return self.b(self.a(x)) * scale


@needs_private_names
def test_stop_in_an_undecided_module_is_listed() -> None:
    torch.manual_seed(0)
    report = gradvet.blame(nn.Sequential(RoundedNumber(), nn.Tanh()), torch.randn(5, 3), seed=1)
    assert report.verdict is Verdict.INCONCLUSIVE
    reasons = {piece.path: piece.reason for piece in report.pieces}
    assert reasons["0"].startswith("the gradient stops at ")
    assert f"{Path(__file__).name}:{line_of_fault(RoundedNumber)} (detach)" in reasons["0"]


class SquareRoot(torch.autograd.Function):
    """The square root of a symmetric matrix, which reads its lower triangle."""

    @staticmethod
    def forward(ctx: Any, a: Tensor) -> Tensor:
        values, q = torch.linalg.eigh(a)
        ctx.save_for_backward(values.sqrt(), q)
        return (q * values.sqrt()) @ q.mT

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        roots, q = ctx.saved_tensors
        inner: Tensor = q.mT @ g @ q / (roots[:, None] + roots)
        return q @ inner @ q.mT


class Covariance(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        root: Tensor = SquareRoot.apply(y.mT @ y + torch.eye(3))
        return root


def test_function_of_symmetric_matrices_is_a_warning() -> None:
    torch.manual_seed(0)
    report = gradvet.blame(Covariance(), torch.randn(5, 3), seed=1)
    assert report.verdict is Verdict.PASS, f"{report}"
    assert [warning.what for warning in report.warnings] == ["autograd.Function SquareRoot"]


class Graph(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(3, 2)
        self.register_buffer("edges", torch.eye(5).to_sparse())

    def forward(self, x: Tensor) -> Tensor:
        return torch.sparse.mm(self.edges, self.a(x))


class Implicit(torch.autograd.Function):
    """The identity, with the derivative of the fixed point that its argument is, up to an absolute error."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, step: Any) -> Tensor:
        ctx.save_for_backward(z.detach())
        ctx.step = step
        return z.view_as(z)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        with torch.enable_grad():
            z = ctx.saved_tensors[0].clone().requires_grad_()
            after = ctx.step(z)
        v, change = g, g
        while float(change.abs().max()) > 1e-7:
            (change,) = torch.autograd.grad(after, z, change, retain_graph=True)
            v = v + change
        return v, None


class Equilibrium(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.w = nn.Linear(3, 4), nn.Parameter(0.2 * torch.randn(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        def step(z: Tensor) -> Tensor:
            return torch.tanh(z @ self.w + given)

        given, z = self.a(x), torch.zeros(len(x), 4, dtype=x.dtype)
        with torch.no_grad():
            for _ in range(60):
                z = step(z)
        out: Tensor = Implicit.apply(step(z), step)
        return out


def test_function_that_is_wrong_alone_is_blamed_for_what_is_wrong_in_its_model() -> None:
    torch.manual_seed(0)
    report = gradvet.blame(Equilibrium(), torch.randn(3, 3), seed=1)
    assert [warning.what for warning in report.warnings] == ["autograd.Function Implicit"]
    assert report.culprit is not None
    assert report.culprit.what == "autograd.Function Implicit"
    assert "linear" in report.culprit.cause


def test_model_with_a_sparse_buffer_passes() -> None:
    report = gradvet.blame(Graph(), torch.randn(5, 3), seed=1)
    assert report.verdict is Verdict.PASS, f"{report}"


def test_scripted_model_is_said_to_be_scripted() -> None:
    scripted = torch.jit.script(nn.Linear(3, 2))  # type: ignore[no-untyped-call]
    for model, path in ((scripted, "the model"), (nn.Sequential(nn.Tanh(), scripted), "1")):
        notes = gradvet.blame(model, torch.randn(4, 3), seed=1).notes
        assert any(note.startswith(f"{path} is scripted: ") for note in notes), notes


class Frozen(Layer):
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.b(torch.tanh(nn.functional.linear(x, self.a.weight.detach(), self.a.bias)))
        return out


def test_scripted_module_in_layers_of_torch_is_named() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Sequential(nn.Linear(3, 3), torch.jit.script(Frozen())), nn.Tanh())  # type: ignore[no-untyped-call]
    culprit = gradvet.blame(model, torch.randn(4, 3), seed=1).culprit
    assert culprit is not None
    assert (culprit.path, culprit.what) == ("0.1", "the code of Frozen.forward")
