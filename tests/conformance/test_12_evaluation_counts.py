"""Section 12: how often the function and its derivative are run.

The table has what torch needs. gradvet may do with less; it never needs more than the slow mode, nor in fast mode more
than three times what torch's fast mode needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from .checker import Checker
from .points import leaf


class Counter:
    """`function`, counting its calls and the runs of the autograd engine that reach its first argument."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        self.function, self.calls, self.runs = function, 0, 0

    def __call__(self, x: Tensor, *rest: Tensor) -> Any:
        self.calls += 1
        y = x.clone()
        if y.requires_grad:
            y.register_hook(self._count_run)
        return self.function(y, *rest)

    def _count_run(self, gradient: Tensor | None) -> None:
        self.runs += 1


@dataclass(frozen=True)
class Price:
    """Calls of the function and runs of the engine in each of torch's modes."""

    function: Callable[[Tensor], Any]
    dtype: torch.dtype
    slow: tuple[int, int]
    fast: tuple[int, int]
    options: dict[str, bool] = field(default_factory=dict)


def _two_elements(x: Tensor) -> Tensor:
    return x[:2].sin() * x[2]


REAL, COMPLEX = torch.float64, torch.complex128
FORWARD = {"check_forward_ad": True, "check_backward_ad": False}

# N = 3 elements of K = 1 input; M = 2 elements of P = 1 output, and of the pair M = 5 of P = 2.
PRICES = {
    "real": Price(_two_elements, REAL, slow=(8, 6), fast=(4, 4)),
    "pair_of_outputs": Price(lambda x: (_two_elements(x), x.cos()), REAL, slow=(10, 14), fast=(6, 8)),
    "complex_to_complex": Price(_two_elements, COMPLEX, slow=(28, 10), fast=(12, 6)),
    "complex_to_real": Price(lambda x: _two_elements(x).abs(), COMPLEX, slow=(14, 6), fast=(6, 4)),
    "real_to_complex": Price(lambda x: _two_elements(x) * 1j, REAL, slow=(16, 10), fast=(8, 6)),
    "without_undefined": Price(_two_elements, REAL, (7, 5), (3, 3), {"check_undefined_grad": False}),
    "batched": Price(_two_elements, REAL, (8, 9), (4, 7), {"check_batched_grad": True}),
    "forward": Price(_two_elements, REAL, (12, 0), (6, 0), FORWARD),
    "forward_without_undefined": Price(_two_elements, REAL, (10, 0), (4, 0), FORWARD | {"check_undefined_grad": False}),
}


@pytest.mark.parametrize("name", PRICES)
def test_s12_price_is_at_most_the_known_one(checker: Checker, name: str) -> None:
    price = PRICES[name]
    counter = Counter(price.function)
    checker.accepts(counter, leaf(3, dtype=price.dtype), **price.options)
    spent = counter.calls, counter.runs
    if checker.name == "torch":
        assert spent == (price.slow if checker.mode == "slow" else price.fast)
    else:
        assert spent[0] <= price.slow[0]
        assert spent[1] <= price.slow[1]
        if checker.mode == "fast":
            assert spent[0] <= 3 * price.fast[0]
            assert spent[1] <= 3 * price.fast[1]


def test_s12_price_of_second_order_is_at_most_the_known_one(checker: Checker) -> None:
    counter = Counter(_two_elements)
    checker.second_order.accepts(counter, leaf(3))
    if (checker.name, checker.mode) == ("torch", "slow"):
        assert (counter.calls, counter.runs) == (13, 20)
    assert counter.calls <= 13
    assert counter.runs <= 20


@pytest.mark.upstream_differs("the price grows with the number of elements", mode="slow")
def test_s12_price_does_not_grow_with_the_number_of_elements(checker: Checker) -> None:
    counter = Counter(torch.sin)
    checker.accepts(counter, leaf(100))
    assert counter.calls <= 20
    assert counter.runs <= 20


@pytest.mark.upstream_differs("the price grows with the number of elements", mode="slow")
def test_s12_price_of_second_order_does_not_grow_with_the_number_of_elements(checker: Checker) -> None:
    counter = Counter(torch.sin)
    checker.second_order.accepts(counter, leaf(100))
    assert counter.calls <= 40
    assert counter.runs <= 80
