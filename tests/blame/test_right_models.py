"""Right models of awkward kinds are not blamed.

Tests `frontends/torch/blame/replaying.py`, `frontends/torch/state.py`,
`frontends/torch/blame/straight_through.py` and `frontends/torch/blame/private.py`.
"""

from __future__ import annotations

import copy
import functools
import random
import warnings
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

import gradvet
from gradvet import Verdict
from tests.functions import with_vjp


class Cube(torch.autograd.Function):
    """A right Function with setup_context, so that vmap can map it."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x**3

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 3 * g * x * x


def cube(x: Tensor) -> Tensor:
    out: Tensor = Cube.apply(x)  # type: ignore[no-untyped-call]
    return out


class Applied(nn.Module):
    """A module of a function and layers."""

    def __init__(self, forward: Callable[..., Any], **layers: nn.Module) -> None:
        super().__init__()
        self.function = forward
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


def applied(forward: Callable[..., Any], **layers: nn.Module) -> nn.Module:
    return Applied(forward, **layers).double()


def linear() -> nn.Linear:
    return nn.Linear(3, 3)


def x(*shape: int) -> Tensor:
    return torch.randn(*(shape or (2, 3)), dtype=torch.float64)


RIGHT: dict[str, Callable[[], tuple[Any, ...]]] = {}


def right(make: Callable[[], tuple[Any, ...]]) -> Callable[[], tuple[Any, ...]]:
    """Register a model with its inputs and, perhaps, settings of `blame`."""
    RIGHT[make.__name__] = make
    return make


@right
def batch_norm_in_training() -> tuple[Any, ...]:
    return applied(lambda m, x: cube(m.bn(m.a(x))), a=linear(), bn=nn.BatchNorm1d(3)), x(4, 3)


@right
def batch_norm_in_evaluation() -> tuple[Any, ...]:
    return applied(lambda m, x: cube(m.bn(m.a(x))), a=linear(), bn=nn.BatchNorm1d(3)).eval(), x(4, 3)


@right
def dropout() -> tuple[Any, ...]:
    return applied(lambda m, x: m.b(m.drop(cube(m.a(x)))), a=linear(), b=linear(), drop=nn.Dropout(0.4)), x()


@right
def recursion() -> tuple[Any, ...]:
    class Tree(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.leaf, self.join = linear(), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            if len(x) == 1:
                return self.leaf(x)  # type: ignore[no-any-return]
            halves = [self(part) for part in x.chunk(2)]
            return torch.tanh(self.join(torch.cat(halves, -1)))

    return Tree().double(), x(4, 3)


@right
def cache_of_keys() -> tuple[Any, ...]:
    class Cached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.key, self.cache = linear(), None

        def forward(self, x: Tensor) -> Tensor:
            k = self.key(x)
            self.cache = k if self.cache is None else torch.cat([self.cache, k])
            return torch.softmax(x @ self.cache.T, -1) @ self.cache

    return applied(lambda m, x: cube(m.cached(m.a(x))), a=linear(), cached=Cached()), x()


@right
def counter_of_calls() -> tuple[Any, ...]:
    class Warmup(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.steps, self.a = 0, linear()

        def forward(self, x: Tensor) -> Tensor:
            self.steps += 1
            return self.a(x) * min(1.0, self.steps / 1000)  # type: ignore[no-any-return]

    return applied(lambda m, x: m.warmup(x), warmup=Warmup()), x()


@right
def checkpointing() -> tuple[Any, ...]:
    def forward(m: Any, x: Tensor) -> Any:
        return m.b(checkpoint(lambda y: cube(m.a(y)), x, use_reentrant=False))

    return applied(forward, a=linear(), b=linear()), x()


@right
def selective_checkpointing() -> tuple[Any, ...]:
    """Its graph is used up by one backward pass."""
    keeps = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.addmm.default])

    def forward(m: Any, x: Tensor) -> Any:
        return m.b(checkpoint(lambda y: torch.tanh(m.a(y)), x, use_reentrant=False, context_fn=keeps))

    return applied(forward, a=linear(), b=linear()), x()


@right
def reentrant_checkpointing() -> tuple[Any, ...]:
    def forward(m: Any, x: Tensor) -> Any:
        return m.b(checkpoint(lambda y: cube(m.a(y)), m.first(x), use_reentrant=True))

    return applied(forward, first=linear(), a=linear(), b=linear()), x()


@right
def compiled() -> tuple[Any, ...]:
    return torch.compile(applied(lambda m, x: m.b(cube(m.a(x))), a=linear(), b=linear()), backend="aot_eager"), x()


@right
def compiled_part() -> tuple[Any, ...]:
    part = torch.compile(nn.Sequential(linear(), nn.Tanh()), backend="eager")
    return applied(lambda m, x: cube(m.part(x)), part=part), x()


@right
def vmapped() -> tuple[Any, ...]:
    return applied(lambda m, x: torch.func.vmap(lambda row: cube(m.a(row)))(x), a=linear()), x()


@right
def gradient_inside() -> tuple[Any, ...]:
    """A potential whose gradient is the output."""

    def forward(m: Any, x: Tensor) -> Any:
        x = x if x.requires_grad else x.detach().requires_grad_()
        return torch.autograd.grad(torch.tanh(m.a(x)).pow(2).sum(), x, create_graph=True)[0]

    return applied(forward, a=linear()), x()


@right
def gradient_penalty() -> tuple[Any, ...]:
    """The model leaves the graph of its input, whose gradient nothing asks for."""

    def forward(m: Any, x: Tensor) -> Any:
        x = x.detach().requires_grad_()
        (g,) = torch.autograd.grad(torch.tanh(m.a(x)).sum(), x, create_graph=True)
        return (g.norm(dim=-1) - 1).pow(2).mean()

    return applied(forward, a=linear()), x()


@right
def vector_quantisation() -> tuple[Any, ...]:
    def forward(m: Any, x: Tensor) -> Any:
        z = m.a(x)
        q = m.code(torch.cdist(z, m.code.weight).argmin(-1))
        loss = (q - z.detach()).pow(2).mean() + (q.detach() - z).pow(2).mean()
        return m.b(z + (q - z).detach()), loss

    return applied(forward, a=linear(), b=linear(), code=nn.Embedding(8, 3)), x(), {"stops": "constant"}


@right
def mixture_of_experts() -> tuple[Any, ...]:
    def forward(m: Any, x: Tensor) -> Any:
        weight, index = m.gate(x).softmax(-1).topk(2, -1)
        outs = torch.stack([expert(x) for expert in m.experts], -1)
        return (outs.gather(-1, index[:, None].expand(-1, 3, -1)) * weight[:, None]).sum(-1)

    return applied(forward, gate=nn.Linear(3, 4), experts=nn.ModuleList(linear() for _ in range(4))), x()


@right
def weights_clipped_in_forward() -> tuple[Any, ...]:
    def forward(m: Any, x: Tensor) -> Any:
        m.a.weight.data.clamp_(-5, 5)
        return cube(m.a(x))

    return applied(forward, a=linear()), x()


@right
def half_precision() -> tuple[Any, ...]:
    return applied(lambda m, x: m.b(cube(m.a(x))), a=linear(), b=linear()).bfloat16(), x().bfloat16()


@right
def spectral_norm() -> tuple[Any, ...]:
    return applied(lambda m, x: cube(m.a(x)), a=nn.utils.parametrizations.spectral_norm(linear())), x()


@right
def old_spectral_norm() -> tuple[Any, ...]:
    return applied(lambda m, x: cube(m.a(x)), a=nn.utils.spectral_norm(linear())), x()


@right
def weight_norm() -> tuple[Any, ...]:
    return applied(lambda m, x: cube(m.a(x)), a=nn.utils.parametrizations.weight_norm(linear())), x()


@right
def weight_tying() -> tuple[Any, ...]:
    return applied(lambda m, i: F.linear(cube(m.e(i)), m.e.weight), e=nn.Embedding(5, 3)), torch.tensor([[0, 3, 1]])


@right
def shared_module() -> tuple[Any, ...]:
    shared = linear()
    return applied(lambda m, x: m.b(cube(m.a(x))) + m.b(x), a=shared, b=shared), x()


class Running(nn.Module):
    """Replaces its buffer by another tensor, and fills one that was None."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = linear()
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("scale", None)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.linear(x)
        if self.scale is None:
            self.scale = torch.ones_like(h[0])
        y = (h - self.mean) * self.scale
        self.mean, self.scale = torch.lerp(self.mean, h.detach().mean(0), 0.1), self.scale * 0.5
        return y.tanh()


