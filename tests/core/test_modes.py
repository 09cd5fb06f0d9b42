"""Whole Jacobians by blocks of columns are right, whatever way they are computed, and bounded in memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._C._functorch import is_legacy_batchedtensor

from gradvet.core import modes
from gradvet.core.modes import CentralDifferences, ReverseJacobian, forward_columns
from gradvet.core.projections import Projections
from gradvet.frontends.torch.problem import TorchProblem

from .wrong_jacobians import context_at, numbers

LOSSY = 1e-8


def coupled(x: Tensor) -> Tensor:
    """40 outputs of 30 inputs, neither diagonal nor symmetric."""
    weights = torch.arange(1200, dtype=x.dtype).reshape(40, 30).sin()
    return (weights @ x).sin() + x[:1] * x[-1:]


def exact(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    J: Tensor = torch.autograd.functional.jacobian(function, x.detach())  # type: ignore[no-untyped-call]
    return J


def plain_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is vectorised."""
    monkeypatch.setattr(TorchProblem, "evaluate_together", lambda self, displacements: None)
    monkeypatch.setattr(modes, "MIN_BATCH", 10**9)


WORK: list[float] = []
"""Seconds that the clock counts for work of a function, which takes none."""


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the time of a call independent of the load of the machine."""
    real = time.thread_time
    monkeypatch.setattr(time, "thread_time", lambda: real() + sum(WORK))


def hurried(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with work of its own in every call, so that one vectorised call is sooner than many plain ones."""

    def busy(*arguments: Any) -> Any:
        WORK.append(10.0)
        return function(*arguments)

    return busy


def spy(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many points each vectorised call was asked for."""
    asked: list[int] = []
    original = TorchProblem.evaluate_together

    def evaluate_together(self: TorchProblem, displacements: Tensor) -> Tensor | None:
        asked.append(len(displacements))
        return original(self, displacements)

    monkeypatch.setattr(TorchProblem, "evaluate_together", evaluate_together)
    return asked


MATRICES: dict[str, Callable[[Projections], Callable[[int, int], Tensor]]] = {
    "numerical": lambda projections: CentralDifferences(projections).columns,
    "reverse": lambda projections: ReverseJacobian(projections).columns,
    "forward": lambda projections: partial(forward_columns, projections.problem),
}


@pytest.mark.parametrize("name", MATRICES)
def test_blocks_of_columns_are_those_of_the_jacobian(name: str) -> None:
    x = numbers((30,), 0)
    J = exact(coupled, x)
    matrix = MATRICES[name](context_at(coupled, x).projections)
    for start, stop in ((0, 30), (0, 1), (7, 9), (11, 29)):
        assert torch.allclose(matrix(start, stop), J[:, start:stop], rtol=0.0, atol=1e-8)


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_vectorised_jacobian_equals_the_loop(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = numbers((4, 5), 1, dtype), numbers((5, 7), 2, dtype)

    def function(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return (x @ w).tanh(), (x * x.conj()).real.sum(0).expand(17, 5) * w.abs().sum()

    together = context_at(hurried(function), x, w).projections
    size = together.problem.domain.size
    fast = MATRICES[name](together)(0, size)
    plain_only(monkeypatch)
    slow = MATRICES[name](context_at(function, x, w).projections)(0, size)
    assert fast.shape == slow.shape
    assert torch.allclose(fast, slow, rtol=0.0, atol=1e-8)


def test_differences_are_vectorised_where_that_is_right_and_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = spy(monkeypatch)
    projections = context_at(hurried(coupled), numbers((30,), 3)).projections
    before = projections.problem.cost.forwards
    CentralDifferences(projections).columns(0, 30)
    assert 60 in asked
    assert projections.problem.cost.forwards - before < 20


class OddUnderVmap(torch.autograd.Function):
    """The sine, whose rule for vmap gives something else."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.sin()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        together = is_legacy_batchedtensor(cotangent)
        time.sleep(2e-4)
        gradient: Tensor = ctx.saved_tensors[0].cos() * cotangent * (1.001 if together else 1.0)
        return gradient

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], x: Tensor) -> tuple[Tensor, int | None]:
        return x.sin() * 1.001, in_dims[0]


def test_differences_of_a_wrong_vmap_rule_are_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = spy(monkeypatch)
    x = numbers((30,), 4)
    J = CentralDifferences(context_at(hurried(OddUnderVmap.apply), x).projections).columns(0, 30)
    assert torch.allclose(J, x.detach().cos().diag(), rtol=0.0, atol=LOSSY)
    assert len(asked) == 1


