"""The three Jacobian helpers: orientation, complex inputs, and a world left as it was."""

from __future__ import annotations

from itertools import count

import pytest
import torch
from torch import Tensor

from gradvet import (
    get_analytical_jacobian,
    get_numerical_jacobian,
    get_numerical_jacobian_wrt_specific_input,
)
from tests.core.wrong_jacobians import numbers
from tests.functions import with_vjp

pytestmark = pytest.mark.filterwarnings("ignore:get_:FutureWarning")


def product(x: Tensor, y: Tensor) -> Tensor:
    return x @ y


def leaves() -> tuple[Tensor, Tensor]:
    return numbers((2, 3), 0).requires_grad_(), numbers((3,), 1).requires_grad_()


def expected(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs × outputs."""
    by_x = torch.zeros(6, 2, dtype=torch.float64)
    by_x[:3, 0] = by_x[3:, 1] = y.detach()
    return by_x, x.detach().T


def test_matrices_are_inputs_by_outputs_in_both_ways() -> None:
    x, y = leaves()
    numerical = get_numerical_jacobian(lambda inputs: product(*inputs), (x, y), eps=1e-6)
    analytical, *_ = get_analytical_jacobian((x, y), product(x, y))
    for found in (numerical, analytical):
        for matrix, right in zip(found, expected(x, y), strict=True):
            assert matrix.shape == right.shape
            assert torch.allclose(matrix, right, atol=1e-8)


def test_matrix_of_one_input_has_one_block_per_output() -> None:
    x, y = leaves()

    def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return product(x, y), y * 2.0

    first, second = get_numerical_jacobian_wrt_specific_input(function, 1, (x, y), None, 1e-6)
    assert torch.allclose(first, expected(x, y)[1], atol=1e-8)
    assert torch.allclose(second, 2.0 * torch.eye(3, dtype=torch.float64), atol=1e-8)


def test_complex_input_has_complex_entries() -> None:
    z = numbers((2,), 0, torch.complex128).requires_grad_()
    (numerical,) = get_numerical_jacobian(lambda inputs: inputs[0].abs() ** 2, (z,), eps=1e-6)
    (analytical,), *_ = get_analytical_jacobian(z, z.abs() ** 2)
    for found in (numerical, analytical):
        assert torch.allclose(found, (2.0 * z.detach()).diag(), atol=1e-8)


def test_derivative_that_is_not_reproducible_is_told() -> None:
    passes = count(1)
    jitter = with_vjp(lambda x: x * 2.0, lambda v, x: v * (2.0 + 1e-6 * next(passes)))

    x = numbers((3,), 0).requires_grad_()
    assert get_analytical_jacobian(x, x * 2.0)[1:] == (True, True, True)
    assert get_analytical_jacobian(x, jitter(x))[1] is False
    assert get_analytical_jacobian(x, jitter(x), nondet_tol=1e-3)[1] is True


def test_inputs_and_random_state_are_left_as_they_were() -> None:
    x, y = leaves()
    state = torch.get_rng_state()
    get_numerical_jacobian(lambda inputs: product(*inputs) + 0.0 * torch.rand(1), (x, y))
    assert torch.equal(x.detach(), numbers((2, 3), 0))
    assert torch.equal(torch.get_rng_state(), state)