@right
def replaced_buffers() -> tuple[Any, ...]:
    return nn.Sequential(linear(), Running()).double(), x()


@right
def straight_through_detach() -> tuple[Any, ...]:
    def forward(m: Any, x: Tensor) -> Any:
        y = m.a(x)
        return cube(m.b(y + (y.round() - y).detach()))

    return applied(forward, a=linear(), b=linear()), x(), {"stops": "constant"}


quantise = with_vjp(lambda x: torch.round(4 * x) / 4, lambda g, x: g)


@right
def straight_through_function() -> tuple[Any, ...]:
    function = applied(lambda m, x: m.b(quantise(m.a(x))), a=linear(), b=linear())
    return function, x(), {"stops": "constant"}


@right
def stopped_target() -> tuple[Any, ...]:
    """As in contrastive learning: one branch is the constant target of the other."""

    def forward(m: Any, x: Tensor) -> Any:
        z = m.a(x)
        with torch.no_grad():
            target = m.b(z)
        return (m.c(z) - target).pow(2).mean()

    return applied(forward, a=linear(), b=linear(), c=linear()), x(), {"stops": "constant"}


@right
def frozen_parameters() -> tuple[Any, ...]:
    model = applied(lambda m, x: cube(m.b(cube(m.a(x)))), a=linear(), b=linear())
    model.get_submodule("a").requires_grad_(False)
    return model, x()


