"""Section 13: what torch's checker is known to miss; the bugs that have an entry of their own are tested there."""

from __future__ import annotations

import pytest
import torch

from .checker import Checker
from .functions import linear, with_gradient_hook
from .points import leaf, numbers

MISMATCH = "Jacobian mismatch for output 0 with respect to input 0"
BLIND = pytest.mark.upstream_differs("fast mode looks along one positive direction only", mode="fast")


@pytest.mark.parametrize("position", [0, 137, 399])
@BLIND
def test_s13_gradient_doubled_in_one_of_many_elements_is_found(checker: Checker, position: int) -> None:
    factors = torch.ones(400, dtype=torch.float64)
    factors[position] = 2.0
    wrong = with_gradient_hook(lambda gradient: gradient * factors, torch.sin)
    checker.rejects(MISMATCH, wrong, leaf(400))


@BLIND
def test_s13_one_wrong_entry_of_a_large_jacobian_is_found(checker: Checker) -> None:
    matrix = 1 + numbers(150, 200, seed=2)
    error = torch.zeros_like(matrix)
    error[140, 3] = 0.5
    checker.rejects(MISMATCH, linear(matrix, matrix + error), leaf(200))
