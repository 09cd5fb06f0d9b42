"""Entries 103 to 106: what atol and rtol mean, and that fast mode means the same by them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from .checker import Checker
from .functions import linear, with_gradient_hook
from .points import leaf, numbers

MISMATCH = "Jacobian mismatch for output 0 with respect to input 0"
TOLERANCE = {"atol": 1e-3, "rtol": 0.0}
SHAPE = (12, 20)


def _single_entry() -> Tensor:
    error = torch.zeros(SHAPE, dtype=torch.float64)
    error[7, 4] = 1.0
    return error


ERRORS = {
    "everywhere": torch.ones(SHAPE, dtype=torch.float64),
    "signs_mixed": torch.sign(numbers(*SHAPE, seed=3)),
    "single_entry": _single_entry(),
}


def _off_by(error: Tensor) -> Callable[[Tensor], Tensor]:
    matrix = numbers(*SHAPE, seed=2)
    return linear(matrix, matrix + error)


@pytest.mark.parametrize("kind", ERRORS)
def test_103_error_below_atol_passes(checker: Checker, kind: str) -> None:
    checker.accepts(_off_by(0.8e-3 * ERRORS[kind]), leaf(20), **TOLERANCE)


def test_103_error_above_atol_everywhere_is_a_mismatch(checker: Checker) -> None:
    checker.rejects(MISMATCH, _off_by(2e-3 * ERRORS["everywhere"]), leaf(20), **TOLERANCE)


@pytest.mark.parametrize("kind", ["signs_mixed", "single_entry"])
@pytest.mark.upstream_differs("one projection with positive weights dilutes or cancels the error", mode="fast")
def test_103_error_above_atol_that_a_projection_dilutes_is_a_mismatch(checker: Checker, kind: str) -> None:
    checker.rejects(MISMATCH, _off_by(2e-3 * ERRORS[kind]), leaf(20), **TOLERANCE)


def test_104_complex_input_near_a_pole_passes_in_both_modes(checker: Checker) -> None:
    """The truncation error of the differences comes close to atol here."""
    z = (0.015 * torch.tensor([0.8 + 0.3j, -0.2 + 0.48j], dtype=torch.complex128)).requires_grad_()
    checker.accepts(lambda x: 1 / torch.linalg.vector_norm(x), z, atol=8.3e-6, rtol=1e-9)


def test_105_rtol_is_relative_to_the_numerical_value(checker: Checker) -> None:
    halved = with_gradient_hook(lambda gradient: gradient / 2, torch.sin)
    checker.accepts(halved, leaf(3), atol=1e-8, rtol=0.6)
    doubled = with_gradient_hook(lambda gradient: gradient * 2, torch.sin)
    checker.rejects(MISMATCH, doubled, leaf(3), atol=1e-8, rtol=0.6)


@pytest.mark.parametrize("func", [lambda z: z * z, lambda z: z.abs()], ids=["to_complex", "to_real"])
def test_106_both_modes_cover_complex_functions(checker: Checker, func: Callable[[Tensor], Tensor]) -> None:
    z = leaf(3, dtype=torch.complex128)
    checker.accepts(func, z)
    checker.rejects(MISMATCH, with_gradient_hook(lambda gradient: gradient * 1.01, func), z)
    checker.rejects(MISMATCH, with_gradient_hook(lambda gradient: gradient * 1j, func), z)