def test_rows_that_are_wrong_when_batched_are_not_trusted() -> None:
    x = numbers((30,), 5)
    projections = context_at(OddUnderVmap.apply, x).projections
    batched = projections.problem.vjp_rows(0, 0, 30)
    assert batched is not None
    assert not torch.allclose(batched, x.detach().cos().diag(), rtol=0.0, atol=1e-6)
    J = ReverseJacobian(projections).columns(0, 30)
    assert torch.allclose(J, x.detach().cos().diag(), rtol=0.0, atol=1e-14)


def test_rows_of_a_second_output_that_are_wrong_when_batched_are_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReverseJacobian, "_is_faster", lambda self, output: True)
    x = numbers((30,), 5)
    projections = context_at(lambda x: (x.cos(), OddUnderVmap.apply(x)), x).projections
    J = ReverseJacobian(projections).columns(0, 30)
    assert torch.allclose(J[30:], x.detach().cos().diag(), rtol=0.0, atol=1e-14)


def test_function_that_reads_a_captured_tensor_is_moved_in_place() -> None:
    x = numbers((30,), 6).requires_grad_()
    J = CentralDifferences(context_at(hurried(lambda _: x.sin()), x).projections).columns(0, 30)
    assert torch.allclose(J, x.detach().cos().diag(), rtol=0.0, atol=LOSSY)


def test_function_that_cannot_be_mapped_is_called_point_by_point() -> None:
    x = numbers((30,), 7)

    def function(x: Tensor) -> Tensor:
        return x.sin() * 2.0 if x.sum().item() > -1e9 else x

    J = CentralDifferences(context_at(hurried(function), x).projections).columns(0, 30)
    assert torch.allclose(J, 2.0 * x.detach().cos().diag(), rtol=0.0, atol=LOSSY)


def test_memory_of_a_vectorised_block_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modes, "BLOCK", 2_000)
    asked = spy(monkeypatch)
    projections = context_at(hurried(coupled), numbers((30,), 8)).projections
    J = CentralDifferences(projections).columns(0, 30)
    assert torch.allclose(J, exact(coupled, projections.problem.inputs[0]), rtol=0.0, atol=LOSSY)
    entries = projections.problem.domain.size + projections.problem.codomain.size
    # Two calls test the vectorised evaluation; the columns take at least two more.
    assert asked[:2] == [2, modes.TIMED_POINTS]
    assert len(asked) > 3
    assert all(points * entries <= 2_000 for points in asked)


def test_rows_of_a_large_jacobian_are_computed_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    x = numbers((30,), 9)
    J = exact(coupled, x)
    monkeypatch.setattr(modes, "BLOCK", 1_150)
    monkeypatch.setattr(ReverseJacobian, "_is_faster", lambda self, output: True)
    projections = context_at(coupled, x).projections
    matrix = ReverseJacobian(projections)
    assert not matrix.fits
    assert torch.allclose(matrix.columns(3, 5), J[:, 3:5])
    assert torch.allclose(matrix.rows_of(0, [8, 29]), J[:, [8, 29]])
    assert projections.problem.cost.vjps < 40


def test_rows_of_a_large_jacobian_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    x = numbers((30,), 9)
    J = exact(coupled, x)
    monkeypatch.setattr(modes, "BLOCK", 100)
    projections = context_at(coupled, x).projections
    matrix = ReverseJacobian(projections)
    assert not matrix.fits
    assert torch.allclose(matrix.columns(3, 5), J[:, 3:5])
    vjps = projections.problem.cost.vjps
    assert torch.allclose(matrix.columns(8, 9), J[:, 8:9])
    assert projections.problem.cost.vjps == vjps + 40


def test_rows_of_a_small_jacobian_are_pulled_once() -> None:
    projections = context_at(coupled, numbers((30,), 10)).projections
    matrix = ReverseJacobian(projections)
    matrix.columns(3, 5)
    vjps = projections.problem.cost.vjps
    matrix.columns(8, 30)
    assert projections.problem.cost.vjps == vjps


def test_columns_by_differences_divide_by_the_nominal_step() -> None:
    # Next to 10, float32 can be moved by 9.5e-7 but not by 1e-6: the classical quotient is off by that much.
    projections = context_at(lambda x: x.double() * 2.0, torch.full((1,), 10.0)).projections
    step = projections.options.step
    moved = float((torch.tensor(10.0) + step) - 10.0)
    assert moved == pytest.approx(step, rel=0.1)
    assert moved != pytest.approx(step, rel=0.01)
    assert float(CentralDifferences(projections).columns(0, 1)) == pytest.approx(2.0 * moved / step)
