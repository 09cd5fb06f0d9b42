"""Captured CUDA graphs: right where they can be captured, refused where they cannot, never trusted unseen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from gradvet.core.context import Context
from gradvet.core.jacobians import CentralDifferences
from gradvet.core.problem import Distribution
from gradvet.frontends.torch.binding import drop_in_binding
from gradvet.frontends.torch.problem import TorchProblem
from gradvet.frontends.torch.vectorised import GRAPH_POINTS
from gradvet.options import Options


class Opaque(torch.autograd.Function):
    """x sin x, of which `vmap` knows nothing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin() * x

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return cotangent * (x.cos() * x + x.sin())


def problem(function: Callable[..., Any], *shapes: tuple[int, ...], dtype: torch.dtype = torch.float64) -> TorchProblem:
    generator = torch.Generator("cuda").manual_seed(0)
    points = [torch.randn(shape, dtype=dtype, device="cuda", generator=generator) for shape in shapes]
    return TorchProblem(drop_in_binding(function, [point.requires_grad_() for point in points]), seed=0)


def displacements(found: TorchProblem, number: int) -> Tensor:
    return torch.stack([found.random(found.domain.size, Distribution.APART, 1e-3) for _ in range(number)])


@pytest.mark.parametrize("number", [1, GRAPH_POINTS, 2 * GRAPH_POINTS + 3])
def test_replayed_values_are_those_of_plain_calls(number: int) -> None:
    found = problem(lambda x, y: (Opaque.apply(x) @ y, y.exp()), (3, 4), (4, 2))
    points = displacements(found, number)
    before = [tensor.detach().clone() for tensor in found.inputs]
    replayed = found.evaluate_replayed(points)
    assert replayed is not None
    for row, displacement in zip(replayed, points, strict=True):
        (plain,) = found.evaluate(found.move(displacement), (1.0,))
        assert torch.allclose(row, plain, rtol=1e-12, atol=1e-12)
    assert all(torch.equal(tensor, values) for tensor, values in zip(found.inputs, before, strict=True))


def test_complex_inputs_are_replayed() -> None:
    found = problem(lambda z: Opaque.apply(z.abs()), (5,), dtype=torch.complex128)
    (displacement,) = points = displacements(found, 1)
    replayed = found.evaluate_replayed(points)
    assert replayed is not None
    assert torch.allclose(replayed[0], found.evaluate(found.move(displacement), (1.0,))[0], rtol=1e-12)


def test_captured_tensors_are_seen_to_move() -> None:
    weight = torch.ones(3, dtype=torch.float64, device="cuda", requires_grad=True)
    found = TorchProblem(drop_in_binding(lambda _: Opaque.apply(weight), [weight]), seed=0)
    replayed = found.evaluate_replayed(torch.full((1, 3), 0.5, dtype=torch.float64, device="cuda"))
    assert replayed is not None
    assert torch.allclose(replayed[0], torch.full_like(weight, 1.5).sin() * 1.5)


def test_function_that_waits_for_the_device_is_refused_and_does_no_harm() -> None:
    found = problem(lambda x: x.sin() if float(x.detach().norm()) > 1.0 else x.cos(), (4,))
    assert found.evaluate_replayed(displacements(found, 3)) is None
    assert torch.randn(2, device="cuda").isfinite().all()
    assert torch.cuda.get_sync_debug_mode() == 0


def test_opaque_function_is_replayed_after_it_was_verified() -> None:
    context = Context(problem(Opaque.apply, (200,)), Options(seed=0))
    assert context.problem.evaluate_together(context.problem.zeros((2, 200))) is None
    trusted = CentralDifferences(context.projections).trusted
    assert trusted == context.problem.evaluate_replayed
    x = context.problem.inputs[0].detach()
    J = CentralDifferences(context.projections).columns(0, 200)
    assert torch.allclose(J, (x.cos() * x + x.sin()).diag(), rtol=0.0, atol=1e-8)


def test_replay_that_differs_from_plain_calls_is_not_trusted() -> None:
    calls = 0

    def counting(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return Opaque.apply(x) * (2.0 if torch.cuda.is_current_stream_capturing() else 1.0)

    context = Context(problem(counting, (200,)), Options(seed=0))
    assert CentralDifferences(context.projections).trusted is None
    assert calls > GRAPH_POINTS
