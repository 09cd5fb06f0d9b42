"""Slow mode where projections certify nothing: the price and the verdict of torch's comparison of all entries."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError
from torch.autograd.gradcheck import gradcheck as torch_gradcheck

import gradvet
from gradvet.core import entrywise, modes
from tests.functions import with_vjp

from .test_fast_mode import ACCEPTED, Counter, bytes_at_once, network, numbers, scaled_gradient, times

Function = Callable[[Tensor], Any]


def rough(function: Function, noise: float = 3e-12) -> Function:
    """The function with noise, which hides what projections of many entries would have to resolve."""
    return lambda x: function(x) + noise * (1e9 * function(x.detach())).sin()


def broad(rows: int) -> Function:
    def function(x: Tensor) -> Tensor:
        weights = torch.linspace(-1.0, 1.0, rows * x.numel(), dtype=x.dtype).view(rows, -1)
        return (weights @ x).sin()

    return function


CASES: dict[str, tuple[Function, Tensor]] = {
    "3 to 3": (rough(torch.sin), numbers(3)),
    "10 to 1": (rough(lambda x: x.sin().sum()), numbers(10)),
    "10 to 10": (rough(torch.sin), numbers(10)),
    "15 to 1": (rough(lambda x: x.sin().sum()), numbers(15)),
    "30 to 1": (rough(lambda x: x.sin().sum()), numbers(30)),
    "400 to 1": (rough(lambda x: x.sin().sum()), numbers(400)),
    "2 to 1100": (rough(broad(1100)), numbers(2)),
    "20 to 300": (rough(broad(300)), numbers(20)),
    "600 to 600": (rough(torch.sin), numbers(600)),
}


def spent(check: Callable[..., bool], function: Function, x: Tensor, **options: Any) -> tuple[bool, int]:
    counter = Counter(function)
    verdict = check(counter, x, raise_exception=False, **options)
    return verdict, counter.calls + counter.runs


@pytest.mark.parametrize("options", [{}, {"check_forward_ad": True, "check_backward_ad": False}], ids=["back", "forth"])
@pytest.mark.parametrize("name", CASES)
def test_price_is_at_most_a_tenth_more_than_that_of_torch(name: str, options: dict[str, bool]) -> None:
    function, x = CASES[name]
    verdict, price = spent(torch_gradcheck, function, x, **options)
    found = spent(gradvet.gradcheck, function, x, **options)
    assert found[0] is verdict is True
    assert found[1] <= max(1.1 * price, price + 3)


@pytest.mark.parametrize("raise_exception", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 10, 30])
@pytest.mark.parametrize(
    "function", [torch.sin, lambda x: x.sin().sum(), lambda x: x.cumsum(0).sin()], ids=["sin", "sum", "sums"]
)
def test_price_of_a_refusal_is_that_of_torch_and_of_an_error_bar(
    function: Function, size: int, raise_exception: bool
) -> None:
    """With one wrong entry, with one in each row, and with all entries wrong."""
    prices = []
    for check, wrong in itertools.product(
        (torch_gradcheck, gradvet.gradcheck), (times(1.1, size - 1), lambda gradient: 1.1 * gradient)
    ):
        counter = Counter(scaled_gradient(function, wrong))
        with contextlib.suppress(GradcheckError):
            assert not check(counter, numbers(size), raise_exception=raise_exception)
        prices.append(counter.calls + counter.runs)
    error_bar = 2 if raise_exception else 0
    for of_torch, of_gradvet in zip(prices[:2], prices[2:], strict=True):
        assert of_gradvet <= max(1.1 * of_torch, of_torch + 3) + error_bar


def split(x: Tensor) -> tuple[Tensor, ...]:
    return (x.sum(), x.sin(), x[:1] * x[-1:], x.cos(), x.exp())


def spoiled_by_rule(x: Tensor) -> Tensor:
    found: Tensor = scaled_gradient(lambda x: x, lambda gradient: 1.1 * gradient)(x)
    return found


def spoiled_by_detach(x: Tensor) -> Tensor:
    return 1.1 * x - 0.1 * x.detach()


@pytest.mark.parametrize("spoiled", [spoiled_by_rule, spoiled_by_detach])
@pytest.mark.parametrize("wrong", [0, 1, 4])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 10, 20, 40])
def test_price_of_a_refusal_of_several_outputs_is_that_of_torch(size: int, wrong: int, spoiled: Function) -> None:
    """torch compares the outputs one after the other, and ends at the first that is wrong."""

    def function(x: Tensor) -> tuple[Tensor, ...]:
        right, changed = split(x), split(spoiled(x))
        return (*right[:wrong], changed[wrong], *right[wrong + 1 :])

    prices = []
    for check in (torch_gradcheck, gradvet.gradcheck):
        counter = Counter(function)
        assert not check(counter, numbers(size), raise_exception=False)
        prices.append(counter.calls + counter.runs)
    assert prices[1] <= 1.1 * prices[0] + 2


def test_derivative_that_changes_from_pass_to_pass_is_not_reproducible_rather_than_wrong() -> None:
    passes = itertools.count(1)
    unsteady = scaled_gradient(torch.sin, lambda gradient: gradient * next(passes))
    for fast_mode in (False, True):
        with pytest.raises(gradvet.GradcheckError, match="not reentrant"):
            gradvet.gradcheck(unsteady, numbers(3), fast_mode=fast_mode)


@pytest.mark.parametrize("bend", [0.0, 1e-12], ids=["linear", "nearly linear"])
@pytest.mark.parametrize(("rows", "outputs"), [(1, 1), (3, 1), (10, 1), (40, 1), (10, 5), (40, 5)])
def test_custom_rule_is_called_no_more_often_than_by_torch(rows: int, outputs: int, bend: float) -> None:
    runs: list[Callable[..., bool]] = []

    def vjp(cotangent: Tensor, x: Tensor) -> Tensor:
        runs.append(check)
        return 2.0 * cotangent + bend * cotangent**2

    doubled = with_vjp(lambda x: 2.0 * x, vjp)

    for check in (torch_gradcheck, gradvet.gradcheck):
        assert check(lambda x: doubled(x).chunk(outputs), numbers(rows))
    assert runs.count(gradvet.gradcheck) <= 1.1 * runs.count(torch_gradcheck)


@pytest.mark.parametrize("name", ["network of 600 units", "max pooling", "bilinear sampling"])
def test_piecewise_function_at_an_ordinary_point_is_certified(name: str) -> None:
    function, x, _ = ACCEPTED[name]
    verdict, price = spent(gradvet.gradcheck, function, x)
    assert verdict
    assert price <= 60


def test_error_in_a_network_is_found_where_steps_must_be_small() -> None:
    layers = network(50, 400, 200, 10)

    tilt = torch.where(torch.arange(50) == 17, 1.01, 1.0)
    tilted = with_vjp(torch.clone, lambda cotangent, x: cotangent * tilt)

    for fast_mode in (False, True):
        with pytest.raises(gradvet.GradcheckError, match="Jacobian mismatch"):
            gradvet.gradcheck(lambda x: layers(tilted(x)), numbers(8, 50), fast_mode=fast_mode)


def test_comparison_of_all_entries_takes_little_memory() -> None:
    function, x = rough(torch.sin), numbers(3_000)
    with bytes_at_once() as peak:
        assert gradvet.gradcheck(function, x, atol=1e-4)
    assert peak[0] <= 100_000_000


def test_rows_of_a_large_jacobian_are_computed_once_where_few_columns_are_uncertain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(entrywise, "BLOCK", 600)
    monkeypatch.setattr(modes, "BLOCK", 600)
    x = numbers(60)
    is_noisy = torch.arange(60) % 20 == 5
    smooth = Counter(lambda x: torch.where(is_noisy, rough(torch.sin, 9e-12)(x), x.sin()))
    assert gradvet.gradcheck(smooth, x)
    assert 60 <= smooth.runs <= 2 * 60 + 2
    wrong = Counter(
        lambda x: torch.where(is_noisy, rough(torch.sin, 9e-12)(x), x.sin() + (torch.arange(60) == 33) * x.detach())
    )
    with pytest.raises(gradvet.GradcheckError, match=r"33"):
        gradvet.gradcheck(wrong, x)


@pytest.mark.parametrize(("inputs", "outputs"), [(100, 100), (90, 180)])
def test_roundoff_in_each_entry_of_a_large_jacobian_takes_few_backward_passes(
    monkeypatch: pytest.MonkeyPatch, inputs: int, outputs: int
) -> None:
    """Rows would be computed again for each block of columns: 10 passes in place of 1,700 and of 5,400."""
    monkeypatch.setattr(entrywise, "BLOCK", 600)
    monkeypatch.setattr(modes, "BLOCK", 600)
    weights = torch.linspace(-1.0, 1.0, 5 * (5 * outputs // inputs)).view(5, -1)
    options = {"eps": 1e-2, "atol": 1e-3}

    def function(x: Tensor) -> Tensor:
        return (x.view(-1, 5) @ weights).sin()

    right = Counter(function)
    with pytest.warns(UserWarning, match="double precision"):
        assert gradvet.gradcheck(right, numbers(inputs, dtype=torch.float32), **options)
    assert right.calls >= 2 * inputs
    assert right.runs <= 20
    wrong = scaled_gradient(function, lambda gradient: gradient * (1.0 + 0.05 * (torch.arange(inputs) == 77)))
    with pytest.warns(UserWarning, match="double precision"), pytest.raises(gradvet.GradcheckError, match=r"\[77\]"):
        gradvet.gradcheck(wrong, numbers(inputs, dtype=torch.float32), **options)


def large_and_small(x: Tensor, y: Tensor) -> Tensor:
    """Large terms, in which a matrix product of many points rounds the same number differently from point to point."""
    weights = torch.linspace(-1.0, 1.0, y.numel() * x.numel(), dtype=x.dtype).view(-1, x.numel())
    return 1e6 * (weights @ x).sin() + y


@pytest.mark.parametrize("fast_mode", [False, True])
def test_roundoff_of_vectorised_calls_refuses_no_right_function(fast_mode: bool) -> None:
    inputs = numbers(7), numbers(100)
    assert torch_gradcheck(large_and_small, inputs, fast_mode=fast_mode)
    assert gradvet.gradcheck(large_and_small, inputs, fast_mode=fast_mode)


def test_wrong_column_is_found_beside_such_roundoff() -> None:
    def partly_detached(x: Tensor, y: Tensor) -> Tensor:
        mask = torch.arange(y.numel()) == 41
        return large_and_small(x, torch.where(mask, y.detach(), y))

    with pytest.raises(gradvet.GradcheckError) as error:
        gradvet.gradcheck(partly_detached, (numbers(7), numbers(100)))
    assert error.value.report is not None
    assert "[41]" in str(error.value.report.failures[0].mismatches[0].input)


@pytest.mark.parametrize("options", [{}, {"check_forward_ad": True, "check_backward_ad": False}], ids=["back", "forth"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
@pytest.mark.parametrize("wrong", [None, 0, 2, 3])
def test_small_jacobian_is_compared_output_by_output(
    wrong: int | None, dtype: torch.dtype, options: dict[str, bool]
) -> None:
    """Among the outputs are one without elements and one without derivative."""

    def function(x: Tensor) -> tuple[Tensor, ...]:
        right = [x.sum(), x[:0], x * x, x[1:].prod()]
        outputs = [y + 0.1 * (y - y.detach()) if number == wrong else y for number, y in enumerate(right)]
        return *outputs, x.detach()

    x = torch.tensor([0.3, -1.2, 0.7], dtype=dtype, requires_grad=True)
    assert torch_gradcheck(function, x, raise_exception=False, **options) is (wrong is None)
    if wrong is None:
        assert gradvet.gradcheck(function, x, **options)
        return
    with pytest.raises(gradvet.GradcheckError) as error:
        gradvet.gradcheck(function, x, **options)
    assert error.value.report is not None
    assert error.value.report.failures[0].facts["output"] == wrong


@pytest.mark.parametrize("period", [5, 12, 30])
def test_slow_mode_refuses_a_gradient_that_is_lost_in_some_passes(period: int) -> None:
    passes = itertools.count(1)
    often = with_vjp(torch.sin, lambda v, x: v * x.cos() if next(passes) % period else 0.0 * v)
    with pytest.raises(GradcheckError):
        gradvet.gradcheck(often, numbers(50))
    assert gradvet.gradcheck(with_vjp(torch.sin, lambda v, x: v * x.cos()), numbers(50))
