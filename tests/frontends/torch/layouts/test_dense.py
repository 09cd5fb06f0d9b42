"""Inputs of every kind are perturbed together, each perturbation from the point itself, and restored bit for bit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gradvet.frontends.torch.binding import drop_in_binding
from gradvet.frontends.torch.problem import TorchProblem


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(len(shape)))


def transposed() -> Tensor:
    return numbers(3, 4).t()


KINDS = {
    "ordinary": lambda: [numbers(3), numbers(2, 2), numbers()],
    "strides": lambda: [transposed(), numbers(6)[::2], numbers(0, 3)],
    "one": lambda: [numbers(2, 3)],
    "single precision": lambda: [numbers(3), numbers(2, 2).float()],
    "complex": lambda: [numbers(3), torch.complex(numbers(2), numbers(2))],
    "infinite": lambda: [numbers(3), torch.tensor([1.0, torch.inf], dtype=torch.float64)],
    "negated": lambda: [numbers(3), torch._neg_view(numbers(3))],
}


def copies_of(tensors: list[Tensor]) -> TorchProblem:
    """The problem whose outputs are copies of its inputs."""
    inputs = [tensor.requires_grad_() for tensor in tensors]
    return TorchProblem(drop_in_binding(lambda *values: tuple(value.clone() for value in values), inputs), seed=0)


@pytest.mark.parametrize("kind", KINDS)
def test_every_perturbation_starts_at_the_point(kind: str) -> None:
    tensors = KINDS[kind]()
    problem = copies_of(tensors)
    perturbation = problem.perturbation(1e-3 * numbers(problem.domain.size))
    assert perturbation.vector.any()
    far, near = problem.evaluate(perturbation, (3.0, -1.0))
    torch.testing.assert_close(far, problem.value + 3.0 * perturbation.vector, rtol=1e-7, atol=0.0)
    assert torch.equal(near, problem.evaluate(perturbation, (-1.0,))[0])
    assert all(map(torch.equal, tensors, KINDS[kind]()))


def test_tensor_that_is_given_twice_is_moved_by_both() -> None:
    x = numbers(2)
    before = x.clone()
    problem = copies_of([x, x])
    values = problem.evaluate(problem.perturbation(torch.tensor([0.25, 0.0, 0.5, 1.0], dtype=torch.float64)), (1.0,))[0]
    assert torch.allclose(values, torch.cat([before, before]) + torch.tensor([0.75, 1.0] * 2, dtype=torch.float64))
    assert torch.equal(x, before)


@pytest.mark.parametrize(
    "gradients",
    [
        [numbers(3), numbers(2, 2), numbers()],
        [numbers(3), None, numbers()],
        [numbers(3).float(), numbers(2, 2), numbers()],
    ],
)
def test_gradients_are_gathered_into_one_vector(gradients: list[Tensor | None]) -> None:
    problem = copies_of(KINDS["ordinary"]())
    shapes = [leaf.coordinates.size for leaf in problem.domain.leaves]
    rows = [torch.zeros(size) if g is None else g for g, size in zip(gradients, shapes, strict=True)]
    assert torch.equal(problem.vector(problem.domain, gradients), torch.cat([row.reshape(-1).double() for row in rows]))
