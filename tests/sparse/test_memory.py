"""A masked check of a sparse input allocates memory for its stored numbers, not for its dense shape."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import gradvet
from tests.allocation import allocated
from tests.functions import with_vjp

SIDE, ENTRIES = 100_000, 1_000
LIMIT = 20_000_000
"""Bytes of all tensors that a check may create; the dense tensor has 80 GB, one of its rows 0.8 MB."""


def stored_vjp(gradient: Tensor, x: Tensor, factor: float) -> Tensor:
    values = factor * gradient * torch.cos(x._values())
    return torch.sparse_coo_tensor(x._indices(), values, x.shape, is_coalesced=True)


stored = with_vjp(lambda x, factor: torch.sin(x._values()), stored_vjp)
"""The sine of the stored numbers; the gradient is as sparse as the argument."""


FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], bool]] = {
    "sum": (torch.sparse.sum, True),
    "sum-with-an-expanded-dense-gradient": (torch.sum, False),
    "sine-of-the-numbers": (lambda x: stored(x, 1.0), True),
    "wrong-sine-of-the-numbers": (lambda x: stored(x, 1.01), False),
}


# What is not refused raises nothing, whatever `raise_exception` is.
@pytest.mark.parametrize(
    ("name", "raise_exception"),
    [(name, True) for name in FUNCTIONS] + [(name, False) for name, (_, right) in FUNCTIONS.items() if not right],
)
@pytest.mark.parametrize("mode", ["slow", "fast"])
def test_masked_check_of_a_huge_matrix_takes_little_memory(name: str, raise_exception: bool, mode: str) -> None:
    generator = torch.Generator().manual_seed(1)
    indices = torch.randint(0, SIDE, (2, ENTRIES), generator=generator)
    values = torch.randn(ENTRIES, dtype=torch.float64, generator=generator)
    x = torch.sparse_coo_tensor(indices, values, (SIDE, SIDE), check_invariants=True).coalesce().requires_grad_()
    function, expected = FUNCTIONS[name]

    def run() -> None:
        options = {"masked": True, "fast_mode": mode == "fast", "raise_exception": raise_exception}
        if expected or not raise_exception:
            assert gradvet.gradcheck(function, x, **options) is expected
        else:
            with pytest.raises(gradvet.GradcheckError, match="Jacobian mismatch for output 0"):
                gradvet.gradcheck(function, x, **options)

    assert allocated(run).total < LIMIT


def test_the_measure_sees_a_dense_copy() -> None:
    dense = torch.zeros(2_000, 2_000, dtype=torch.float64)
    assert allocated(lambda: dense + 1.0).total >= 32_000_000 > LIMIT