@right
def average_of_parameters() -> tuple[Any, ...]:
    def forward(m: Any, x: Tensor) -> Any:
        if m.training:
            with torch.no_grad():
                for average, p in zip(m.average.parameters(), m.a.parameters(), strict=True):
                    average.lerp_(p, 0.1)
        return cube(m.a(x))

    return applied(forward, a=linear(), average=linear().requires_grad_(False)), x()


@right
def in_place_activation() -> tuple[Any, ...]:
    return nn.Sequential(linear(), nn.ReLU(inplace=True), linear(), nn.SiLU(inplace=True)).double(), x()


class ScaleInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2.5)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2.5 * g


@right
def in_place_function() -> tuple[Any, ...]:
    return applied(lambda m, x: m.b(ScaleInPlace.apply(m.a(x))), a=linear(), b=linear()), x()  # type: ignore[no-untyped-call]


class Top(torch.autograd.Function):
    """The largest element and, without derivative, the others' sum of squares."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        value, index = x.max(-1)
        rest = (x * x).sum(-1)
        ctx.save_for_backward(index)
        ctx.shape = x.shape
        ctx.mark_non_differentiable(rest)
        return value, rest

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Tensor) -> Tensor:
        (index,) = ctx.saved_tensors
        return torch.zeros(ctx.shape, dtype=g.dtype).scatter(-1, index[..., None], g[..., None])


@right
def output_without_derivative() -> tuple[Any, ...]:
    return applied(lambda m, x: Top.apply(m.a(x)), a=linear()), x(4, 3)  # type: ignore[no-untyped-call]


class Once(torch.autograd.Function):
    """Its backward pass frees what it used."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.x = x.detach()
        return x.sin()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        gradient: Tensor = g * ctx.x.cos()
        del ctx.x
        return gradient


@right
def backward_that_runs_once() -> tuple[Any, ...]:
    return applied(lambda m, x: m.b(Once.apply(m.a(x))), a=linear(), b=linear()), x()  # type: ignore[no-untyped-call]


@right
def once_differentiable() -> tuple[Any, ...]:
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 2 * g * ctx.saved_tensors[0]

    return applied(lambda m, x: m.b(Square.apply(m.a(x))), a=linear(), b=linear()), x()  # type: ignore[no-untyped-call]


@right
def second_order() -> tuple[Any, ...]:
    return applied(lambda m, x: m.b(cube(m.a(x))), a=linear(), b=linear()), x(), {"order": 2}


