"""Entries 128 to 133: the deprecated functions around the checks, which other code imports."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from .checker import Library, library
from .functions import with_jittering_backward
from .points import leaf

DEPRECATED = "was part of PyTorch's private API"
GRAD_OUT = "Expected grad_out to be 1.0"
COMPLEX = "Expected output to be non-complex"


def _two_sums(inputs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """From one tuple; the first output is 2x + 3y, and the second one must not matter."""
    x, y = inputs
    return 2 * x + 3 * y, 7 * x


def _numerical(implementation: Library, *args: Any, **options: Any) -> Any:
    with pytest.warns(FutureWarning, match=DEPRECATED):
        return implementation.module.get_numerical_jacobian(*args, **options)


def _analytical(implementation: Library, *args: Any, **options: Any) -> Any:
    with pytest.warns(FutureWarning, match=DEPRECATED):
        return implementation.module.get_analytical_jacobian(*args, **options)


def test_128_numerical_jacobian_has_one_matrix_for_each_target(implementation: Library) -> None:
    x, y = leaf(2, 2), leaf(2, 2, seed=2)
    identity = torch.eye(4, dtype=torch.float64)
    both = _numerical(implementation, _two_sums, (x, y), eps=1e-6)
    assert isinstance(both, tuple)
    torch.testing.assert_close(both, (2 * identity, 3 * identity), rtol=0, atol=1e-6)
    alone = _numerical(implementation, _two_sums, (x, y), target=y, eps=1e-6)
    torch.testing.assert_close(alone, (3 * identity,), rtol=0, atol=1e-6)


def test_128_numerical_jacobian_is_inputs_by_outputs_with_a_default_step(implementation: Library) -> None:
    x = leaf(3)
    copy = x.detach().clone()
    (jacobian,) = _numerical(implementation, lambda inputs: torch.stack((inputs[0][0], 5 * inputs[0][2])), (x,))
    expected = torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 5.0]], dtype=torch.float64)
    torch.testing.assert_close(jacobian, expected, rtol=0, atol=1e-6)
    assert x.equal(copy)


def test_129_numerical_jacobian_refuses_grad_out(implementation: Library) -> None:
    with pytest.raises(ValueError, match=GRAD_OUT):
        _numerical(implementation, _two_sums, (leaf(2), leaf(2)), eps=1e-6, grad_out=2.0)


def test_130_numerical_jacobian_refuses_a_complex_output(implementation: Library) -> None:
    with pytest.raises(ValueError, match=COMPLEX):
        _numerical(implementation, lambda inputs: inputs[0] * 1j, (leaf(2),), eps=1e-6)


def test_131_analytical_jacobian_tells_matrices_and_three_facts(implementation: Library) -> None:
    x, y = leaf(3), leaf(3, seed=2)
    output = torch.stack((2 * x[0] + y[1], 5 * x[2]))
    jacobians, reentrant, sizes_ok, types_ok = _analytical(implementation, (x, y), output)
    by_x = torch.tensor([[2.0, 0.0], [0.0, 0.0], [0.0, 5.0]], dtype=torch.float64)
    by_y = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(tuple(jacobians), (by_x, by_y), rtol=0, atol=0)
    assert (reentrant, sizes_ok, types_ok) == (True, True, True)


def test_131_analytical_jacobian_tells_a_jittering_backward(implementation: Library) -> None:
    x = leaf(3)
    output = with_jittering_backward(1e-6)(x)
    jacobians, reentrant, sizes_ok, types_ok = _analytical(implementation, (x,), output)
    torch.testing.assert_close(jacobians[0], torch.diag(x.detach().cos()), rtol=1e-5, atol=0)
    assert (reentrant, sizes_ok, types_ok) == (False, True, True)
    assert _analytical(implementation, (x,), output, nondet_tol=1e-5)[1] is True


def test_132_analytical_jacobian_refuses_grad_out_and_complex_outputs(implementation: Library) -> None:
    x = leaf(3)
    with pytest.raises(ValueError, match=GRAD_OUT):
        _analytical(implementation, (x,), x.sin(), grad_out=2.0)
    with pytest.raises(ValueError, match=COMPLEX):
        _analytical(implementation, (x,), x * 1j)


def test_133_public_names_of_the_module_are_there(implementation: Library) -> None:
    names = {
        "GradcheckError",
        "get_analytical_jacobian",
        "get_numerical_jacobian",
        "get_numerical_jacobian_wrt_specific_input",
        "gradcheck",
        "gradgradcheck",
    }
    assert set(library("torch").module.__all__) == names
    assert names <= set(implementation.module.__all__)


def test_133_numerical_jacobian_of_one_input_has_one_matrix_for_each_output(implementation: Library) -> None:
    inputs = (leaf(2), leaf(3, seed=2))

    def func(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return y.sum() * 2, torch.stack((x[0], 5 * y[2]))

    jacobians = implementation.module.get_numerical_jacobian_wrt_specific_input(func, 1, inputs, func(*inputs), 1e-6)
    expected = torch.full((3, 1), 2.0, dtype=torch.float64), torch.tensor([[0.0, 0], [0, 0], [0, 5]]).double()
    torch.testing.assert_close(tuple(jacobians), expected, rtol=0, atol=1e-6)
