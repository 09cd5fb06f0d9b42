"""`fast_mode=True`: how often it calls the function, what it accepts, what it refuses, how much memory it takes.

Covers `core/fast_mode.py`.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.gradcheck import gradcheck as torch_gradcheck
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import gradvet
from gradvet.core import fast_mode
from gradvet.core.events import listening
from gradvet.core.fast_mode import MAX_IF_ACCEPTED, MAX_IF_REFUSED
from gradvet.core.results import Report
from tests.functions import with_vjp

pytestmark = pytest.mark.filterwarnings("ignore:Input #0 requires gradient")

Function = Callable[[Tensor], Any]


class Counter:
    """`function`, counting its calls and the backward passes through it."""

    def __init__(self, function: Function) -> None:
        self.function, self.calls, self.runs = function, 0, 0

    def __call__(self, x: Tensor) -> Any:
        self.calls += 1
        y = x.clone()
        if y.requires_grad:
            y.register_hook(self._count_run)
        return self.function(y)

    def _count_run(self, gradient: Tensor | None) -> None:
        self.runs += 1


def numbers(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def scaled_gradient(function: Function, scale: Callable[[Tensor], Tensor]) -> Function:
    """The function with a gradient that goes through `scale`, which is the identity if it is right."""

    scaled = with_vjp(torch.clone, lambda v, y: scale(v.clone()))

    return lambda x: function(scaled(x))


def times(factor: float, *places: int) -> Callable[[Tensor], Tensor]:
    def scale(gradient: Tensor) -> Tensor:
        gradient.view(-1)[list(places)] *= factor
        return gradient

    return scale


def network(*widths: int) -> Function:
    layers: list[torch.nn.Module] = []
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for one, other in itertools.pairwise(widths):
            layers += [torch.nn.Linear(one, other, dtype=torch.float64), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def spent(check: Callable[..., bool], function: Function, x: Tensor, **options: Any) -> tuple[bool, int, int]:
    counter = Counter(function)
    verdict = check(counter, x, fast_mode=True, raise_exception=False, **options)
    return verdict, counter.calls, counter.runs


def stopped_early(x: Tensor, tolerance: float = 1e-6) -> Tensor:
    """Root of y³ + y + the mean of y = x by steps with a detached length, until they are short enough."""
    y = torch.zeros_like(x)
    for _ in range(200):
        rest = y**3 + y + y.mean() - x
        y = y - rest / (3 * y * y + 2).detach()
        if rest.abs().max() < tolerance:
            break
    return y


def slightly_coupled(size: int, coupling: float) -> Function:
    """Sines with a dependence on all other inputs that the derivative lacks."""
    weights = coupling * numbers(size, size, seed=1).detach().tanh()
    return lambda x: x.sin() + weights @ x.detach()


SINGLE = {"eps": 1e-3, "atol": 1e-2, "rtol": 1e-2}

ACCEPTED: dict[str, tuple[Function, Tensor, dict[str, float]]] = {
    "smooth": (torch.sin, numbers(1000), {}),
    "noisy": (lambda x: x + 1e-8 * (1e9 * x).sin().detach(), numbers(1000), {"rtol": 0.5}),
    "strongly curved": (lambda x: (50 * x).sin().sum().exp(), numbers(1000), {}),
    "single precision": (torch.exp, numbers(40_000, dtype=torch.float32), SINGLE),
    "change below the roundoff of the value": (
        lambda x: x.sin() + 1e4,
        numbers(100, dtype=torch.float32),
        {"eps": 1e-6, "atol": 1e-1, "rtol": 1e-2},
    ),
    "complex": (lambda z: (z * z).sum(), numbers(300, dtype=torch.complex128), {}),
    "kink within the step": (lambda x: (x - x.detach() - 5e-7).relu(), numbers(500), {"atol": 1e-2}),
    "no absolute tolerance": (torch.exp, numbers(500), {"atol": 0.0}),
    "solver that stops early, few inputs": (stopped_early, numbers(4), {}),
    "solver that stops early": (stopped_early, numbers(40), {}),
    "all entries slightly wrong": (slightly_coupled(300, 2e-6), numbers(300), {}),
    "network of 600 units": (network(50, 400, 200, 10), numbers(8, 50), {}),
    "max pooling": (lambda x: F.max_pool2d(x, 2), numbers(2, 8, 32, 32), {}),
    "bilinear sampling": (
        lambda grid: F.grid_sample(numbers(1, 2, 16, 16, seed=1).detach(), grid.tanh(), align_corners=True),
        numbers(1, 12, 12, 2),
        {},
    ),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_verdict_to_accept_costs_at_most_three_times_what_torch_needs(name: str) -> None:
    function, x, options = ACCEPTED[name]
    verdict, calls, runs = spent(torch_gradcheck, function, x, **options)
    found = spent(gradvet.gradcheck, function, x, **options)
    assert found[0] is verdict is True
    # Calls and backward passes together: which of both are spent depends on the random directions.
    assert found[1] + found[2] <= 3 * (calls + runs)


def test_no_certificate_is_tried_where_rounding_loses_the_step() -> None:
    """A suite of such calls would take longer than in torch, for evaluations that can certify nothing."""
    x, options = 90 + numbers(100, dtype=torch.float32).detach(), {"atol": 10.0}
    x.requires_grad_()
    verdict, calls, runs = spent(torch_gradcheck, torch.sin, x, **options)
    found = spent(gradvet.gradcheck, torch.sin, x, **options)
    assert found[0] is verdict is True
    assert found[1] + found[2] <= calls + runs


def test_entries_of_few_inputs_that_are_slightly_wrong_are_compared_one_by_one() -> None:
    """Their sum is beyond the error bar, as that of one wrong entry is, so the entries have to be looked at."""
    x = numbers(10)
    found = spent(gradvet.gradcheck, slightly_coupled(10, 5e-6), x)
    assert found[0] is True
    assert found[1] + found[2] <= MAX_IF_ACCEPTED + 3 * 12
    assert gradvet.gradcheck(slightly_coupled(10, 3e-5), x, raise_exception=False, fast_mode=True) is False


@pytest.mark.parametrize("name", ["network of 600 units", "max pooling", "bilinear sampling"])
def test_piecewise_function_at_an_ordinary_point_is_certified(name: str) -> None:
    function, x, options = ACCEPTED[name]
    assert reported(function, x, **options).miss <= 0.05


def reported(function: Function, x: Tensor, **options: Any) -> Report:
    reports: list[Report] = []
    with listening(reports.append, seed=1):
        gradvet.gradcheck(function, x, fast_mode=True, raise_exception=False, **options)
    return reports[-1]


def test_miss_probability_is_stated_for_what_was_certified_alone() -> None:
    assert reported(torch.sin, numbers(100)).miss == 0.05
    function, x, options = ACCEPTED["single precision"]
    assert reported(function, x, **options).miss == 1.0


@pytest.mark.parametrize(
    ("size", "share"), [*((size, share) for size in (800, 10_000) for share in (0.0, 0.3, 0.77, 1.0)), (1_000_000, 0.3)]
)
def test_one_doubled_entry_is_named(size: int, share: float) -> None:
    at = round(share * (size - 1))
    wrong = Counter(scaled_gradient(torch.sin, times(2.0, at)))
    x = torch.linspace(-1.0, 1.0, size, dtype=torch.float64).requires_grad_()
    with pytest.raises(gradvet.GradcheckError, match=rf"d output 0 \[{at}\] / d input 0 \[{at}\]"):
        gradvet.gradcheck(wrong, x, fast_mode=True)
    assert wrong.calls + wrong.runs <= 3 * 8 + MAX_IF_REFUSED


def test_entries_are_named_with_few_evaluations_where_many_are_wrong() -> None:
    size = 5_000
    wrong = Counter(scaled_gradient(lambda x: x.sin() + x.mean(), times(1.5, *range(0, size, 7))))
    with pytest.raises(gradvet.GradcheckError, match="Jacobian mismatch"):
        gradvet.gradcheck(wrong, numbers(size), fast_mode=True)
    assert wrong.calls + wrong.runs <= 3 * 8 + MAX_IF_REFUSED


def test_gradient_within_the_tolerance_but_beyond_the_error_bar_is_accepted() -> None:
    nearly = Counter(scaled_gradient(torch.sin, lambda gradient: gradient * (1.0 + 1e-5)))
    assert gradvet.gradcheck(nearly, numbers(2_000), fast_mode=True)
    assert nearly.calls + nearly.runs <= 3 * 8 + MAX_IF_REFUSED


def test_entry_at_a_kink_does_not_refuse_what_torch_accepts() -> None:
    x = numbers(2_000).detach()
    x[5] = 3e-7
    x.requires_grad_()
    assert torch_gradcheck(torch.relu, x, fast_mode=True)
    assert gradvet.gradcheck(torch.relu, x, fast_mode=True)


def rounded(function: Function, grid: float) -> Function:
    """The function with values on a grid, and the gradient of the function itself."""

    on_grid = with_vjp(lambda y: torch.round(y / grid) * grid, lambda v, y: v)

    return lambda x: on_grid(function(x))


@pytest.mark.parametrize("grid", [1e-10, 4e-10, 2e-9, 1e-8])
def test_grid_of_values_does_not_refuse_what_torch_accepts(grid: float) -> None:
    """Differences of rounded values give the same wrong slope at a step and at half of it, or none at both."""
    weights = torch.arange(16, dtype=torch.float64)
    accepted = 0
    for seed, size in itertools.product(range(0, 60, 3), (4, 8, 16)):
        for function in (lambda x: (x.softmax(0) * weights[: len(x)]).sum(), lambda x: x.square().mean()):
            coarse, x = rounded(function, grid), numbers(size, seed=seed)
            if torch_gradcheck(coarse, x, fast_mode=True, raise_exception=False):
                accepted += 1
                assert gradvet.gradcheck(coarse, x, fast_mode=True)
    assert accepted


def test_gradient_that_loses_the_sign_of_its_cotangent_is_refused_as_by_torch() -> None:
    """A random cotangent may give what is right for it."""
    weights = torch.arange(1, 5, dtype=torch.float64)
    wrong = scaled_gradient(lambda y: weights * y.sum(), lambda gradient: -gradient.abs())
    for seed in range(8):
        x = numbers(5, seed=seed)
        assert not torch_gradcheck(wrong, x, fast_mode=True, raise_exception=False)
        with listening(lambda report: None, seed=seed):
            assert not gradvet.gradcheck(wrong, x, fast_mode=True, raise_exception=False)


def test_column_of_small_errors_is_accepted_as_by_torch() -> None:
    """Its entries add up to less than is searched."""
    scale = torch.ones((), dtype=torch.float64, requires_grad=True)

    def function(x: Tensor, scale: Tensor) -> Tensor:
        return x.sin() + scale + 1e-6 * scale.detach()

    assert torch_gradcheck(function, (numbers(300), scale), fast_mode=True)
    for seed in range(5):
        with listening(lambda report: None, seed=seed):
            assert gradvet.gradcheck(function, (numbers(300), scale), fast_mode=True)


@pytest.mark.parametrize("factor", [1.0, 1.3])
def test_function_that_shows_nothing_but_noise_has_the_verdict_of_torch(factor: float) -> None:
    def coarse(x: Tensor) -> Tensor:
        return x.to(torch.float16).to(torch.float64).sin()

    noisy = scaled_gradient(coarse, lambda gradient: gradient * factor)
    expected = torch_gradcheck(noisy, numbers(400), fast_mode=True, raise_exception=False)
    assert gradvet.gradcheck(noisy, numbers(400), fast_mode=True, raise_exception=False) is expected


def test_projection_that_torch_refuses_is_refused_though_no_entry_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    point = numbers(1_000)
    centre = point.detach().clone()

    def bent(x: Tensor) -> Tensor:
        """All inputs together cross a kink that none of them reaches alone."""
        return x + ((x - centre).sum() - 1e-5).relu() * 30.0

    assert not torch_gradcheck(bent, point, fast_mode=True, raise_exception=False)
    monkeypatch.setattr(fast_mode.ProjectionTest, "certified", lambda test: None)
    counter = Counter(bent)
    phrase = "Jacobian mismatch for output 0 with respect to input 0"
    with pytest.raises(gradvet.GradcheckError, match=phrase) as caught:
        gradvet.gradcheck(counter, point, fast_mode=True)
    assert "fast_mode=False compares all" in str(caught.value)
    assert counter.calls + counter.runs <= 3 * 8 + MAX_IF_REFUSED


@contextmanager
def bytes_at_once() -> Iterator[list[int]]:
    """The most bytes that tensors made inside take at a time, as the only entry of a list."""
    peak, now, seen = [0], 0, dict[int, int]()

    def released(pointer: int) -> None:
        nonlocal now
        now -= seen.pop(pointer, 0)

    class Counting(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal now
            found = func(*args, **(kwargs or {}))
            for tensor in found if isinstance(found, (tuple, list)) else (found,):
                if not isinstance(tensor, Tensor):
                    continue
                storage = tensor.untyped_storage()
                if (pointer := storage.data_ptr()) and pointer not in seen:
                    seen[pointer] = storage.nbytes()
                    now += seen[pointer]
                    weakref.finalize(tensor, released, pointer)
                    peak[0] = max(peak[0], now)
            return found

    with Counting():
        yield peak


def near_zero(size: int) -> Tensor:
    x = numbers(size).detach()
    x[size // 3] = 3e-7
    return x.requires_grad_()


@pytest.mark.parametrize("fast_mode", [True, False])
@pytest.mark.parametrize(
    ("function", "x", "options"),
    [(torch.exp, numbers(40_000, dtype=torch.float32), SINGLE), (torch.relu, near_zero(1_000_000), {})],
    ids=["exp", "relu"],
)
def test_memory_is_bounded(function: Function, x: Tensor, options: dict[str, float], fast_mode: bool) -> None:
    if function is torch.exp and not fast_mode:
        pytest.skip("1.6e9 entries, which torch compares one by one")
    counter = Counter(function)
    with bytes_at_once() as peak:
        gradvet.gradcheck(counter, x, fast_mode=fast_mode, raise_exception=False, **options)
    assert peak[0] <= max(16 * 2 * 8 * x.numel(), 100_000_000)
    assert counter.calls + counter.runs <= 3 * 8 + 2 * MAX_IF_REFUSED


def test_median_of_many_rows_is_that_of_some(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, sort = [], torch.sort

    def recorded(x: Tensor, *more: Any, **options: Any) -> Any:
        sizes.append(x.numel())
        return sort(x, *more, **options)

    monkeypatch.setattr(torch, "sort", recorded)
    assert gradvet.gradcheck(torch.exp, numbers(40_000, dtype=torch.float32), fast_mode=True, **SINGLE)
    assert sizes
    assert max(sizes) <= 2 * fast_mode.MEDIAN_ROWS


@pytest.mark.parametrize("noise", [1e-12, 3e-12, 1e-11])
def test_noisy_function_of_one_number_is_accepted(noise: float) -> None:
    """Its only direction certifies with a second cotangent, not with a second direction."""
    weights = torch.linspace(0.5, 2.0, 6, dtype=torch.float64)

    def function(x: Tensor) -> Tensor:
        return (weights * x).sin() + noise * (1e9 * weights * x.detach()).sin()

    for seed in range(20):
        with listening(lambda report: None, seed=seed):
            assert gradvet.gradcheck(function, numbers(1), fast_mode=True)
