"""Several threads check at once, also one shared module."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn

import gradvet
from tests.faults.interruptions import Net, WrongSquare
from tests.faults.world import differences, world

THREADS = 8


def numbers(*shape: int) -> Tensor:
    return torch.linspace(-0.7, 1.3, torch.Size(shape).numel(), dtype=torch.float64).reshape(shape)


def test_eight_threads_check_one_shared_module() -> None:
    module = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 4), nn.Tanh()).double()
    x = numbers(5, 3)
    before = world([x], [module])
    with ThreadPoolExecutor(THREADS) as pool:
        reports = list(pool.map(lambda seed: gradvet.check(module, x, seed=seed, points=None), range(3 * THREADS)))
    assert {report.verdict for report in reports} == {gradvet.Verdict.PASS}
    assert differences(before, world([x], [module])) == []


def test_eight_threads_use_the_drop_in_and_the_native_check_on_one_tensor() -> None:
    x = numbers(6).requires_grad_()
    before, expected = world([x]), x.detach().cos()

    def both(seed: int) -> bool:
        passed = gradvet.gradcheck(torch.sin, x, check_forward_ad=True) and gradvet.gradgradcheck(torch.sin, x)
        slopes = gradvet.numerical_jacobian(torch.sin, x).value.diagonal()
        exact = bool((slopes - expected).abs().max() < 1e-8)
        return passed and exact and gradvet.check(torch.sin, x, seed=seed, points=None).passed

    with ThreadPoolExecutor(THREADS) as pool:
        assert all(pool.map(both, range(2 * THREADS)))
    assert differences(before, world([x])) == []


def test_eight_threads_search_one_shared_model_and_check_it() -> None:
    model = Net("function").double()
    x = numbers(4, 3)
    before = world([x], [model])

    def work(seed: int) -> tuple[str, str]:
        if seed % 3 == 0:
            return "check", str(gradvet.check(model, x, seed=seed, points=None, blame=False).verdict)
        if seed % 3 == 1:
            report = gradvet.blame(model, x, seed=seed)
        else:
            with gradvet.watch(seed=seed) as step:
                WrongSquare.apply(numbers(3).requires_grad_())
            report = step.report()
        assert [culprit.what for culprit in report.culprits] == ["autograd.Function WrongSquare"]
        return "blame", f"{len(report.pieces)} piece"

    with ThreadPoolExecutor(THREADS) as pool:
        found = set(pool.map(work, range(2 * THREADS)))
    assert found == {("check", "FAIL"), ("blame", "1 piece")}
    assert differences(before, world([x], [model])) == []


def test_check_inside_a_checked_function_is_no_deadlock() -> None:
    inner = numbers(3)

    def function(x: Tensor) -> Tensor:
        assert gradvet.check(torch.sin, inner, seed=0, points=None).passed
        return x * 2.0

    assert gradvet.check(function, numbers(2), seed=0, points=None, checks=["reverse"]).passed
