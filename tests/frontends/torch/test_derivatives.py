"""Reverse and forward mode in real coordinates, one by one and together."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import Tensor

from gradvet.frontends.torch import process_state
from gradvet.frontends.torch.binding import drop_in_binding
from gradvet.frontends.torch.derivatives import evaluate_together
from gradvet.frontends.torch.problem import TorchProblem
from tests.core.wrong_jacobians import numbers
from tests.functions import with_vjp


def pair(x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """A real input of 3 and a complex one of 2; a complex output of 2 and a real one of 3."""
    return z * x.sum() + z.abs() * x[0], x.sin() * z.abs().sum()


def problem() -> TorchProblem:
    x, z = numbers((3,), 0).requires_grad_(), numbers((2,), 1, torch.complex128).requires_grad_()
    return TorchProblem(drop_in_binding(pair, (x, z)), seed=0)


def jacobian() -> Tensor:
    """Of `pair` in real coordinates, by torch's own means."""

    def real(coordinates: Tensor) -> Tensor:
        z = torch.view_as_complex(coordinates[3:].clone().reshape(2, 2))
        first, second = pair(coordinates[:3], z)
        return torch.cat([torch.view_as_real(first).reshape(-1), second])

    point = torch.cat([numbers((3,), 0), torch.view_as_real(numbers((2,), 1, torch.complex128)).reshape(-1)])
    J: Tensor = torch.autograd.functional.jacobian(real, point)  # type: ignore[no-untyped-call]
    return J


ROWS, COLUMNS = torch.eye(7, dtype=torch.float64), torch.eye(7, dtype=torch.float64)


def test_pull_gives_the_rows_of_the_jacobian() -> None:
    found, J = problem(), jacobian()
    assert J.shape == (7, 7)
    assert torch.allclose(torch.stack([found.vjp(v) for v in ROWS]), J)
    v = numbers((7,), 2)
    assert torch.allclose(found.vjp(v), v @ J)


def test_push_gives_the_columns_of_the_jacobian() -> None:
    found, J = problem(), jacobian()
    assert torch.allclose(torch.stack([found.jvp(u) for u in COLUMNS], 1), J)


def test_pull_from_one_output_needs_no_cotangent_of_the_others() -> None:
    found, J = problem(), jacobian()
    v = numbers((7,), 2)
    assert torch.allclose(found.vjp_of_output(0, v[:4]), v[:4] @ J[:4])
    assert torch.allclose(found.vjp_of_output(1, v[4:]), v[4:] @ J[4:])
    assert torch.allclose(found.gradient_by_output(v).vector, v @ J)


def test_several_directions_together_give_what_each_gives() -> None:
    found, J = problem(), jacobian()
    V, U = [numbers((7,), 3), numbers((7,), 4)], [numbers((7,), 5), numbers((7,), 6)]
    for v, vjp in zip(V, found.vjp_batched(V), strict=True):
        assert torch.allclose(vjp, v @ J)
    for u, jvp in zip(U, found.jvp_batched(U), strict=True):
        assert torch.allclose(jvp, J @ u)


@pytest.mark.parametrize(("output", "first"), [(0, 0), (1, 4)])
def test_rows_together_give_what_each_gives(output: int, first: int) -> None:
    found = problem()
    rows = found.vjp_rows(output, 1, 3)
    assert rows is not None
    assert torch.allclose(rows, jacobian()[first + 1 : first + 3])


def test_points_together_give_what_each_gives() -> None:
    found = problem()
    displacements = torch.stack([numbers((7,), seed) for seed in range(4)])
    together = evaluate_together(found, displacements)
    assert together is not None
    for displacement, values in zip(displacements, together, strict=True):
        (alone,) = found.evaluate(found.perturbation(displacement), (1.0,))
        assert torch.allclose(values, alone)
    assert torch.equal(found.inputs[0].detach(), numbers((3,), 0))