@right
def function_in_a_backward_pass() -> tuple[Any, ...]:
    class Outer(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return cube(x)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            with torch.enable_grad():
                y = x.detach().requires_grad_()
                return torch.autograd.grad(cube(y), y, g)[0]

    return applied(lambda m, x: m.b(Outer.apply(m.a(x))), a=linear(), b=linear()), x()  # type: ignore[no-untyped-call]


@right
def hooks_that_observe() -> tuple[Any, ...]:
    seen: list[Tensor] = []

    def forward(m: Any, x: Tensor) -> Any:
        y = m.a(x)
        if y.requires_grad:
            y.register_hook(lambda g: seen.append(g))
        return cube(m.b(y))

    model = applied(forward, a=linear(), b=linear())
    for parameter in model.parameters():
        parameter.register_hook(lambda g: seen.append(g))
    model.get_submodule("b").register_full_backward_hook(lambda module, gi, go: None)
    model.get_submodule("b").register_forward_hook(lambda module, args, out: None)
    return model, x()


@right
def hooks_on_several_parameters() -> tuple[Any, ...]:
    seen: list[Any] = []
    model = applied(lambda m, x: m.b(cube(m.a(x))), a=linear(), b=linear())
    torch.autograd.graph.register_multi_grad_hook(list(model.parameters()), seen.append)
    torch.autograd.graph.register_multi_grad_hook(list(model.parameters()), seen.append, mode="any")
    return model, x()


@right
def step_in_a_hook() -> tuple[Any, ...]:
    """The optimiser runs when a gradient is ready, as in memory-saving training loops."""
    model = applied(lambda m, x: cube(m.a(x)), a=linear())
    for parameter in model.parameters():

        def step(p: Tensor) -> None:
            with torch.no_grad():
                p.sub_(0.1 * p.grad)  # type: ignore[operator]
            p.grad = None

        parameter.register_post_accumulate_grad_hook(step)
    return model, x()


@right
def running_statistics() -> tuple[Any, ...]:
    class Normalise(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(3))
            self.mean: Tensor

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
            return x - x.mean(0)

    return applied(lambda m, x: cube(m.n(m.a(x))), a=linear(), n=Normalise()), x(4, 3)


@right
def dictionary_of_outputs() -> tuple[Any, ...]:
    return applied(lambda m, x: {"y": m.a(x), "more": [m.b(x), None]}, a=linear(), b=linear()), x()


@right
def dataclass_of_outputs() -> tuple[Any, ...]:
    @dataclass
    class Result:
        y: Tensor
        note: str

    return applied(
        lambda m, x: Result(m.inner(x).y, ""), inner=applied(lambda m, x: Result(m.a(x), "a"), a=linear())
    ), x()


@right
def named_tuple_of_outputs() -> tuple[Any, ...]:
    pair = namedtuple("pair", "y z")
    return applied(
        lambda m, x: m.c(m.inner(x).y), inner=applied(lambda m, x: pair(m.a(x), 1), a=linear()), c=linear()
    ), x()


@right
def keyword_arguments() -> tuple[Any, ...]:
    inner = applied(lambda m, x, *, scale: m.a(x) * scale, a=linear())
    model = applied(lambda m, x, flag=False: cube(m.inner(x, scale=m.b(x))) if flag else x, inner=inner, b=linear())
    return model, x(), {"kwargs": {"flag": True}}


@right
def auxiliary_output_detached() -> tuple[Any, ...]:
    """Statistics for a log beside the result."""
    inner = applied(lambda m, x: (m.a(x), m.a(x).detach().norm()), a=linear())
    return applied(lambda m, x: cube(m.inner(x)[0]), inner=inner), x()


@right
def complex_layer() -> tuple[Any, ...]:
    return applied(lambda m, x: torch.fft.irfft(torch.fft.rfft(m.a(x)) * 1j, n=3), a=linear()), x()


@right
def attention() -> tuple[Any, ...]:
    heads = nn.MultiheadAttention(4, 2, batch_first=True)
    return applied(lambda m, x: m.heads(x, x, x)[0], heads=heads), x(1, 3, 4)


@right
def recurrent_layers() -> tuple[Any, ...]:
    return applied(lambda m, x: cube(m.lstm(x)[0]), lstm=nn.LSTM(3, 2)), x(2, 2, 3)


@right
def convolution_and_pooling() -> tuple[Any, ...]:
    layers = nn.Sequential(nn.Conv2d(1, 2, 3), nn.GroupNorm(1, 2), nn.ReLU(), nn.MaxPool2d(2))
    return applied(lambda m, x: m.layers(x), layers=layers), x(1, 1, 6, 6)


@right
def sparse_gradients_of_an_embedding() -> tuple[Any, ...]:
    return applied(lambda m, i: cube(m.a(m.e(i))), e=nn.Embedding(5, 3, sparse=True), a=linear()), torch.tensor([1, 3])


@right
def single_precision() -> tuple[Any, ...]:
    model = applied(lambda m, x: m.b(cube(m.a(x))), a=linear(), b=linear()).float()
    return model, torch.randn(2, 3)


@right
def automatic_mixed_precision() -> tuple[Any, ...]:
    def forward(m: Any, x: Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return m.b(cube(m.a(x)))

    return applied(forward, a=linear(), b=linear()).float(), torch.randn(2, 3)


@right
def copied_model() -> tuple[Any, ...]:
    return copy.deepcopy(applied(lambda m, x: cube(m.a(x)), a=linear())), x()


@right
def functional_call() -> tuple[Any, ...]:
    def forward(m: Any, x: Tensor) -> Any:
        state = {name: p * 2 for name, p in m.a.named_parameters()}
        return cube(torch.func.functional_call(m.a, state, (x,)))

    return applied(forward, a=linear()), x()


@right
def switch_by_value() -> tuple[Any, ...]:
    return applied(lambda m, x: m.a(x) if x.sum().item() > 1e9 else cube(m.b(x)), a=linear(), b=linear()), x()


@right
def noise_of_its_own() -> tuple[Any, ...]:
    return applied(lambda m, x: m.a(x) + m.b(x) * torch.randn(2, 3, dtype=x.dtype), a=linear(), b=linear()), x()


@right
def generators_of_its_own() -> tuple[Any, ...]:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.torch = linear(), torch.Generator().manual_seed(3)
            self.python, self.numpy = random.Random(3), np.random.default_rng(3)

        def forward(self, x: Tensor) -> Any:
            noise = torch.rand(x.shape, generator=self.torch, dtype=x.dtype)
            return self.linear(x * noise) * (self.python.random() + self.numpy.random())

    return Noisy().double(), x(5, 3)


@right
def noise_of_an_operator() -> tuple[Any, ...]:
    """`rrelu` saves its noise before it draws it."""
    return applied(lambda m, x: m.linear(F.rrelu(m.linear(x), training=True)), linear=linear()), x()


@right
def scripted_part() -> tuple[Any, ...]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        part = torch.jit.trace(nn.Sequential(linear(), nn.Tanh()).double(), x())
    return applied(lambda m, x: cube(m.part(x)), part=part), x()


@right
def conversion_to_complex_numbers() -> tuple[Any, ...]:
    return applied(lambda m, x: cube(torch.fft.fft2(m.a(x)).real), a=linear()), x()


@right
def data_of_another_branch() -> tuple[Any, ...]:
    """What `.data` shows is written to later, so that it is no constant."""

    def forward(m: Any, x: Tensor) -> Tensor:
        values = torch.zeros_like(x)
        shown = values.data
        shown.add_(1.0)
        return cube(m.a(x) + values)

    return applied(forward, a=linear()), x(), {"stops": "constant"}


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.filterwarnings("ignore")
def test_right_model_has_no_culprit(name: str) -> None:
    model, inputs, *settings = RIGHT[name]()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    report = gradvet.blame(model, inputs, seed=1, **(settings[0] if settings else {}))
    assert report.verdict is Verdict.PASS, f"{report}"
    assert report.warnings == ()
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


@pytest.mark.filterwarnings("ignore")
def test_scripted_model_passes_without_forward_mode() -> None:
    model = torch.jit.script(nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 2)))  # type: ignore[no-untyped-call]
    report = gradvet.check(model, torch.randn(4, 3), seed=1)
    assert report.verdict is Verdict.PASS, f"{report}"
    notes = gradvet.blame(model, torch.randn(4, 3), seed=1).notes
    assert any("scripted" in note for note in notes)


def test_there_are_thirty_models() -> None:
    assert len(RIGHT) >= 30


def test_function_mapped_by_torch_without_forward_mode_passes() -> None:
    model = applied(lambda m, x: torch.func.vmap(lambda row: cube(m.a(row)))(x), a=linear())
    report = gradvet.check(model, x(), seed=1, points=None)
    assert report.verdict is Verdict.PASS, f"{report}"


class Compiled(torch.autograd.Function):
    """Refuses to keep its graph, as compiled functions with donated buffers do."""

    slope = 1.0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @classmethod
    def backward(cls, ctx: Any, g: Tensor) -> Tensor:
        if torch._C._autograd._get_current_graph_task_keep_graph():  # type: ignore[attr-defined]
            raise RuntimeError("This backward function was compiled with non-empty donated buffers")
        (x,) = ctx.saved_tensors
        return ctx._forward_cls.slope * g * x.cos()  # type: ignore[no-any-return]


class WrongCompiled(Compiled):
    slope = 2.0


@pytest.mark.parametrize("function", [Compiled, WrongCompiled])
def test_function_that_cannot_keep_its_graph_is_decided(function: Any) -> None:
    model = applied(lambda m, x: m.b(function.apply(m.a(x))), a=linear(), b=linear())
    expected = Verdict.PASS if function is Compiled else Verdict.FAIL
    assert gradvet.blame(model, x(), seed=1).verdict is expected
    assert gradvet.check(model, x(), seed=1).verdict is expected