def test_function_that_cannot_be_mapped_gives_no_points_and_no_rows() -> None:
    def function(x: Tensor) -> Tensor:
        return x * x.sum().item()

    single = with_vjp(lambda x: x * 2.0, lambda v, x: v * (2.0 + 0.0 * v.sum().item()))

    x = numbers((3,), 0).requires_grad_()
    assert (
        evaluate_together(TorchProblem(drop_in_binding(function, [x]), 0), torch.ones(4, 3, dtype=torch.float64))
        is None
    )
    found = TorchProblem(drop_in_binding(single, [x]), 0)
    assert found.vjp_rows(0, 0, 3) is None


def test_unused_input_has_a_zero_derivative() -> None:
    x, y = numbers((3,), 0).requires_grad_(), numbers((2,), 1).requires_grad_()
    found = TorchProblem(drop_in_binding(lambda x, y: x.sin(), (x, y)), 0)
    v = torch.ones(3, dtype=torch.float64)
    assert torch.equal(found.vjp(v)[3:], torch.zeros(2, dtype=torch.float64))
    (together,) = found.vjp_batched([v])
    assert torch.equal(together[3:], torch.zeros(2, dtype=torch.float64))
    rows = found.vjp_rows(0, 0, 3)
    assert rows is not None
    assert torch.equal(rows[:, 3:], torch.zeros(3, 2, dtype=torch.float64))
    u = torch.tensor([0.0, 0.0, 0.0, 1.0, 1.0], dtype=torch.float64)
    assert torch.equal(found.jvp(u), torch.zeros(3, dtype=torch.float64))


def test_missing_tangent_of_one_input_is_zero() -> None:
    found, J = problem(), jacobian()
    u = numbers((7,), 8)
    assert torch.allclose(found.jvp(u, missing=1), J[:, :3] @ u[:3])
    assert torch.allclose(found.jvp(u, missing=0), J[:, 3:] @ u[3:])


def test_forward_mode_hands_over_tensors_that_do_not_require_grad() -> None:
    seen = []

    def function(x: Tensor) -> Tensor:
        seen.append(x.requires_grad)
        return x.sin()

    found = TorchProblem(drop_in_binding(function, [numbers((3,), 0).requires_grad_()]), 0)
    found.jvp(torch.ones(3, dtype=torch.float64))
    assert seen == [True, False]


def test_graph_is_freed_with_its_problem() -> None:
    found = problem()
    assert not found.rules.has_custom
    assert not found.variants.reads_captured()
    graph = weakref.ref(found)
    gc.disable()
    try:
        del found
        assert graph() is None  # the graph belongs to the problem
    finally:
        gc.enable()


def test_gradients_come_back_in_memory_of_their_own() -> None:
    found = TorchProblem(drop_in_binding(lambda x: x.view_as(x), [numbers((3,), 0).requires_grad_()]), 0)
    v = torch.ones(3, dtype=torch.float64)
    vjp = found.vjp(v)
    vjp.zero_()
    assert torch.equal(v, torch.ones(3, dtype=torch.float64))
    assert torch.equal(found.vjp(v), v)


@pytest.mark.skipif(not process_state.VMAP_FALLBACK, reason="torch has no such setting, or public names alone are used")
def test_operators_that_vmap_would_call_point_by_point_are_not_vectorised() -> None:
    """torch warns at each of these calls, on standard error for operators in C++."""
    displacements = torch.eye(3, dtype=torch.float64)

    def row_by_row(x: Tensor) -> Tensor:
        return torch.renorm(x[None], 2, 0, 1.0)[0]

    for function, is_mapped in ((row_by_row, False), (torch.sin, True)):
        x = torch.tensor([0.5, 2.0, 3.0], dtype=torch.float64, requires_grad=True)
        problem = TorchProblem(drop_in_binding(function, [x]), 0)
        assert (evaluate_together(problem, displacements) is not None) is is_mapped
    assert [read() for read in process_state.VMAP_FALLBACK] == [True]
